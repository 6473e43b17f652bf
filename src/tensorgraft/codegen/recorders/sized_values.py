"""Known values that a program creates at sizes that may vary: ranges, zeros."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.codegen.recorders.recording import ScopedRecorder


class SizedValue(np.ndarray):
    """A known value that was computed from sizes, and the variable that represents it in the program (`var`). So is a
    constant of equal numbers, which is written where it is used."""

    var: Any = None
    is_uniform = False

    @classmethod
    def of(cls, value: np.ndarray, var: Any = None) -> SizedValue:
        sized = np.asarray(value).view(cls)
        sized.var, sized.is_uniform = var, var is None
        return sized


def said_as(xp: ScopedRecorder, x: Any) -> Any:
    """Return the step that made it, where it was made to a size."""
    if isinstance(x, SizedValue):
        if x.var is not None:
            return x.var
        if x.is_uniform:
            return xp.full(x.shape, x.flat[0].item(), x.dtype)
    return x


def is_sized(x: Any) -> bool:
    """Return True for a known value that the program creates at a size."""
    return isinstance(x, SizedValue) and (x.var is not None or x.is_uniform)
