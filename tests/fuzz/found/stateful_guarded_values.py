# stateful seed 7400939 on jax operations
#   tensorflow: NotImplementedError raised for nothing: Cannot convert a symbolic tf.Tensor (Placeholder:0) to a numpy array
def f(x, y=None):
    v = x * 1.0
    return torch.distributions.Normal(v.float(), v.detach().float().abs() + 0)
f = jit(f, guard_values=True)
r0 = f(nn.Parameter(X((2, 3), 2)))
def g(x, y=None):
    v = x * 1.0
    return v * 2 if v.sum() > 0 else v * 3
g = jit(g, guard_values=True, compile="first")
s = [g(X((2, 3), s)) for s in (2, 3, 4, 5, 6)]
s2 = [g(X((2, 3), s)) for s in (2, 3, 4, 5, 6)]
