# torch on jax lazy
#   v7: XLA's kernel of Fourier transforms refused the layout that the factorisation behind it wants
v1 = T((2, 2, 3, 3), torch.float64, 17, 't')
v3 = torch.ops.aten.fft_ihfft2.default(v1, dim=[3])
v4 = torch._foreach_div([v3, v3, T((2, 1, 3, 2), torch.float16, 55)], [2.0, 0.1, 1e-5])
torch.ops.aten.cosh_.default(v4[0])
v7 = torch.nuclear_norm(v4[1], False)
