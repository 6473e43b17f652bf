# source on numpy
#   TypeError: scan([uint32[2]], [uint32[], uint32[]]): expected a carry before and after a step of one structure
x64 = True
v0 = data("float32", (2,), 2)
v1 = jax.random.key_data(lax.scan(lambda k, _: (jax.random.fold_in(k, 1), None), jax.random.key(130), length=2)[0])
v2 = jax.random.key_data(jax.random.key(-3))
v3 = jax.random.key_data(jax.random.key(2**40 + 7))
v4 = v0 + v3
