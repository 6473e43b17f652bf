# torch on numpy
#   v0: -inf, the CPU: inf
v0 = torch.lgamma(T((20,), torch.float64, 16))
v1 = torch.lgamma(T((20,), torch.bfloat16, 16))
