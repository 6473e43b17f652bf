# stateful seed 7610781 on jax operations
helper0 = functools.lru_cache(lambda v: v * 1.5)
helper1 = functools.partial(torch.mul, other=2.0)
helper2 = functools.lru_cache(lambda v: v * 1.5)
def f(x, y=None):
    v = x * getattr(helper0, "k", 0.5) + helper0(torch.full((1,), 0.5, device=D))
    helper0.k = 2.5
    return v
def g(x, y=None):
    return x * getattr(helper1, "k", 0.5) + getattr(helper2, "k", 0.5)
f, g = jit(f), jit(g, compile="first")
r0 = f(X((2, 3), 58))
r1 = g(X((2, 3), 58))
helper1.k = 1.5
r2 = g(X((2, 3), 58))
helper2.k = 1.5
r3 = g(X((2, 3), 58))
