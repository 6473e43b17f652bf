# torch on jax
#   a gradient: RuntimeError in linear_backward, "the unspecified dimension size -1 can be any value"
v0 = T((2, 0), torch.float32, 1).requires_grad_()
v1 = F.linear(v0, T((3, 0), torch.float32, 2))
v1.sum().backward()
v2 = v0.grad
