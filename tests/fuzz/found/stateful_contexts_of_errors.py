# stateful seed 7400694 on jax operations
#   torch.utils.swap_tensors(leaf1, leaf((3,), 2)): RuntimeError raised for nothing: Expected use_count of t1 to be 1 or 2
leaf1 = leaf((3,), 2)
def f(x, y=None):
    v = x * 1.0
    print(v)
    return [][0]
f = jit(f, check="never")
r0 = f(leaf1[None])
torch.utils.swap_tensors(leaf1, leaf((3,), 2))
