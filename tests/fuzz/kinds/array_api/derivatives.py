"""Statements that define functions, with views and writes inside, and ask for their derivatives and batches.

The reference differentiates numerically, in float64, with steps that are shaken: so what it knows of a derivative is
measured as its rounding is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.fuzz.kinds.array_api.drawing import Drawing, Retry, result, statement
from tests.fuzz.kinds.array_api.reference import Reference, shaken, shaken_whole, wrapped

import tensorgraft as tg

Function = Callable[[Any], Any]


# ---- the functions ---------------------------------------------------------------------------------------------------

SMOOTH = ["sin", "cos", "tanh", "atan", "square", "asinh", "sinh", "exp"]


@statement(0.8)
def function(d: Drawing) -> str:
    """Of an array that is like one of the live ones, to a number."""
    n = d.array("f", differentiable)
    x, name = d.arrays[n], f"f{d.next}"
    y = np.zeros(x.shape)
    steps = ["y = q * 1"]
    for _ in range(d.one(1, 2, 3, 4)):
        text, y = step(d, y, str(x.dtype))
        steps.append(text)
    return f"def {name}(q, axes={x.ndim}): {'; '.join(steps)}; return xp.sum(y)  # of {n}"


def differentiable(x: Any) -> bool:
    return x.size <= 12 and x.dtype.itemsize >= 4 and bool(np.all(np.abs(x) < 50))


def step(d: Drawing, y: Any, dtype: str) -> tuple[str, Any]:
    """A line that changes `y`, or assigns another array to it, and what it looks like then."""
    c = d.number(np.dtype("float64"))
    forms = [f"y = xp.{d.rng.choice(SMOOTH)}(y)", f"y = y * {c} + q" if d.maybe(0.3) else f"y = y * y - {c}"]
    forms += [f"y = y / (1 + y * y) * {c}", f"y = y + {d.new([dtype], y.shape[d.rng.randint(0, y.ndim) :])}"]
    if y.ndim:
        key = d.key(y)
        axis = d.rng.randrange(y.ndim)
        forms += [
            f"y = y[{key}]",
            f"y[{key}] {d.one('*', '+', '-')}= {c}",
            f"y[{key}] = {c}",
            f"z = y[{key}]; z *= {c}",
            f"z = y[{key}]; z += z",
            f"y = xp.flip(y, axis={axis})",
            f"y = xp.cumulative_sum(y, axis={axis})",
            f"y = xp.concat([y, y * {c}], axis={axis})",
            f"y = xp.sum(y, axis={axis})",
            f"y = xp.{d.one('mean', 'prod')}(y, axis={axis}, keepdims=True)",
            "z = xp.reshape(y, (-1,)); z[::2] *= 2",
            f"y = xp.permute_dims(y, {tuple(d.rng.sample(range(y.ndim), y.ndim))})",
            "y = y @ y.mT" if y.ndim > 1 else "y = xp.vecdot(y, y)",
        ]
        if y.shape[axis]:
            rows = [d.rng.randrange(y.shape[axis]) for _ in range(3)]
            forms.append(f"y = xp.take(y, xp.asarray({rows}, dtype=xp.int64, device=D), axis={axis})")
    text = d.rng.choice(forms)
    names = {"xp": d.names["xp"], "D": None, "data": d.names["data"], "q": wrapped(np.ones(y.shape)), "y": wrapped(y)}
    try:
        exec(text, names)
    except Exception:
        raise Retry from None
    if names["y"].size > 40:
        raise Retry
    return text, names["y"]


@statement(1.6)
def derivative(d: Drawing) -> str:
    f = d.rng.choice([n for n in d.names if n[0] == "f" and n[1:].isdigit()] or [None])
    if f is None:
        raise Retry
    (axes,) = d.names[f].__defaults__  # NumPy takes axis 0 of what has none
    n = d.array("f", lambda x: x.ndim >= axes and differentiable(x))
    x = d.arrays[n]
    along = d.new([str(x.dtype)], x.shape)
    if not np.all(np.isfinite(np.asarray(eval(along, d.names)))):  # differences of numbers know no limits
        raise Retry
    forms = [f"grad({f}, {n})", f"grad({f}, {n})", f"jvp({f}, {n}, {along})", f"jacobian(lambda q: {f}(q) * q, {n})"]
    if x.ndim > max(axes, 1) and x.shape[0]:
        forms.append(f"vmap({f}, {n})")
        forms.append(f"vmap(lambda q: grad({f}, q), {n})")
    if x.size <= 4:
        forms.append(f"grad(lambda q: xp.sum(grad({f}, q) * {along}), {n})")
        forms.append(f"jvp(lambda q: grad({f}, q), {n}, {along})")
    return result(d, d.rng.choice(forms))


# ---- what subjects call, and the reference ---------------------------------------------------------------------------

OURS: dict[str, Callable[..., Any]] = {
    "grad": lambda f, x: tg.grad(f)(x),
    "jvp": lambda f, x, v: tg.jvp(f, (x,), (v,))[1],
    "jacobian": lambda f, x: tg.jacobian(f)(x),
    "vmap": lambda f, x: tg.vmap(f)(x),
}


def jvp(f: Function, x: Any, v: Any) -> Any:
    """By central differences, of fourth order in the step."""
    at, along = (np.asarray(y).astype(np.float64) for y in (x, v))
    h = 1e-3 if Reference.rng is None else 1e-3 * Reference.rng.uniform(0.7, 1.4)

    def value(steps: float) -> Any:
        return np.asarray(f(wrapped(at + steps * h * along)))

    found = (8 * (value(1) - value(-1)) - (value(2) - value(-2))) / (12 * h)
    return rounded(found, x)


def jacobian(f: Function, x: Any) -> Any:
    units = np.eye(x.size).reshape(x.size, *x.shape)
    columns = [np.asarray(jvp(f, wrapped(np.asarray(x).astype(np.float64)), u)) for u in units]
    shape = columns[0].shape if columns else np.asarray(f(x)).shape
    return rounded(np.moveaxis(np.reshape(columns, (x.size, *shape)), 0, -1).reshape((*shape, *x.shape)), x)


def grad(f: Function, x: Any) -> Any:
    return jacobian(f, x)


def vmap(f: Function, x: Any) -> Any:
    return wrapped(np.stack([np.asarray(f(row)) for row in wrapped(np.asarray(x))]))


def rounded(found: Any, x: Any) -> Any:
    return wrapped(shaken(shaken_whole(np.asarray(found, x.dtype)), 16))  # computed in float64, unlike ours


NUMERICAL: dict[str, Callable[..., Any]] = {"grad": grad, "jvp": jvp, "jacobian": jacobian, "vmap": vmap}
