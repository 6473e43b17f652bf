# torch on tensorflow
#   ValueError raised, the CPU: nothing
v0 = T((0, 2), torch.float32, 2)
v1 = v0.tile([-2, 0])
