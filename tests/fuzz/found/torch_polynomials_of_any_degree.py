# torch on numpy
#   v1 = torch.special.chebyshev_polynomial_t(v0, ...): _Hangs raised, the CPU: nothing
v0 = T((2, 3), torch.float64, 2)
v1 = torch.special.chebyshev_polynomial_t(v0 * 3 + 9, torch.full((1,), 2**40, device=D))
v2 = torch.special.shifted_chebyshev_polynomial_u(v0 * 3 - 9, torch.full((1,), 2.0**40, device=D))
