# torch on numpy
#   v0[mask] += 1: RuntimeError raised, as if no element of the mask were true
v0 = T((5,), torch.float32, 2)
v0[T((5,), torch.bool, 75)] += 1
v1 = T((3, 2), torch.float64, 2)
v1[:, T((2,), torch.bool, 84)] *= 2
v1[T((3, 2), torch.bool, 69)] = v1[T((3, 2), torch.bool, 69)].exp()
v2 = v1.masked_scatter(T((3, 2), torch.bool, 69), T((6,), torch.float64, 3))
v3 = torch.repeat_interleave(v0, I((5,), 3, 2))
