# source on tensorflow
#   AttributeError: module 'tensorflow' has no attribute 'float8_e4m3fn', expected none
v0 = data("int32", (2, 3), 2)
v1 = v0.astype(jnp.float8_e4m3fn).astype(jnp.float32)
v2 = (v0 * 0.3).astype(jnp.float8_e5m2).astype(jnp.float32)
