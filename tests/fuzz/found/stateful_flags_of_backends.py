# stateful seed 7302914 on jax operations
#   r2: [-0.125] for [5.875]
def f(x, y=None):
    v = x
    v = v + (torch.backends.cudnn.benchmark * 1.0)
    return v.sum()
f = jit(torch.enable_grad()(f), guard_values=True)
r0 = f(X((2, 6), 2)[:, ::2])
torch.backends.cudnn.benchmark = True
r2 = f(X((2, 6), 2)[:, ::2])
def h(x, y=None):
    with torch.backends.cudnn.flags(benchmark=True): v = x + torch.backends.cudnn.benchmark * 1.0
    return v.sum() + torch.backends.cudnn.deterministic
def g(x):
    v = x + torch.backends.cudnn.benchmark * 1.0
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
    return v
h = jit(h)
g = jit(g)
s0 = h(X((2, 3), 2)), g(X((2, 3), 2)), torch.backends.cudnn.benchmark
s1 = h(X((2, 3), 2)), g(X((2, 3), 2)), torch.backends.cudnn.benchmark
torch.backends.cudnn.benchmark = True
s2 = h(X((2, 3), 2)), g(X((2, 3), 2)), torch.backends.cudnn.benchmark
s3 = h(X((2, 3), 2)), g(X((2, 3), 2)), torch.backends.cudnn.benchmark
