# torch on numpy
#   v1 = v0.scatter_add(...): ValueError raised, the CPU: nothing
v0 = T((), torch.float32, 1)
v1 = v0.scatter_add(0, torch.zeros((), dtype=torch.long, device=D), T((6,), torch.float32, 1))
v2 = v0.scatter(0, torch.zeros((), dtype=torch.long, device=D), T((6,), torch.float32, 1))
v3 = T((4,), torch.float32, 1).scatter(0, torch.zeros((), dtype=torch.long, device=D), T((3,), torch.float32, 1))
v4 = T((4,), torch.float32, 1).scatter_reduce(0, torch.zeros((1,), dtype=torch.long, device=D), T((), torch.float32, 1), "amax")
