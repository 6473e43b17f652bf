# torch seed 9830888 on torch jit
#   v1 = T((), torch.int64, 2, 'o'): NoKernelError raised, the CPU: nothing
v1 = T((), torch.int64, 2, 'o')
v4 = v1.ravel().flatten()
v5 = v4.index_put([v1 > 0], T((1,), torch.int64, 2, 's'))
v6 = T((3, 2), torch.float32, 2).index_put([v1 < 0], T((), torch.float32, 3), accumulate=True)
