# torch on jax compiled
#   values of the other side of the cut, where the imaginary part is -0
v0 = torch.complex(torch.tensor([-4.0, -4.0, 2.0, -2.0, 0.5], device=D), torch.tensor([-0.0, 0.0, -0.0, -0.0, -0.0], device=D))
v1 = v0.sqrt()
v2 = v0.asin()
v3 = v0.acos()
v4 = v0.acosh()
v5 = v0.conj().sqrt()
v6 = v0.to(torch.complex128).asin()
