# torch on numpy
#   log1p of complex numbers lost the sign of a zero
v0 = torch.complex(torch.tensor([-2.0, -3.5, 0.25], device=D), torch.tensor([-0.0, 0.0, -0.0], device=D))
v1 = v0.log1p()
