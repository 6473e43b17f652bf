# stateful seed 96082582058 on jax operations
#   r0[0].y.grad: nothing for None
net2 = net("scaled", 2)
def f(x, y=None):
    v = x
    (v.retain_grad() if v.requires_grad else None)
    v = net2(v)
    return [Record(v, v), x]
f = jit(f, compile="first")
r0 = f(X((2, 3), 74), Slots(X((3,), 74), 2))
r1 = f(first(r0))
