# stateful seed 770107 on jax operations
#   r0 = f(X((2, 3), 46), Frozen(X((3,), 46), 2)): AttributeError raised for nothing: 'NoneType' object has no attribute 'as_subclass'
leaf1 = leaf((3,), 2)
def f(x, y=None):
    v = x * 1.0
    v.requires_grad_()
    return (v, leaf1, v)
f = jit(f, compile="first")
r0 = f(X((2, 3), 46), Frozen(X((3,), 46), 2))
r1 = f(X((2, 3), 46), Frozen(X((3,), 46), 2))
