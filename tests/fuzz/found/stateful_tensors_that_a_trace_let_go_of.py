# stateful seed 7301737 on jax operations
#   torch.utils.swap_tensors(leaf0, leaf((3,), 2)): RuntimeError raised for nothing: Cannot swap t1 because it has weakref
leaf0 = leaf((3,), 2)
leaf2 = leaf((3,), 2)
optimizer0 = optim.Adam([leaf0], lr=0.1, eps=0.1)
def f(x, y=None):
    v = x * 1.0
    (v.pow(1).mean().backward(retain_graph=True) if v.requires_grad else None); optimizer0.step()
f = jit(f)
r0 = f(leaf2[None], [X((3,), 2), 0.5])
torch.utils.swap_tensors(leaf0, leaf((3,), 2))
