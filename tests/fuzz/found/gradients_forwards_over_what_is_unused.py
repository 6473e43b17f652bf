# gradients seed 1084856761009 on torch func tangents
#   no exception, expected TypeError
v0 = data("float32", (1, 3), 67949)
v2 = jax.vmap(jax.grad(lambda q: jnp.sum(paired({'p': q, 'n': 2}, 3)[0])))(v0)
