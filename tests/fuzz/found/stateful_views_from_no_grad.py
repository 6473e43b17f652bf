# stateful seed 7302855 on jax operations
#   r0[1].grad: a tensor torch.float32 (3,) for None
a0 = leaf((2, 3), 2)
def f(x, y=None):
    v = x * 1.0
    return v[0], x[0]
f = torch.no_grad()(jit(f))
r0 = f(a0 * 1)
total(r0).backward()
w = leaf((2, 3), 3)
def g(x, y=None):
    v = x * 1.0 + w
    with torch.no_grad(): u = v[0]
    with torch.no_grad(): z = w[0]
    with torch.no_grad(): q = x[0].view(3, 1)
    return v, u, z, q
g = jit(g, compile="first")
s0 = g(a0 * 1)
s1 = g(a0 * 2)
total(s0).backward()
s2 = g(a0)
total(s1).backward()
total(s2).backward()
