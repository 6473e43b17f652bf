# torch on numpy
#   v1: memory shared with v1, the CPU: v0
v0 = T((2, 2, 3), torch.float32, 2)
v1 = v0.unflatten(-1, (-1, 1))
torch.add(T((2,), torch.float32, 2), 1, out=v1)
v2 = T((4, 2), torch.float64, 2, "s").squeeze(0)
torch.sum(T((2, 0), torch.float64, 2), 0, out=v2)
