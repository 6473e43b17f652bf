# torch on numpy
#   v0: 11.5, the CPU: inf; 1 - 1e-5 is 1 in bfloat16
v0 = T((5, 5), torch.bfloat16, 2)
v0.logit_(1e-5)
v1 = T((5, 5), torch.float16, 1).logit(1e-3)
v2 = torch.logit(T((5, 5), torch.float32, 1), 1e-3)
v3 = torch.logit(T((5,), torch.int32, 1), 0.1)
