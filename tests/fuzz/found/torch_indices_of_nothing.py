# torch on numpy
#   IndexError raised: where nothing is read or written the CPU looks at no index
v0 = T((2, 1, 0, 1), torch.float32, 2, 't')
v0[I((1,), 2, 25), 0, I((1,), 0, 41), T((1,), torch.bool, 0)].zero_()
v1 = T((3, 0, 2), torch.float32, 2).index_fill(2, I((1,), 3, 71), 0)
v2 = torch.ops.aten.batch_norm.default(T((1, 3, 1), torch.float32, 2), None, T((1, 3), torch.float32, 2), None, None, True, 1.0, 1e-2, False)
