# tensorflow seed 1700209 on jax grad
#   v3: TypeError, "slice limit_indices must be less than or equal to operand shape"
v0 = data("float32", (1, 3), 2)
v2 = data("int64", (2, 0), 2)
v3 = v2[0:, :0:-2]
