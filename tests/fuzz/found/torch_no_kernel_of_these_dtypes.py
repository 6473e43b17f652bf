# torch on numpy
#   nothing raised, the CPU: NotImplementedError, RuntimeError
v0 = T((2, 3), torch.complex64, 2)
v1 = T((2, 3), torch.bool, 2)
v2 = torch.gt(v0, v0)
v3 = v0.sign()
v4 = v1.argmax(1)
v5 = T((2, 3), torch.int32, 2).var(1)
v6 = v0.amax(1)
