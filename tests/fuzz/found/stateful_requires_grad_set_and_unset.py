# stateful seed 7604058 on jax operations
net1 = net("running", 2)
def outer():
    def f(x, y=None):
        v = x * 1.0
        net1.requires_grad_(True)
        v = net1(v)
        net1.requires_grad_(False)
        return x.detach(), v
    return f
f = outer()
f = jit(f, compile="first", check="always")
r1 = f(X((3, 2), 2).t())
a0 = X((2, 3), 2)
with torch.enable_grad(): r2 = f(a0)
