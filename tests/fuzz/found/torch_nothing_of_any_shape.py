# torch on numpy
#   ValueError or IndexError raised, the CPU: nothing
v0 = T((), torch.int32, 2).topk(0)
v1 = T((3, 2, 2, 0), torch.int32, 2)
v2 = torch.lu_unpack(v1, v1)
v3 = torch.pixel_unshuffle(T((3, 0, 3), torch.int64, 2), 3)
v4 = torch.ops.aten.cholesky.default(T((0,), torch.float32, 2), True)
