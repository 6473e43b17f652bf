# stateful seed 7660033 on jax operations
#   with torch.no_grad(): r1 = f(X((1, 3), 53).expand(1, 3), dict2): RecursionError raised for nothing
dict2 = {"a": X((3,), 2)}
def f(x, y=None):
    v = x * 1.0
    return (0.5, dict2, v)
f = jit(f, compile="first", check="always")
dict2["b"] = dict2
with torch.no_grad(): r1 = f(X((1, 3), 53).expand(1, 3), dict2)
r2 = f(X((3, 3), 53))
