# jax seed 1632113111001 on torch
#   v4: np.float64(0.0) at (0,), expected np.float64(1.0) (+- 0.12); 3 of 3
v0 = data("float16", (3,), 1)
v4 = jax.grad(lambda q: jnp.sum(lax.cond(q.sum() > 0, lambda x1: lax.map(lambda x2: x2, x1), lambda z: z * z, q)).astype(v0.dtype))(v0)
