"""The cold tier of a device whose memory the host cannot read: on copies, which are counted, for the first calls."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tensorgraft as tg
from tensorgraft.backends.jax import JaxBackend
from tensorgraft.frontends.torch.core.devices import slot_of
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.hub import host_copies, tiers
from tensorgraft.hub.deferred import start

Tensor = torch.Tensor


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[JaxBackend]:
    backend = start(slot_of(tg.device("jax")).backend)
    assert isinstance(backend, JaxBackend)
    monkeypatch.setattr(backend, "host_visible", False)
    with tg.eager("tiered"):
        yield backend


@pytest.fixture
def device(backend: JaxBackend) -> torch.device:
    return tg.device("jax")


def copies() -> tuple[int, int]:
    counts = tg.torch.copy_counts()
    return counts["to the host"], counts["to the device"]


def plans() -> int:
    return tg.torch.tier_counts()[1].total()


def on_device(t: Tensor) -> Tensor:
    """Move the storage of a tensor to the device, as a program of the device that reads it does."""
    assert cell_of(t).array is not None and cell_of(t).cold is None
    return t


def overwrite(array: Any) -> None:
    """Change the device's memory behind everybody's back."""
    ctypes.memset(array.unsafe_buffer_pointer(), 0xFF, array.nbytes)


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_the_host_reads_a_copy_made_once(backend: JaxBackend) -> None:
    array = backend.adopt(np.arange(64, dtype=np.int32))
    before = copies()
    kept = backend.lend(array)
    assert copies() == before  # of the values that it was made of
    overwrite(array)
    assert backend.lend(array) is kept and kept.tolist() == list(range(64))
    with backend.scope():
        other = backend.add(array, array)  # in the cold tier, on the copy
    assert np.asarray(backend.lend(other)).tolist() == list(range(0, 128, 2))
    assert copies() == (before[0], before[1] + 1)


def test_the_device_has_memory_of_its_own(backend: JaxBackend) -> None:
    values = np.arange(4096, dtype=np.float32)
    array = backend.adopt(values)
    assert array.unsafe_buffer_pointer() != values.ctypes.data
    values[:] = 0
    assert float(np.asarray(array)[7]) == 7
    assert backend.over_memory(np.zeros(4096, np.float32)) is None and backend.capsules([array]) is None


def test_copies_go_with_their_arrays(backend: JaxBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = backend._copies
    before = len(kept._copies), kept._nbytes
    array = backend.adopt(np.zeros(1000, np.float32))
    assert (len(kept._copies), kept._nbytes) == (before[0] + 1, before[1] + 4000)
    del array
    assert (len(kept._copies), kept._nbytes) == before
    monkeypatch.setattr(host_copies, "_MOST_BYTES", before[1] + 4000)
    arrays = [backend.adopt(np.full(600, n, np.float32)) for n in range(3)]
    assert kept._nbytes <= before[1] + 4000
    assert [float(backend.lend(x)[0]) for x in arrays] == [0, 1, 2]


def test_operands_on_the_device_are_copied_and_counted(device: torch.device) -> None:
    with tg.eager("compiled"):
        y = torch.arange(6.0, device=device) * 2
    before = copies()
    z = torch.special.i0e(y).add_(1)
    assert copies() == (before[0] + 1, before[1]) and cell_of(z).cold is not None
    overwrite(cell_of(y).array)
    torch.testing.assert_close(torch.special.i0e(y).cpu(), torch.special.i0e(torch.arange(0.0, 12, 2)))
    assert copies() == (before[0] + 1, before[1])


def test_a_step_on_the_host_copies_nothing(device: torch.device) -> None:
    before, made = copies(), plans()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.LayerNorm(7), nn.Linear(7, 2)).to(device)
    twin = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.LayerNorm(7), nn.Linear(7, 2))
    twin.load_state_dict({name: value.cpu() for name, value in net.state_dict().items()})
    data, seed = torch.randn(3, 5), torch.ones(3, 2)  # a number's seed may have a program of other tests
    for model, x, gradient in ((net, data.to(device), seed.to(device)), (twin, data, seed)):
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().backward(gradient)
            optimizer.step()
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.cpu(), b)
    assert (copies(), plans()) == (before, made)


def test_memory_that_others_may_write_is_the_devices(device: torch.device) -> None:
    """A copy would not see what they write."""
    x = torch.ones(16, device=device)
    view = torch.from_dlpack(x)
    assert cell_of(x).shared
    made = plans()
    view.mul_(3)
    assert torch.special.erfcx(x).cpu()[0] == pytest.approx(float(torch.special.erfcx(torch.tensor(3.0))))
    assert plans() == made + 1


# ---- when the device computes ----------------------------------------------------------------------------------------


def test_what_recurs_is_compiled(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "CALLS", 3)
    x = torch.linspace(0.1, 1, 23, device=device)
    made = plans()
    results = [torch.hypot(x, x) for _ in range(6)]
    assert plans() == made + 1 and [cell_of(y).cold is None for y in results] == [False] * 3 + [True] * 3
    for y in results:
        torch.testing.assert_close(y.cpu(), torch.linspace(0.1, 1, 23) * 2**0.5)


def test_copies_make_it_hot_sooner(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "CALLS", 2 * tiers.COPY + 1)
    x = on_device(torch.linspace(0.1, 1, 29, device=device))
    made = plans()
    torch.special.erfcx(x)
    assert plans() == made
    torch.special.erfcx(x)
    assert plans() == made + 1


def test_products_count_by_their_multiplications(device: torch.device) -> None:
    """Little memory, much work: at the first call already."""
    made = plans()
    small = torch.ones(37, 41, device=device) @ torch.ones(41, 43, device=device)
    assert cell_of(small).cold is not None and plans() == made
    large = torch.ones(1501, 1501, device=device)
    assert cell_of(large @ large).cold is None and plans() == made + 1


def test_large_tensors_begin_on_the_device(device: torch.device) -> None:
    large = torch.zeros(host_copies.MOST_ELEMENTS + 1).to(device)
    assert cell_of(large).cold is None and cell_of(torch.zeros(3).to(device)).cold is not None
    before = copies()
    assert not large[5:9].cpu().any() and copies()[0] == before[0]


PROGRAM = """
import sys, torch
import tensorgraft as tg
from tensorgraft.hub import registry
device = tg.device("jax")
x = torch.arange(6.0, device=device).reshape(2, 3).requires_grad_()
(x.exp() @ x.T).sum().backward()
y = torch.arange(6.0).reshape(2, 3).requires_grad_()
(y.exp() @ y.T).sum().backward()
torch.testing.assert_close(x.grad.cpu(), y.grad)
assert not registry.get("jax").host_visible and not tg.torch.copy_counts()
assert tg.torch.tier_counts()[0]["exp"] and not tg.torch.tier_counts()[1]
"""


@pytest.mark.parametrize("tier", ["none", "nobody"])
def test_by_the_environment(tier: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"TENSORGRAFT_EAGER": "tiered", "PYTHONPATH": os.pathsep.join(sys.path), "TENSORGRAFT_TIER": tier}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (tier == "none"), done.stderr
    assert tier == "none" or "expected TENSORGRAFT_TIER to be 'host' or 'none', got 'nobody'" in done.stderr
