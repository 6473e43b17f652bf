# stateful seed 7201968 on jax operations
#   r1 = f(a0, a0): RuntimeError raised for nothing: Trying to backward through the graph a second time
matrix0 = X((3, 3), 2)
leaf2 = leaf((3,), 2)
a0 = X((2, 3), 2)
def f(x, y=None):
    v = x * 1.0
    v = v - (leaf2)
    (v.sum().backward() if v.requires_grad else None)
    return matrix0, v
f = jit(f, compile="first", check="never")
leaf2 = leaf2 * 1
r1 = f(a0, a0)
