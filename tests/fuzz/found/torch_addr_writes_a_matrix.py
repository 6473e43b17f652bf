# torch on numpy
#   v0: shape (3, 3), the CPU: RuntimeError (2D tensor expected, got 1D tensor for input)
v0 = T((3,), torch.float32, 2)
v0.addr_(v0, v0)
v1 = torch.addr(T((4, 4), torch.float32, 2), v0, v0, out=T((3, 3), torch.float32, 5))
