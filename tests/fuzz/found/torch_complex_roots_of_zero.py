# torch on numpy
#   v1: values nan, the CPU: inf
v0 = torch.zeros(3, dtype=torch.complex64, device=D)
v1 = v0.rsqrt().real
