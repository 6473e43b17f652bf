# stateful seed 7201703 on jax operations
net1 = net("linear", 2)
optimizer0 = optim.AdamW(net1.parameters(), lr=0.1, eps=0.1)
def f(x, y=None):
    v = net1(x)
    if v.requires_grad: v.sum().backward()
    optimizer0.step()
    return v
f = jit(f)
r0 = f(X((2, 3), 5))
with torch.inference_mode(): r1 = f(X((2, 3), 2))
