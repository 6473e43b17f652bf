"""A sample of the faults (`make faults` injects ten thousand), and what holds them."""

import os
import signal

import numpy as np
import pytest
import tests.faults.other_scenarios  # noqa: F401  (which adds to SCENARIOS)
import torch
from tests.faults.campaign import Trial, places, storages
from tests.faults.injection import KINDS, Kind, installed
from tests.faults.scenarios import SCENARIOS

import tensorgraft as tg
from tensorgraft.interrupts import held_back, together

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
    ("tg.jit, AdamW and a schedule: first call", "jax", "tiered"),
    ("tg.jit, AdamW and a schedule: call", "jax", "tiered"),
    ("lazy: a step and a flush", "jax", "tiered"),
    ("arrays: tg.jit, call", "jax", "tiered"),
    ("arrays: in place", "numpy", "tiered"),
    ("a checkpoint", "numpy", "tiered"),
    ("quantize_", "numpy", "tiered"),
]
FEW = {"tg.jit, AdamW and a schedule: first call": 2, "lazy: a step and a flush": 2}


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


def test_nothing_leaks(injector):
    trial = Trial(injector, NAMED["in place through a view"], "numpy", "tiered")
    count = len(trial.count())

    def faults():
        for kind in KINDS:
            for at in range(1, count + 1):
                assert trial.fault(at, kind)[3] == ""
        trial.state = None

    faults()
    before = storages()
    faults()
    assert storages() <= before


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
        together(write, [1, 2, 3])
    assert written == [1, 2, 3]


@pytest.mark.parametrize("backend", ["jax", "numpy", "torch", "tensorflow"])
def test_versions_of_what_was_written(backend, monkeypatch):
    """Autograd is told of a tensor that was written before its operator raised."""
    x = torch.ones(3, device=tg.device(backend))
    w = torch.ones(3, device=x.device, requires_grad=True)
    y = (w * x).sum()
    from tests.faults.injection import injector, wrapped

    cls = type(x.untyped_storage().cell.backend)
    from tensorgraft.frontends.torch.dispatch import cold

    if backend in ("numpy", "torch"):
        monkeypatch.setattr(cls, "assign", wrapped(cls.assign, "assign"))
    else:
        monkeypatch.setattr(cold.ColdOperator, "_run_on_cpu", wrapped(cold.ColdOperator._run_on_cpu, "cold"))
        if backend == "tensorflow":
            pytest.skip("what it writes is a new array")
    with pytest.raises((RuntimeError, KeyboardInterrupt)), injector.raising(1, Kind("error", after=True), ""):
        x.mul_(2)
    np.testing.assert_array_equal(x.cpu(), [2, 2, 2])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
