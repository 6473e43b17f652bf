# torch on numpy
#   RuntimeError raised (of a mask of zeros, of which the CPU's kernel was asked), the CPU: nothing
v0 = T((2, 4, 1, 2), torch.complex64, 2)
v0[None, :, ..., :, T((2,), torch.bool, 84), None, :] += -1.5
