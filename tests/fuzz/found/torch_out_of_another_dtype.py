# torch on numpy
#   v0: not rounded to float16 before
v0 = torch.add(T((5,), torch.float16, 3), T((5,), torch.float16, 5), out=T((5,), torch.float64))
v1 = torch.exp(T((5,), torch.bfloat16, 3), out=T((5,), torch.float32))
