"""What an accelerator reports late: its arrays come back before they are computed, and who reads them gets the error.

A CPU reports at once. Arrays whose memory is gone are like those of a failed computation: each read of them raises.
"""

from __future__ import annotations

import pytest
import torch

import tensorgraft as tg

LATE = (RuntimeError, ValueError)  # JAX's own, of which both are


@pytest.fixture(autouse=True)
def as_on_an_accelerator():
    with tg.eager("compiled"):
        yield


def failed(*shape: int) -> torch.Tensor:
    """A tensor whose computation has failed, which nobody knows yet."""
    x = torch.ones(*shape, device=tg.device("jax")) * 2
    tg.to_backend_array(x).delete()
    return x


READS = {
    "item": lambda x: x[0, 0].item(),
    "cpu": lambda x: x.cpu(),
    "repr": repr,
    "an operator": lambda x: (x + 1).cpu(),
    "a view": lambda x: x.t()[1:].sum().item(),
    "numpy": lambda x: x.numpy(force=True),
    "a copy": lambda x: torch.empty_like(x).copy_(x).cpu(),
    "compiled": tg.jit(lambda x: x.sum()),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_each_read_raises(read):
    x = failed(3, 4)
    for _ in range(2):
        with pytest.raises(LATE):
            read(x)


def test_a_write_that_fails_leaves_no_mark():
    x = failed(3)
    with pytest.raises(LATE):
        x.add_(1)
    assert x._version == 0


def test_what_is_written_anew_is_whole_again():
    x = failed(3)
    view = x[1:]
    assert x.fill_(5).tolist() == [5, 5, 5] and view.tolist() == [5, 5]


def test_a_training_step_goes_on_from_a_state_that_is_loaded():
    device = tg.device("jax")
    model = torch.nn.Linear(3, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.ones(2, 3, device=device)

    @tg.jit
    def step():
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    step()
    kept = {name: value.cpu() for name, value in model.state_dict().items()}
    wanted = step()
    tg.to_backend_array(model.weight.detach()).delete()
    for _ in range(2):
        with pytest.raises(LATE):
            step().item()
    model.load_state_dict(kept)
    torch.testing.assert_close(step().cpu(), wanted.cpu())
