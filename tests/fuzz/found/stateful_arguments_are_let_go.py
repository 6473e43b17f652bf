# stateful seed 7600264 on jax operations
leaf1 = leaf((3,), 2)
dict3 = {"a": 2}
def f(x, y=None):
    if len(dict3) == 3: raise KeyError("two")
f = jit(f)
with torch.no_grad(): r0 = f(leaf1[None])
torch.utils.swap_tensors(leaf1, leaf((3,), 2))
