"""`error_if`: raised eagerly, compiled, in loops and branches, under derivatives and batches, on every backend."""

import jax
import numpy as np
import pytest
import torch

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.hub import registry
from tensorgraft.transforms import cond, error_if, filter_checkpoint, scan, while_loop

pytestmark = pytest.mark.sampled

BACKENDS = [name for name in ("numpy", "jax", "torch", "tensorflow") if name in registry.backends()]
ON = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(autouse=True)
def graphs_run_as_they_are(monkeypatch):
    monkeypatch.setattr("tensorgraft.backends.torch.program.compiler", lambda: "none")


def array(a, backend):
    return xp.asarray(np.asarray(a, float), device=backend, copy=True)


def squares(x):
    x = error_if(x, x < 0, "negative")
    return xp.sum(x * x)


HOW = {
    "eager": lambda f: f,
    "jit": tg.jit,
    "grad": tg.grad,
    "jit of grad": lambda f: tg.jit(tg.grad(f)),
    "jit of the sum over a batch": lambda f: tg.jit(lambda x: xp.sum(tg.vmap(f)(xp.stack([xp.abs(x), x])))),
    "grad of that": lambda f: tg.grad(lambda x: xp.sum(tg.vmap(f)(xp.stack([xp.abs(x), x])))),
    "hessian": lambda f: tg.jit(tg.hessian(f)),
    "jvp": lambda f: lambda x: tg.jvp(f, (x,), (x,)),
    "checkpoint": lambda f: tg.jit(tg.grad(lambda x: filter_checkpoint(f)(x))),
}


@ON
@pytest.mark.parametrize("how", HOW)
def test_transforms(how, backend):
    f = HOW[how](squares)
    for _ in range(2):
        f(array([1.0, 2.0], backend))
    for _ in range(2):
        with pytest.raises(tg.CheckError, match=r"negative\n  error_if at test_error_if.py:\d+"):
            f(array([1.0, -2.0], backend))
    f(array([1.0, 2.0], backend))


def in_while(x):
    def body(s):
        return {"x": error_if(s["x"] * 2, s["x"] > 10, "large"), "n": s["n"] + 1}

    return while_loop(lambda s: s["n"] < 5, body, {"x": x, "n": 0})["x"]


def in_scan(x):
    def body(c, v):
        c = c * v
        error_if(c, xp.isnan(c), "nan")
        return error_if(c, c > 100, "large"), c

    return scan(body, x, xp.stack([x, x]))[0]


def in_scan_of_scans(x):
    return scan(lambda c, v: (in_scan(c), v), x, xp.stack([x, x]))[0]


def in_branches(x):
    return cond(x > 1, lambda x: error_if(x, x > 5, "large"), lambda x: error_if(-x, xp.isnan(x), "nan"), x)


@ON
@pytest.mark.parametrize("body", [in_while, in_scan, in_scan_of_scans, in_branches])
def test_loops_and_branches(body, backend):
    how = ["eager", "jit"] if body is in_while else ["eager", "jit", "jit of grad"]
    for name in how:
        f = HOW[name](body)
        for _ in range(2):
            f(array(0.5, backend))
        with pytest.raises(tg.CheckError, match="large"):
            f(array(9.0, backend))
        if body is not in_while:
            with pytest.raises(tg.CheckError, match="nan"):
                f(array(np.nan, backend))


@ON
def test_nothing_is_written_by_a_program_that_fails(backend):
    def step(x, y):
        x += 1
        error_if(x, xp.any(x > 10), "large")
        y[0] = 5.0
        return x * 2

    x, y = array([8.5], backend), array([0.0], backend)
    program = tg.jit(step)
    assert program(x, y).tolist() == [19.0] and x.tolist() == [9.5]
    y[0] = 0.0
    with pytest.raises(tg.CheckError):
        program(x, y)
    if backend != "numpy":  # which compiles nothing: what came before the check is written
        assert x.tolist() == [9.5]
    assert y.tolist() == [0.0]


@ON
def test_the_first_of_several(backend):
    def f(x):
        error_if(x, x > 1, "above one")
        return error_if(x, x > 2, "above two")

    for g in (f, tg.jit(f)):
        with pytest.raises(tg.CheckError, match="above one"):
            g(array(3.0, backend))


def test_a_condition_of_a_loop_has_no_checks():
    def f(x):
        return while_loop(lambda s: error_if(s, s > 5, "large") < 10, lambda s: s + 1, x)

    with pytest.raises(ValueError, match="move it into the body"):
        tg.jit(f)(array(0.0, "jax"))


def test_other_conditions():
    torch = pytest.importorskip("torch")
    assert error_if(3, False, "never") == 3
    for pred in (True, np.array([False, True]), jax.numpy.array(True), torch.tensor([True])):
        with pytest.raises(tg.CheckError, match="always"):
            error_if(3, pred, "always")
    for pred in (1, np.array([1.0]), torch.tensor([1]), xp.asarray(1, device="numpy")):
        with pytest.raises(TypeError, match="array of bools"):
            error_if(3, pred, "never")
    with pytest.raises(RuntimeError):  # it is one
        error_if(3, True, "always")


@pytest.mark.parametrize("device", ["cpu", "jax", "numpy"])
def test_tensors_of_pytorch(device):
    x = torch.ones(3, device=device if device == "cpu" else tg.device(device))
    assert error_if(x, x > 1, "too large") is x
    with pytest.raises(tg.CheckError, match=r"too large\n  error_if at test_error_if.py:\d+"):
        error_if(x, x > 0, "too large")
    if device == "jax":  # a compiled step has no value yet: an error of that, with the line
        with pytest.raises(tg.TracedValueError, match=r"test_error_if.py:\d+"):
            tg.jit(lambda x: error_if(x, x > 0, "too large").sum())(x)
