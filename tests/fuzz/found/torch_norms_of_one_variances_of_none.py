# torch on numpy
#   v0: values [0.0, inf], the CPU: [1e-30, 1e30]; v1: 0.0, the CPU: nan
v0 = torch.linalg.vector_norm(torch.tensor([[1e-30], [1e30]], device=D), 2, 1)
v1 = torch.var(T((0, 2), torch.float32, 2), 0, correction=-1)
