# jax on numpy
#   LinAlgError raised (SVD did not converge), JAX: NaN
v0 = jnp.stack([jnp.full((3, 3), jnp.inf), jnp.eye(3)])
v1 = jnp.linalg.pinv(v0)
v2 = jnp.linalg.svd(v0, compute_uv=False)
v3 = jnp.linalg.eigh(v0)[0]
v4 = jnp.linalg.cholesky(v0[1:] - 2)
v5 = lax.linalg.eig(v0[1:])[0]
