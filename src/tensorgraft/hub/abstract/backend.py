"""`AbstractBackend`: the tables of rules, as methods."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.errors import TracedValueError
from tensorgraft.hub.abstract import control_flow, elementwise, indexing, linalg, reduction, shape, windowed
from tensorgraft.hub.abstract.array import ShapeDtype
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.primitive import primitives
from tensorgraft.hub.tape import ByTape

RULES: dict[str, Callable[..., Any]] = {}
for _area in (elementwise, reduction, shape, indexing, linalg, windowed, control_flow):
    RULES.update(_area.RULES)


def _method(name: str, declared: Callable[..., Any]) -> Callable[..., Any]:
    rule = RULES[name]

    @functools.wraps(declared)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return rule(name, *args, **kwargs)

    del method.is_primitive  # wraps has copied the mark of the declaration
    return method


class _Rules(ByTape, Backend):
    """The primitives that are a rule and nothing else."""

    for _name, _declared in primitives(Backend).items():
        if _name in RULES:
            locals()[_name] = _method(_name, _declared)
    del _name, _declared


class AbstractBackend(_Rules):
    """A backend that computes shapes and dtypes only. Arrays are `ShapeDtype`; every operation checks its operands.

    Raises ValueError (shapes, axes) or TypeError (dtypes), with the operation, its operands and what was expected;
    TracedValueError if a program reads values.
    """

    name = "abstract"

    def is_array(self, x: Any, /) -> bool:
        return isinstance(x, ShapeDtype)

    def is_traced(self, x: Array, /) -> bool:
        return True

    def asarray(self, x: np.ndarray, /) -> ShapeDtype:
        return ShapeDtype(x.shape, x.dtype)

    def to_numpy(self, x: Array, /) -> np.ndarray:
        raise TracedValueError(f"{x} has a shape and a dtype, but no values")

    def constrain(self, x: Array, placement: Any, /) -> Array:
        return x

    def host_call(self, fn: Any, operands: Any, results: Sequence[Any], /) -> list[Array]:
        return [ShapeDtype(tuple(r.shape), r.dtype) for r in results]

    def from_dlpack(self, x: Any, /) -> ShapeDtype:
        return self.asarray(np.from_dlpack(x))

    def scope(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def compile(self, fn: Callable[..., Any], /, donate: Sequence[int] = ()) -> Callable[..., Any]:
        return fn

    def synchronize(self) -> None:
        return None

    def memory_stats(self) -> dict[str, int]:
        return {}

    def device_name(self) -> str:
        return "shapes and dtypes only"
