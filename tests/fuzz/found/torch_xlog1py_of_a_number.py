# torch on numpy
#   special_xlog1py: RuntimeError raised
v0 = torch.special.xlog1py(T((3,), torch.bfloat16, 2).abs(), 2.0)
v1 = torch.special.xlog1py(2.0, T((3,), torch.float64, 2).abs())
v2 = torch.special.xlog1py(T((3,), torch.int64, 2), 1.5)
