"""Arrays that a transformed function moves, makes of other arrays or exports: no derivative is lost on the way."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.transforms.test_gradients import BACKENDS, ON, array, close, graphs_run_as_they_are  # noqa: F401

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.errors import TracedValueError

X = np.array([1.0, 2.0, 3.0])
F = Callable[..., Any]

pytestmark = pytest.mark.sampled


def _elsewhere(backend: str) -> str:
    return next(name for name in reversed(BACKENDS) if name != backend)


def _written(x: Any, other: str) -> Any:
    out = xp.zeros(3, device=other)
    out[...] = x.to_device(other) ** 2
    return out


def _set(x: Any) -> Any:
    out = xp.zeros(3, device=x.device)
    out[0] = x[0] ** 2
    out[1:] = xp.asarray([x[1] ** 2, x[2] ** 2])
    return out


# each of x ** 2
SQUARES: dict[str, Callable[[Any, str], Any]] = {
    "to its own device": lambda x, _: x.to_device(x.device) ** 2,
    "asarray(device=), its own": lambda x, _: xp.asarray(x, device=x.device, copy=True) ** 2,
    "astype(device=)": lambda x, o: xp.astype(xp.astype(x, xp.float64, device=x.device), xp.float64, device=o) ** 2,
    "round trip": lambda x, o: x.to_device(o).to_device(x.device) ** 2,
    "computed there": lambda x, o: (x.to_device(o) ** 2).to_device(x.device),
    "left there": lambda x, o: x.to_device(o) ** 2,
    "from_dlpack": lambda x, o: xp.from_dlpack(x, device=o) ** 2,
    "beside an array of there": lambda x, o: xp.ones(3, device=o) * x.to_device(o) ** 2,
    "written there": _written,
    "set by arrays": lambda x, _: _set(x),
    "list": lambda x, _: xp.asarray([x[0], x[1], x[2]]) ** 2,
    "nested, with numbers": lambda x, _: xp.asarray([[x[0], x[1]], (x[2], 0.0)], device=x.device) ** 2,
    "list, elsewhere": lambda x, o: xp.asarray((x[0].to_device(o), x[1], x[2]), device=o) ** 2,
    "full": lambda x, o: xp.stack([xp.full((), x[i], device=o) for i in range(3)]) ** 2,
    "full_like": lambda x, _: xp.stack([xp.full_like(x[0], x[i]) for i in range(3)]) ** 2,
    "full, complex": lambda x, _: xp.real(xp.stack([xp.full((), x[i], dtype=xp.complex128) for i in range(3)]) ** 2),
}


@ON
@pytest.mark.parametrize("way", SQUARES)
def test_derivatives_of_moves(backend: str, way: str) -> None:
    square, other, x = SQUARES[way], _elsewhere(backend), array(X, backend)

    def squares(x: Any) -> Any:
        return square(x, other)

    def total(x: Any) -> Any:
        return xp.sum(squares(x))

    gradient = tg.grad(total)(x)
    assert gradient.device == backend
    close(gradient, 2 * X)
    close(tg.jit(tg.grad(total))(x), 2 * X)
    close(tg.hessian(total)(x), 2 * np.eye(3))
    close(xp.sum(xp.reshape(tg.jacobian(squares)(x), (-1, 3)), axis=0), 2 * X)
    close(xp.sum(tg.jvp(squares, (x,), (array(np.ones(3), backend),))[1]), 12.0)
    out, pullback = tg.vjp(squares, x)
    assert out.device == squares(x).device
    close(pullback(xp.ones_like(out))[0], 2 * X)
    if way not in ("written there", "set by arrays"):
        close(tg.vmap(total)(xp.stack([x, x])), [14.0, 14.0])


@ON
def test_compiled_functions_move_their_results(backend: str) -> None:
    other, x = _elsewhere(backend), array(X, backend)
    both = tg.jit(lambda x: (x.to_device(other), x * 2))
    for factor in (1, 2):
        there, here = both(x * factor)
        assert (there.device, here.device) == (other, backend)
        close(there, X * factor)
        close(here, X * factor * 2)
    outside = array(X, other)
    if backend != "numpy":  # which compiles nothing
        with pytest.raises(ValueError, match=f"on {backend}.*{other}"):
            tg.jit(lambda x: x.to_device(other) * outside)(x)


@ON
def test_rules_loops_and_inner_derivatives_on_another_device(backend: str) -> None:
    other, x = _elsewhere(backend), array(X, backend)
    cube = tg.custom_vjp(lambda a: a.to_device(other) ** 3, lambda args, out, g: (5 * args[0] * g.to_device(backend),))
    close(tg.grad(lambda x: xp.sum(cube(x)))(x), 5 * X)
    there = tg.custom_vjp(lambda a: a**3, lambda args, out, g: (5 * args[0] * g,))
    close(tg.grad(lambda x: xp.sum(there(x.to_device(other))))(x), 5 * X)
    inner = tg.grad(lambda y: xp.sum(y**3))
    close(tg.grad(lambda x: xp.sum(inner(x.to_device(other))))(x), 6 * X)

    def loop(x: Any) -> Any:
        def step(total: Any, row: Any) -> Any:
            return total + row.to_device(other) ** 2, row.to_device(other)

        return tg.scan(step, (0 * x[0]).to_device(other), x)

    close(tg.grad(lambda x: loop(x)[0])(x), 2 * X)
    total, rows = tg.jit(loop)(x)
    assert (total.device, rows.device) == (other, other)
    close(total, 14.0)
    close(tg.jit(tg.grad(lambda x: loop(x)[0]))(x), 2 * X)


@ON
def test_what_is_written_on_another_device(backend: str) -> None:
    other = _elsewhere(backend)
    sums = array(np.ones(3), other)

    def total(x: Any) -> Any:
        sums[...] += 2 * x.to_device(other)
        return xp.sum(x)

    tg.grad(total)(array(X, backend))
    assert sums.device == other
    close(sums, 1 + 2 * X)


EXPORTS: dict[str, F] = {
    "numpy": np.asarray,
    "several": lambda x: np.array([x[0], x[1]]),
    "moved": lambda x: np.asarray(x.to_device(_elsewhere(str(x.device)))),
    "without a standard": lambda x: np.percentile(x, 50),
    "float": lambda x: float(x[0]),
    "complex": lambda x: complex(x[0]),
    "math": lambda x: math.exp(x[0]),
    "tolist": lambda x: x.tolist(),
    "item": lambda x: x[0].item(),
    "pickle": pickle.dumps,
    "dlpack": np.from_dlpack,
}
DERIVATIVES: dict[str, F] = {
    "grad": tg.grad,
    "jacobian": tg.jacobian,
    "hessian": tg.hessian,
    "vjp": lambda f: lambda x: tg.vjp(f, x),
    "jvp": lambda f: lambda x: tg.jvp(f, (x,), (x,)),
    "jit of grad": lambda f: tg.jit(tg.grad(f)),
}


@ON
@pytest.mark.filterwarnings("ignore::tensorgraft.errors.FallbackWarning")
def test_exports_raise_where_they_would_lose_a_derivative(backend: str) -> None:
    """As in JAX, which raises TracerArrayConversionError and ConcretizationTypeError."""
    x = array(X, backend)
    for export in EXPORTS.values():
        for transform in DERIVATIVES.values():
            with pytest.raises(TracedValueError):
                transform(lambda x, export=export: (export(x), xp.sum(x))[1])(x)
        if backend != "numpy":
            with pytest.raises(TracedValueError):
                tg.jit(lambda x, export=export: (export(x), xp.sum(x))[1])(x)


@ON
def test_values_without_a_derivative_are_there(backend: str) -> None:
    x = array(X, backend)

    def total(x_: Any) -> Any:
        assert bool(x_[0] > 0) and int(x_[1]) == 2 and [5, 6, 7][xp.argmax(x_)] == 7
        assert f"{x_[1]:.1f}" == "2.0" and "Array" in repr(x_) and math.floor(x_[2]) == 3
        np.testing.assert_array_equal(np.asarray(xp.ones(3, device=backend) * 2), [2, 2, 2])
        np.testing.assert_array_equal(np.asarray(x * 2), 2 * X)
        return xp.sum(x_)

    close(tg.grad(total)(x), np.ones(3))
    tg.jvp(total, (x,), (x,))
    tg.hessian(total)(x)


def test_what_an_export_says() -> None:
    def loss(x: Any) -> Any:
        scale = float(x[0])
        return xp.sum(x) * scale

    with pytest.raises(TracedValueError) as raised:
        tg.grad(loss)(array(X, "numpy"))
    said = str(raised.value)
    assert "scale = float(x[0])" in said and "Inside grad" in said and "derivative" in said


def test_native_arrays_of_what_was_moved() -> None:
    other = _elsewhere("numpy")
    with pytest.raises((TracedValueError, TypeError), match="transform"):
        tg.grad(lambda x: (x.to_device(other).native, xp.sum(x))[1])(array(X, "numpy"))
