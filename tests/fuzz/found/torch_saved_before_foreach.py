# torch on numpy
#   the gradient of what had been overwritten, without an error
v0 = T((3,), torch.float32, 2).requires_grad_()
v1 = v0 * 2
v2 = v1.sin()
with torch.no_grad():
    torch._foreach_mul_([v1], 3)
v2.sum().backward()
