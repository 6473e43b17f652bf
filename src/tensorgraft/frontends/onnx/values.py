"""Values in a graph, and what is known of them without a backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgraft.compiled.steps import StepsPlan
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.onnx.element_types import Carried
from tensorgraft.hub.backend import Backend


@dataclass(frozen=True, eq=False)
class GraphBody:
    """A graph of a node's attributes, with the values that it reads from the graph around it."""

    plan: StepsPlan
    captured: tuple[Any, ...]
    draws: bool
    outputs: int

    def __call__(self, xp: Backend, *operands: Any, turn: Any = None) -> list[Any]:
        """Return the results. `turn`: the number of an iteration, with numbers of its own to draw."""
        captured = self.captured
        if self.draws and turn is not None:
            words = [lifted(xp, np.asarray(0, np.uint32)), xp.astype(lifted(xp, turn), np.dtype(np.uint32))]
            captured = (*captured[:-1], xp.fold_in(captured[-1], *words))
        return self.plan(xp, *operands, *captured)


def is_known(x: Any) -> bool:
    """Return True for what needs no backend: arrays of the host, and sequences of them."""
    if isinstance(x, tuple | list):
        return all(map(is_known, x))
    if isinstance(x, Carried):
        return isinstance(x.array, np.ndarray)
    return x is None or isinstance(x, np.ndarray | np.generic | dict | GraphBody)


def lifted(xp: Backend, x: Any) -> Any:
    """Return a known value as an array of the backend, in sequences, too. Raises TypeError for strings."""
    if isinstance(x, tuple):
        return tuple(lifted(xp, v) for v in x)
    if isinstance(x, Carried):
        return x.mapped(lambda a: lifted(xp, a))
    if not isinstance(x, np.ndarray | np.generic):
        return x
    if x.dtype == object:
        raise TypeError(f"{xp.name} has no arrays of strings")
    return x if xp.is_array(x) else xp.asarray(x if isinstance(x, np.ndarray) else np.asarray(x))


def to_host(xp: Backend, x: Any) -> Any:
    """Return the values of an array, or of those in a sequence. Raises TracedValueError if they are being traced."""
    if isinstance(x, tuple):
        return tuple(to_host(xp, v) for v in x)
    if isinstance(x, Carried):
        return x.mapped(lambda a: to_host(xp, a))
    if is_known(x):
        return x
    if xp.is_traced(x):
        raise TracedValueError("its values are being traced")
    return xp.to_numpy(x)
