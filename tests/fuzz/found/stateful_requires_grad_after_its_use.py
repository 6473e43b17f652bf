# stateful seed 7600234 on jax operations
net0 = net("linear", 2)
leaf1 = leaf((3,), 2)
tensor2 = X((3,), 3)
a0 = X((2, 3), 2)
def f(x, y=None):
    v = net0(x) * leaf1 * tensor2
    net0.requires_grad_(False)
    leaf1.requires_grad_(False)
    tensor2.requires_grad_()
    return v + tensor2
f = jit(f, compile="first")
r0 = f(a0)
total(r0).backward()
r1 = f(a0)
net0.requires_grad_(True)
leaf1.requires_grad_(True)
tensor2.requires_grad_(False)
r2 = f(a0)
total(r2).backward()
