# torch seed 10501340 on numpy
#   v3.sum().backward(): ZeroDivisionError raised, the CPU: nothing
v1 = T((0, 3, 2), torch.float64, 2)
v1.requires_grad_()
v2 = torch._C._nn.mse_loss(v1, T((0, 3, 2), torch.float64, 2), 1)
v3 = torch._C._nn.huber_loss(v1, T((0, 3, 2), torch.float64, 2), 1)
v4 = torch._C._nn.smooth_l1_loss(v1, T((0, 3, 2), torch.float64, 2), 1)
(v2 + v3 + v4).sum().backward()
