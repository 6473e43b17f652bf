# torch on numpy
#   v0.copy_(-1.5): AttributeError raised
v0 = T((3,), torch.float32, 2)
v0.copy_(-1.5)
v1 = T((3,), torch.int16, 2)
v1[1:].copy_(2.5)
v1[...].copy_(True)
