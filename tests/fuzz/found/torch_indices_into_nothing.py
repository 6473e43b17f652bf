# torch seed 10467022 on numpy
#   v1 = torch.index_add(...): RuntimeError raised, the CPU: nothing
v0 = T((0, 2, 5), torch.float32, 2)
v1 = torch.index_add(v0, -3, I((1,), 0, 46), T((1, 2, 5), torch.float32, 2), alpha=1.0)
v2 = torch.index_add(T((3, 0), torch.float32, 2), 1, I((1,), 0, 46), T((3, 1), torch.float32, 2))
v3 = torch.index_reduce(T((3, 0), torch.float32, 2), 0, torch.tensor([7], device=D), T((1, 0), torch.float32, 2), "prod")
