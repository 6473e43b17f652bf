# tensorflow on jax jit
#   TypeError of the hub, and not TracedValueError, where a traced branch gives more rows than the other
v0 = data("float32", (2, 3), 2)
v1 = gradient(grown, v0)
