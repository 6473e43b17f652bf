# jax seed 25000283 on torch
#   v5: np.complex128(nan+nanj) at (0,), expected np.complex128(1+0j) (+- 1.5e-05); 3 of 3
v0 = data("complex64", (2, 3), 2)
v4 = v0 * 0
v5 = jnp.float_power(v4, v4)
