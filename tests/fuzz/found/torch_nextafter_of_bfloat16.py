# torch on numpy
#   v0: values [0.0, ...], the CPU: 9.18e-41
v0 = torch.nextafter(T((), torch.bool, 0), T((6,), torch.bfloat16, 2))
v1 = v0.nonzero()
