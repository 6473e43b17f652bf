# torch seed 9820675 on jax jit
#   RuntimeError raised, the CPU: nothing
v0 = T((3,), torch.float32, 2, 't')
v1 = T((2,), torch.float32, 2, 't')
v2 = T((2, 3), torch.float32, 2)
torch.ops.aten.max.unary_out(v0, out=v1)
v1.requires_grad_()
v1.backward(T((), torch.float32, 2), retain_graph=True)
v2.t_()
v2.requires_grad_()
(v2 * 2).sum().backward()
