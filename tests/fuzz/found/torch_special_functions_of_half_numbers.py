# torch on numpy
#   nothing raised, the CPU: NotImplementedError ("zeta_cpu" not implemented for 'Half'), which CUDA says, too
v0 = T((3,), torch.float16, 2)
v1 = torch.special.zeta(v0, T((), torch.float32, 3))
v2 = torch.special.chebyshev_polynomial_t(v0, 2.0)
v3 = torch.special.bessel_j0(v0.bfloat16())
