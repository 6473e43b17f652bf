"""`Wrapper`: a backend that computes on another one.

The treatment of each method is declared once: operations are defined by the wrapper, and every method of the other
parts is in one of three lists. A method of `Backend` that is in none of them is an error at import.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.hub.backend import Backend
from tensorgraft.hub.compiler import Compiler
from tensorgraft.hub.interchange import Interchange
from tensorgraft.hub.operations import operations
from tensorgraft.hub.placement import Placement
from tensorgraft.hub.runtime import Runtime

FORWARDED = frozenset(  # methods that call those of the inner backend
    {"scope", "synchronize", "memory_stats", "device_name", "native_dtype", "mesh_ids", "parts_fed", "processes"}
)
WRITTEN = frozenset(  # methods that each wrapper defines, because its arrays are its own
    {"is_array", "is_traced", "shape", "dtype_of", "asarray", "to_numpy", "from_dlpack", "compile"}
)
# Methods of `Backend` that call the others, or raise the error of a backend without the feature; a wrapper that has the
# feature overrides them.
INHERITED = frozenset({
    "abstract", "adopt", "as_traced", "assembled", "assign", "bytes_by_device", "capsules", "collective", "detached",
    "device_count", "dialect", "differentiable", "eagerly", "ensure_owned", "eval_shape", "exported", "flush",
    "in_trace",
    "is_differentiated", "is_hot", "is_tracing", "is_watched", "joined_as", "labelled", "lend", "lifted",
    "materialize", "memory", "module", "native_function", "native_scope", "observe", "operand", "over_memory",
    "pieces", "place", "placement", "same_everywhere", "seed_words", "signature", "sparse_array",
    "sparse_parts", "stand_in", "strided_view", "trace",
    "traces", "when_known", "with_piece",
})  # fmt: skip


def _parts() -> set[str]:
    public = {name: f for part in (Runtime, Compiler, Interchange) for name, f in vars(part).items() if name[0] != "_"}
    return {name for name, f in public.items() if callable(f) or isinstance(f, property | classmethod)}


if unlisted := _parts() ^ (FORWARDED | WRITTEN | INHERITED):
    raise TypeError(f"tensorgraft.hub.wrapper does not list the methods {', '.join(sorted(unlisted))}")


class Wrapper(Backend):
    """A backend that computes on the backend `inner`.

    A subclass defines its operations by a function: `class MyBackend(Wrapper, operation=method_of)`, where
    `method_of(name, declared)` returns a method, or None for the hub's own.
    """

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.name, self.grafted_as, self.modules_have_modes = inner.name, inner.grafted_as, inner.modules_have_modes
        super().__init__(inner.index, inner.platform)

    def __init_subclass__(
        cls, operation: Callable[[str, Callable[..., Any]], Callable[..., Any] | None] | None = None, **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        if operation is None:
            return
        for name, declared in operations().items():
            method = operation(name, declared)
            if method is not None:
                method.__name__ = name
                setattr(cls, name, method)

    def scope(self) -> contextlib.AbstractContextManager[None]:
        return self.inner.scope()

    def synchronize(self) -> None:
        self.inner.synchronize()

    def memory_stats(self) -> dict[str, int]:
        return self.inner.memory_stats()

    def device_name(self) -> str:
        return self.inner.device_name()

    def native_dtype(self, dtype: np.dtype, /) -> np.dtype:
        return self.inner.native_dtype(dtype)

    def mesh_ids(self, count: int, /) -> tuple[int, ...] | None:
        return self.inner.mesh_ids(count)

    def parts_fed(self, placement: Placement, /) -> tuple[int, int]:
        return self.inner.parts_fed(placement)

    def processes(self) -> tuple[int, int]:
        return self.inner.processes()
