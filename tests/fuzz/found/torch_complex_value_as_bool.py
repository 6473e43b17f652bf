# torch seed 10101013 on numpy
#   v2 = v1.masked_fill(...): RuntimeError raised, the CPU: nothing
v1 = T((2,), torch.bool, 2)
v2 = v1.masked_fill(T((), torch.bool, 85), T((), torch.complex64, 2, 's'))
v3 = v1.masked_fill(T((2,), torch.bool, 85), 0.5j)
v4 = torch.full((2,), 2j, dtype=torch.bool, device=D)
v5 = v1.clone().fill_(1j)
