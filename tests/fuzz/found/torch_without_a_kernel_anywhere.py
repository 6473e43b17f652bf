# torch on numpy
#   nothing raised, the CPU: NotImplementedError ("floor_vml_cpu" not implemented for 'Bool'), RuntimeError, other errors
v0 = T((2, 3), torch.bool, 2)
v1 = v0.floor()
v2 = v0 - 0.5
v3 = torch.bincount(T((3,), torch.float32, 2))
v4 = T((), torch.int64, 2).logcumsumexp(0)
v5 = T((3, 0), torch.float32).index_fill_(0, I((1,), 9, 2), 1)
v6 = T((3, 0), torch.float32).index_copy_(0, I((1,), 9, 2), T((1, 0), torch.float32))
v7 = T((3, 0), torch.float32).index_put_((I((1,), 9, 2),), T((1,), torch.float32))
v8 = T((3, 0), torch.float32).index_select(0, I((1,), 9, 2))
v9 = T((3, 0), torch.float32)[I((1,), 9, 2)]
