# stateful seed 7620724 on jax operations
box0 = Box(t=X((2, 3), 5), u=X((2, 3), 6))
tensor1 = X((3, 3), 5)[1]
leaf2 = leaf((2, 3), 6)
a0 = X((2, 3), 2)
def f(x, y=None):
    made = x.detach().requires_grad_(), nn.Parameter(x.detach()), tensor1[1:], tensor1.detach()
    made += nn.Parameter(tensor1), leaf2.detach().requires_grad_(), box0.t.detach(), box0.u.detach().requires_grad_()
    box0.t = box0.t * 0.5
    box0.u = box0.u * 0.5
    return made
f = jit(f, compile="first")
r0 = f(X((2, 3), 2))
r1 = f(a0)
r2 = f(a0)
total(r2).backward()
for t in tensors(r2): t.data.mul_(0.5)
