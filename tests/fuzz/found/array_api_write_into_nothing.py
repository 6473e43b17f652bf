# array_api seed 300113 on numpy
#   statement 2: ValueError, as if the view showed elements several times
v0 = data("int64", (2, 0, 3), 2)
v1 = xp.reshape(v0, (0, 2, 2))
v1 |= 2
