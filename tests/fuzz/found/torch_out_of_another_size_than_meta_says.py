# torch on tensorflow
#   torch.nansum(v0, [], dtype=None, out=T((0,), torch.float32)): RecursionError raised, the CPU: nothing
v0 = T((4,), torch.float32, 2)
v1 = T((0,), torch.float32)
torch.nansum(v0, [], dtype=None, out=v1)
v2 = T((), torch.float32, 2)
torch.nansum(v0, [], out=v2)
