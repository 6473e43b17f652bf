# torch on numpy
#   mul_(-1.5) of integers truncated, the CPU: RuntimeError; lt_ with a larger tensor: ValueError
v0 = T((3,), torch.int32, 2)
v0.mul_(-1.5)
v0[0].mul_(0.5)
v0.add_(T((), torch.float32, 2))
torch._foreach_mul_([v0], 1.5)
v1 = T((1,), torch.bool, 2)
v1.lt_(T((1, 3), torch.bool, 2))
v1.lt_(T((1,), torch.float64, 2))
