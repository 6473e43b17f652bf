# torch on numpy
#   raised OverflowError, the CPU: nothing
v0 = T((3, 0), torch.int32, 2).softmax(1)
v1 = T((0, 2), torch.int64, 2).log_softmax(0)
v2 = T((0, 3), torch.float32, 2).nonzero()
