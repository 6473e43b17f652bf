# torch on numpy
#   v1: values [nan], the CPU: [0.0]
v0 = (T((3, 3), torch.float64, 2) * 100).log1p_().requires_grad_()
v1 = torch._C._nn.multi_margin_loss(v0, I((3,), 3, 9), weight=T((3,), torch.float64, 2, 'e'), reduction=0)
v2 = torch._C._nn.multi_margin_loss(v0, I((3,), 3, 9), 2, reduction=2)
v2.backward()
