# stateful seed 7400004 on jax operations
#   r0['a']: inference True for False
a0 = X((2, 3), 2)
leaf0 = leaf((2, 3), 3)
def f(x, y=None):
    v = x * 1.0
    v = torch.func.grad(lambda a: (a * a).sum())(v)
    return Bag(a=v, b=0)
def g(x):
    with torch.inference_mode(False): (leaf0.clone() * 2).sum().backward()
    with torch.inference_mode(False): w = leaf0 * 2
    return w, x * 2
f, g, h = jit(torch.no_grad()(f)), jit(g, compile="first"), jit(torch.inference_mode()(f))
with torch.inference_mode(): r0 = f(a0), g(a0), h(a0)
with torch.inference_mode(): r1 = f(a0), g(a0), h(a0)
total(r1).backward()
r2 = f(a0), g(a0), h(a0)
