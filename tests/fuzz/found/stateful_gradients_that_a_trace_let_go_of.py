# stateful seed 7302629 on jax operations
#   torch.utils.swap_tensors(leaf0, leaf((3,), 2)): RuntimeError raised for nothing: Cannot swap t1 because it has weakref
leaf0 = leaf((3,), 2)
a0 = leaf((2, 3), 2)
def f(x, y=None):
    v = x
    v = v * (leaf0.detach())
    v = v + (leaf0)
    (v.sum().backward() if v.requires_grad and 4 > 0 else None)
    return v.sum()
f = jit(f, compile="first")
r0 = f(a0)
torch.utils.swap_tensors(leaf0, leaf((3,), 2))
