# stateful seed 7331210 on jax operations
array0 = np.ones(3)
def f(x, y=None):
    return x + torch.tensor(array0, dtype=torch.float32).to(D) + torch.tensor(2.0).to(D)
f = jit(f, compile="first")
with torch.inference_mode(): r0 = f(X((2, 3), 2))
with torch.inference_mode(): r1 = f(X((2, 3), 3))
