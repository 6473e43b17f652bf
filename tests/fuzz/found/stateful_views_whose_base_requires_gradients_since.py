# stateful seed 7302709 on jax operations
#   r0.y: requires_grad False for True
record0 = Plain(X((3,), 68), 2)
a0 = X((2, 3), 2)
def f(x, y=None):
    v = x * 1.0
    x.requires_grad_()
    v = v + (0.5 if y is None else sum(y))
    return Record(v, Plain(x, record0))
f = jit(f)
r0 = f(a0, [a0[0]])
