# saved on jax
#   AttributeError: JAX's backend took a seed for a key of JAX, and it is an int for a function that was loaded
v0 = data("float32", (2, 3), 2)
r1 = F.dropout(v0, 0.5)
