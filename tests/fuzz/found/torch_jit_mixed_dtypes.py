# torch seed 9821031 on torch jit
#   NoKernelError, TypeError and NameError raised, the CPU: nothing
v0 = T((), torch.complex128, 2)
v1 = T((1, 2, 4, 3), torch.float32, 2, 's')
v2 = T((2, 3, 3), torch.float32, 2, 'e')
v3 = torch.linalg.solve_triangular(v2, T((2, 3, 3), torch.bool, 2, 'l'), upper=False)
v4 = torch.binary_cross_entropy_with_logits(v1.sin(), v1, None, T((1, 2, 4, 3), torch.int64, 2))
v5 = v0.logcumsumexp(0)
