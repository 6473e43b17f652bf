# jax seed 400262 on numpy
#   KeyError, expected TypeError
v0 = data("float32", (2, 3), 48596)
v1 = jax.jvp(lambda x1: scaled(x1), (v0,), (v0,))[1]
