# torch on numpy
#   v1: nan in windows beside the one with the infinity
v0 = T((2, 2, 3, 5), torch.float32, 16).requires_grad_()
v1 = torch.nn.functional.adaptive_avg_pool2d(v0, [2, 3])
v1.sum().backward()
v2 = F.adaptive_avg_pool3d(T((1, 2, 3, 4, 5), torch.float64, 48), [2, 3, 2])
