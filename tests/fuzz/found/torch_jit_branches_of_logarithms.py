# torch seed 9823026 on torch jit
#   v3: values of another branch of the logarithm
v0 = T((3, 5, 2, 3), torch.complex64, 2, 's')
v1 = torch.full((2,), complex(-float('inf'), 0.5), device=D)
v2 = torch.full((2,), complex(-float('inf'), 0.75), device=D)
v3 = torch.logcumsumexp(v0, 0)
v4 = torch.logaddexp(v0[0], v0[1])
v5 = torch.logcumsumexp(v1, 0)
v6 = torch.logaddexp(v1, v2).imag
