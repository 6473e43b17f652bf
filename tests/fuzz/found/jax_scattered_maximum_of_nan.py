# jax on tensorflow operations
#   -inf, expected nan: TensorFlow's kernels for the largest of a segment pass over NaN
v0 = jnp.log(jnp.array([-1.0, 1.0, 2.0, -1.0], jnp.float32))
v1 = jax.ops.segment_max(v0, jnp.array([0, 0, 1, 2]), 4)
v2 = jax.ops.segment_min(v0, jnp.array([0, 0, 1, 2]), 4)
v3 = jnp.zeros(3).at[jnp.array([0, 1])].max(jnp.stack([v0[0], v0[2]]))
