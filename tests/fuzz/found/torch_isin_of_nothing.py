# torch seed 10020175 on numpy
#   v4 = torch.isin(v3, v3, ...): IndexError raised, the CPU: nothing
v1 = T((0, 2, 2), torch.int16, 2)
v2 = T((0, 3), torch.float32, 2).t()
v3 = torch.isin(v1, v1, assume_unique=True, invert=True)
v4 = torch.isin(v2, v2, assume_unique=True)
v5 = torch.isin(v1, T((3,), torch.int16, 2))
v6 = torch.isin(T((3,), torch.int16, 2), v1, assume_unique=True)
v7 = torch.isin(v1, 3)
