# torch on jax dynamo
#   v0: RuntimeError (one_hot: Class values must be non-negative), which was said of zeros in the place of the values
v0 = F.one_hot(I((1,), 4, 4), 2)
