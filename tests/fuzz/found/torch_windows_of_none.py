# torch seed 10470162 on numpy
#   (v4 * v4).sum().backward(retain_graph=True): ValueError raised, the CPU: nothing
v2 = torch.ops.aten.special_erf.default(T((), torch.bool, 2))
v2.requires_grad_()
v4 = v2.unfold(-1, 0, 1)
(v4 * v4).sum().backward(retain_graph=True)
