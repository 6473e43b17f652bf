"""The operations of the hub: what is computed of arrays, split by area. Arguments before `/` are arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorgraft.hub.attention import Attention
from tensorgraft.hub.coded import Coded
from tensorgraft.hub.control_flow import ControlFlow
from tensorgraft.hub.elementwise import Elementwise
from tensorgraft.hub.fft import FFT
from tensorgraft.hub.indexing import Indexing
from tensorgraft.hub.linalg import LinearAlgebra
from tensorgraft.hub.random import Random
from tensorgraft.hub.reduction import Reduction
from tensorgraft.hub.shape import ShapeOps
from tensorgraft.hub.sorting import Sorting
from tensorgraft.hub.windowed import Windowed


class Operations(
    Elementwise,
    Reduction,
    ShapeOps,
    Indexing,
    Sorting,
    LinearAlgebra,
    Coded,
    Attention,
    Windowed,
    FFT,
    Random,
    ControlFlow,
):
    """All areas."""


def operations() -> dict[str, Callable[..., Any]]:
    """Every operation on arrays, as it is declared, by name. (What `told` marks is a number that shapes tell.)"""
    return {
        name: f
        for area in reversed(Operations.__mro__[:-1])
        for name, f in vars(area).items()
        if callable(f) and not name.startswith("_") and not getattr(f, "is_told", False)
    }
