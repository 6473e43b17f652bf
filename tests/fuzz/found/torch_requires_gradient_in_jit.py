# torch seed 9800050 on jax jit
#   v0.grad: none, the CPU: a tensor
v0 = T((2, 2, 3, 3), torch.float32, 2)
v0.requires_grad_()
(v0 * v0).sum().backward()
