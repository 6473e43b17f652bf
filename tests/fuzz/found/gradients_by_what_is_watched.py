# gradients seed 24001927 on tensorflow second
#   DerivativeError, expected none
v0 = data("float16", (3,), 2)
v1 = data("complex64", (3, 2), 2)
v2 = jax.ops.segment_prod(v1, jnp.array([0, 5, -1, 0, 1])[:v1.shape[0]], 1)
