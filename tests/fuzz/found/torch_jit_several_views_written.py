# torch seed 9803296 on tensorflow jit
#   RuntimeError raised, the CPU: nothing
v0 = T((2, 2, 3, 3), torch.float32, 2, 's')
v0.requires_grad_()
v1 = v0.chunk(2, -0)
with torch.no_grad(): v0.mul_(0.5)
