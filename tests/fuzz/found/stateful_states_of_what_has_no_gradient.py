# stateful seed 7320518 on jax operations
#   optimizer0.state[0]['momentum_buffer']: a tensor torch.float32 (3, 3) for nothing
net1 = net("running", 2)
optimizer0 = optim.SGD(net1.parameters(), lr=0.1, momentum=0.5)
def f(x, y=None):
    v = x
    optimizer0.zero_grad(); (v.sum().backward() if v.requires_grad else None); optimizer0.step()
f = jit(torch.enable_grad()(f), compile="first", check="always")
optimizer0.state[optimizer0.param_groups[0]["params"][0]].clear()
r0 = f(leaf((2, 3), 2))
