"""What is seen of an array at the end, how far rounding moves it, and whether another one is that near."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Seen:
    """An array at the end; of the reference `slack` says how far its values move when it rounds otherwise (None: it
    has another shape then)."""

    value: np.ndarray
    slack: np.ndarray | None


def family(name: str) -> str:
    """By the standard's words, and by what a program can catch."""
    if name in ("AxisError", "IndexError"):
        return "index"
    return {
        "ShapeError": "ValueError",
        "UFuncTypeError": "TypeError",
        "_UFuncOutputCastingError": "TypeError",
        "_UFuncNoLoopError": "TypeError",
        "_UFuncInputCastingError": "TypeError",
    }.get(name, name)


def same_scalar(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b) or abs(a - b) <= 1e-6 * max(abs(a), abs(b))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_scalar, a, b))
    return type(a) is type(b) and bool(a == b)


def slack(x: np.ndarray, moved: list[Any]) -> np.ndarray | None:
    if any(not isinstance(m, np.ndarray) or m.shape != x.shape or m.dtype != x.dtype for m in moved):
        return None
    if x.dtype.kind not in "fc":  # counted or compared: all or nothing
        same = np.logical_and.reduce([m == x for m in moved])
        return np.where(same, 0.0, np.inf)
    wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    with np.errstate(all="ignore"):
        off = np.maximum.reduce([np.where(alike(m, x), 0.0, np.abs(m - wide)) for m in moved])
    off = np.where(np.isnan(off), np.inf, off)
    if not off.any():
        return np.zeros(x.shape)
    typical = np.finfo(x.dtype).eps * np.abs(wide)  # an element may have been lucky
    largest = np.finfo(x.dtype).eps * np.max(np.abs(wide[np.isfinite(wide)]), initial=0.0)
    return np.where(np.isfinite(wide), 16 * off + 32 * typical + largest, np.where(off == 0, 0.0, np.inf))


def alike(a: Any, b: Any) -> Any:
    return (a == b) | ((a != a) & (b != b))


def compared(expected: Seen, found: Any) -> str | None:
    x, y = expected.value, found
    if not isinstance(y, np.ndarray):
        return f"{type(y).__name__}, expected an array"
    if y.dtype != x.dtype or y.shape != x.shape:
        return f"{y.dtype} {y.shape}, expected {x.dtype} {x.shape}"
    assert expected.slack is not None
    with np.errstate(all="ignore"):
        near = alike(x, y)
        if x.dtype.kind in "fc":
            near = near | (np.abs(y.astype(np.complex128) - x.astype(np.complex128)) <= expected.slack)
            if x.dtype.kind == "c":
                near = near | ~np.isfinite(x)  # special values are the library's
        near = near | np.isinf(expected.slack)
    if near.all():
        return None
    at = tuple(int(i) for i in np.argwhere(~near)[0])
    return f"{y[at]!r} at {at}, expected {x[at]!r} (+- {expected.slack[at]:.2g}); {int((~near).sum())} of {x.size}"
