"""A PyTorch program without JAX: on NumPy and on PyTorch itself."""

import torch

import tensorgraft as tg

for name in tg.backends():
    device = tg.device(name)
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
    for _ in range(5):
        x = torch.randn(32, 8).to(device)
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.isfinite().item() and str(loss.device).startswith("graft")

try:
    tg.device("jax")
except tg.BackendNotAvailableError as error:
    assert 'pip install "tensorgraft[jax]"' in str(error)
