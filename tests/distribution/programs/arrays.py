"""README's program on arrays, on each backend that is there."""

import tensorgraft as tg
import tensorgraft.array_api as xp

for device in tg.backends():
    x = xp.zeros((3, 4), device=device)
    x[1:].T[0] = 5.0
    tg.inplace_update(x, xp.ones((4,), device=x.device))
    gradient = tg.grad(lambda x: xp.sum(xp.sin(x) ** 2))(x)
    assert gradient.shape == (3, 4) and abs(float(gradient[0, 0]) - 0.9092974) < 1e-5, (device, gradient)
    doubled = tg.jit(lambda x: xp.sum(x * 2))(xp.ones(3, device=device))
    assert float(doubled) == 6, device
