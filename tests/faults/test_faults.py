"""A sample of the faults (`make faults` injects ten thousand), and what holds them."""

import errno
import gc
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import tests.faults.other_scenarios  # noqa: F401  (which adds to SCENARIOS)
import torch
from tests.faults import long_runs
from tests.faults.campaign import Trial, places
from tests.faults.injection import KINDS, Kind, installed
from tests.faults.scenarios import SCENARIOS

import tensorgraft as tg
from tensorgraft.backends.jax.compilation.cache_entries import Entries
from tensorgraft.interrupts import all_or_none, held_back

NAMED = {scenario.name: scenario for scenario in SCENARIOS}
# of each scenario some places, of which the last ones write
SAMPLE = [
    ("in place through a view", "numpy", "tiered"),
    ("in place through a view", "jax", "tiered"),
    ("foreach", "numpy", "tiered"),
    ("foreach", "torch", "tiered"),
    ("foreach", "jax", "compiled"),
    ("backward", "numpy", "tiered"),
    ("Adam, foreach: step", "numpy", "tiered"),
    ("AdamW, fused: step", "jax", "tiered"),
    ("tg.jit of what writes: first call", "jax", "tiered"),
    ("tg.jit of what writes: call", "jax", "tiered"),
    pytest.param("tg.jit, AdamW and a schedule: first call", "jax", "tiered", marks=pytest.mark.slow),
    pytest.param("lazy: a step and a flush", "jax", "tiered", marks=pytest.mark.slow),
    ("arrays: tg.jit, call", "jax", "tiered"),
    ("arrays: in place", "numpy", "tiered"),
    ("a checkpoint", "numpy", "tiered"),
    ("quantize_", "numpy", "tiered"),
]
FEW = {"tg.jit of what writes: first call": 2}


@pytest.fixture(scope="module")
def injector():
    with installed(("numpy", "jax", "torch")) as injector:
        yield injector


@pytest.mark.parametrize(("name", "backend", "mode"), SAMPLE, ids=lambda x: str(x))
def test_state_is_whole(injector, name, backend, mode):
    trial = Trial(injector, NAMED[name], backend, mode)
    count = len(trial.count())
    wrong, injected = [], 0
    for kind in (Kind("error"), Kind("memory"), Kind("interrupt", after=True)):
        for at in places(count, FEW.get(name, 4)):
            fired, _, where, what = trial.fault(at, kind)
            injected += fired
            if what:
                wrong.append(f"{kind} at {at} ({where}): {what}")
    assert not wrong
    assert injected


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("in place through a view", "numpy"),
        ("backward", "torch"),
        ("arrays: tg.jit, call", "jax"),
        ("tg.jit of what writes: first call", "torch"),
        ("backward outside of tg.jit", "torch"),
        pytest.param("backward outside of tg.jit", "jax", marks=pytest.mark.slow),
    ],
)
def test_nothing_leaks(injector, name, backend):
    trial = Trial(injector, NAMED[name], backend, "tiered")
    injected, what = trial.leaks(len(trial.count()))
    gc.unfreeze()
    assert injected
    assert not what


def test_an_interrupt_waits_for_what_is_to_be_whole():
    seen = []
    with pytest.raises(KeyboardInterrupt), held_back():
        signal.raise_signal(signal.SIGINT)
        with held_back():  # that of something inside
            seen.append("inside")
        seen.append("done")
    assert seen == ["inside", "done"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_interrupt_does_not_wait():
    seen = []
    with pytest.raises(KeyboardInterrupt), held_back():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        seen.append("done")
    assert not seen
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_goes_before_an_interrupt():
    with pytest.raises(KeyboardInterrupt) as caught, held_back():
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError("first")
    assert isinstance(caught.value.__context__, ValueError)


def test_together():
    written, attempts = [], []

    def write(n):
        attempts.append(n)
        if attempts == [1, 2]:
            raise MemoryError
        written.append(n)

    with pytest.raises(MemoryError):
        all_or_none(write, [1, 2, 3])
    assert written == [1, 2, 3]


@pytest.mark.parametrize(("backend", "point"), [("jax", "the cold tier"), ("numpy", "assign"), ("torch", "assign")])
def test_versions_of_what_was_written(injector, backend, point):
    """Autograd is told of a tensor that was written before its operator raised."""
    x = torch.ones(3, device=tg.device(backend))
    w = torch.ones(3, device=x.device, requires_grad=True)
    x.mul_(1)
    (w * x).sum()  # after it memory that is lent may be asked for, which is counted too
    with injector.counting() as names:
        x.mul_(1)
    y = (w * x).sum()
    with pytest.raises(RuntimeError, match="injected"), injector.raising(names.index(point) + 1, KINDS[1], backend):
        x.mul_(2)
    np.testing.assert_array_equal(x.cpu(), [2, 2, 2])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_entries_of_the_cache(tmp_path):
    """One that is not whole is none, and makes way for another."""
    entries = Entries(str(tmp_path))
    entries.put("a", b"program")
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    assert entries.get("a") == b"program"
    assert entries.get("b") is None
    for broken in (whole[:-3], b"", whole[:3] + bytes([whole[3] ^ 1]) + whole[4:], b"program"):
        file.write_bytes(broken)
        assert entries.get("a") is None
        assert not file.exists()
    entries.put("a", b"program")
    assert file.read_bytes() == whole


def test_a_full_disk(tmp_path, monkeypatch):
    def full(self, content):
        with self.open("wb") as file:
            file.write(content[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        Entries(str(tmp_path)).put("a", b"program")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:.*runs uncompiled")
@pytest.mark.parametrize("backend", [pytest.param("jax", marks=pytest.mark.slow), "torch"])
def test_threads_that_share_a_compiled_function(backend):
    outcome = long_runs.threads(backend, "jit", 32, 1)
    assert outcome["wrong"] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", list(long_runs.ALONE))
def test_processes(name, tmp_path):
    assert long_runs.ALONE[name](tmp_path)["wrong"] == []
