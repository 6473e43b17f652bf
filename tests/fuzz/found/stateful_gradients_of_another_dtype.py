# stateful seed 7601795 on jax operations
leaf0 = leaf((3,), 63)
optimizer0 = optim.RMSprop([leaf0], lr=0.1, eps=0.1)
a0 = X((2, 3), 17)
def f(x, y=None):
    v = x * 1.0
    v = v * (optimizer0.param_groups[-1]["params"][0].detach().sum())
    v = v + (sum(len(g["params"]) for g in optimizer0.param_groups))
    v = v - (optimizer0.param_groups[0]["lr"])
    leaf0.grad = leaf0.detach() * 2.0
    return frozenset({3}), v
f = jit(f, compile="first", check="always")
a0.requires_grad_(False)
r0 = f(a0)
a0.requires_grad_(False)
r1 = f(a0)
optimizer0.state.clear()
r2 = f(a0)
leaf0.data = X((3,), 84, 'float64')
optim.lr_scheduler.ExponentialLR(optimizer0, 0.5).step()
with torch.enable_grad(): r3 = f(a0[:1])
with torch.inference_mode(): r4 = f(a0)
