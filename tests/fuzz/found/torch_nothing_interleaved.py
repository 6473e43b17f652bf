# torch on numpy
#   v1 = torch.repeat_interleave(...): RuntimeError raised, the CPU: nothing
v0 = T((5, 0), torch.float16, 2)
v1 = torch.repeat_interleave(v0, I((1,), 5, 22), 1, output_size=2)
v2 = torch.repeat_interleave(I((0,), 5, 22), output_size=2)
