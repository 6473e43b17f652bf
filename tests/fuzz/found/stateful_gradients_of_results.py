# stateful seed 7620358 on jax operations
leaf2 = leaf((3,), 2)
a0 = X((2, 3), 2)
def f(x, y=None):
    v = x * leaf2
    v.retain_grad()
    v.sum().backward()
    return v
f = jit(f, compile="first")
def g(x, y=None):
    x.requires_grad_()
    return x[0], x * 2
g = jit(g, compile="first")
r0 = f(X((2, 3), 93))
r1 = f(X((2, 3), 93))
r2 = g(a0[:1])
total(r2).backward()
r3 = g(a0[:1])
