# source on numpy
#   AttributeError: 'int' object has no attribute 'dtype', expected none
v1 = data("bool", (3, 2), 2)
v2 = jnp.choose(jnp.zeros(v1.shape, int), [v1, v1], mode="clip")
v3 = jnp.result_type(jnp.float32).type(0)
