# torch on numpy
#   v1: strides (1, 3), the CPU: (4, 1)
v0 = T((1, 2, 4, 6), torch.float32, 2, "t").unbind(-1)[0]
v1 = v0[:, I((3,), 2, 1)]
v2 = v0[I((2,), 1, 1), :, I((2,), 4, 1)]
v3 = T((2, 3, 4, 5), torch.float32, 2, "l")[:, :, I((2, 2), 4, 3)]
