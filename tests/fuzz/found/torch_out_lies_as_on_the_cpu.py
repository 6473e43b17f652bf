# torch on numpy
#   v0: strides (18, 9, 3, 1), the CPU: (18, 9, 1, 3)
v0 = T((2, 2, 2), torch.complex64, 2)
v1 = T((2, 2, 3, 3), torch.complex64, 2, 'l')
torch.triangular_solve(v1, v1, unitriangular=True, out=(v0, T((0,), torch.complex64)))
