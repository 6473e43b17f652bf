# torch on numpy
#   nan_to_num_: RuntimeError raised
v0 = T((8,), torch.complex64, 16)
v1 = torch.nan_to_num(v0)
v0.nan_to_num_(0.1, 1.0, -0.5)
v2 = torch.nan_to_num(T((8,), torch.bfloat16, 16))
v3 = torch.nan_to_num(T((8,), torch.int8, 16), 2.0)
