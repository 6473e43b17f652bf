"""The operations of the hub on arrays, split by area. Arguments before `/` are arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorgraft.hub.operations.attention import Attention
from tensorgraft.hub.operations.coded import Coded
from tensorgraft.hub.operations.control_flow import ControlFlow
from tensorgraft.hub.operations.elementwise import Elementwise
from tensorgraft.hub.operations.fft import FFT
from tensorgraft.hub.operations.indexing import Indexing
from tensorgraft.hub.operations.linalg import LinearAlgebra
from tensorgraft.hub.operations.neural import Neural
from tensorgraft.hub.operations.random import Random
from tensorgraft.hub.operations.reduction import Reduction
from tensorgraft.hub.operations.shape import ShapeOps
from tensorgraft.hub.operations.sorting import Sorting
from tensorgraft.hub.operations.sparse import Sparse
from tensorgraft.hub.operations.windowed import Windowed


class Operations(
    Elementwise,
    Reduction,
    ShapeOps,
    Indexing,
    Sorting,
    LinearAlgebra,
    Coded,
    Sparse,
    Attention,
    Windowed,
    Neural,
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
