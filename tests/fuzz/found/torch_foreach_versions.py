# torch on numpy
#   v1: version 0, the CPU: 2; written once where it is in the list twice
v0 = T((3,), torch.float32, 2)
torch._foreach_sin_([v0, v0])
v1 = T((3,), torch.float32, 3)
torch._foreach_add_([v0, v1], [v1, v0])
