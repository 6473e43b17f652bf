# stateful seed 7332805 on jax operations
leaf1 = leaf((3,), 2)
a0 = X((2, 3), 2)
def f(x, y=None):
    v = torch.tanh(x + leaf1)
    return v, v
f = jit(f)
r0 = f(a0)
r1 = f(a0)
total(r1).backward()
