# torch on numpy
#   RuntimeError (of memory shared with `out=`, once it has been resized), the CPU: nothing; min(): RuntimeError
v0 = T((), torch.float32, 2)
v1 = v0.transpose(-1, 0)
torch.hypot(v1, T((1,), torch.int8, 2), out=v0)
v2 = T((2, 2), torch.float64, 2).unbind(0)
v3 = v2[0].narrow(0, 1, 0)
torch.square(v2[1].view(-1), out=v3)
torch.min(T((0, 2), torch.float16, 2), out=v3)
