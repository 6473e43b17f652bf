# tensorflow on torch grad
#   AttributeError: the second derivative of a branch in a loop asks for zeros like an optional
v0 = data("float32", (4,), 2)
v1 = gradient(grown, v0)
