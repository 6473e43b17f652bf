# torch on numpy
#   v0: a result, the CPU: RuntimeError
v0 = torch.unique_consecutive(T((3, 0), torch.int32, 2), return_counts=True, dim=0)
v1 = torch.unique_consecutive(T((3, 0), torch.int32, 2), return_counts=True, dim=1)
