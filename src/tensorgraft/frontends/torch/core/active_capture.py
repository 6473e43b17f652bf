"""The interface of a capture to the kernels that run inside of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Storage

if TYPE_CHECKING:
    from tensorgraft.frontends.torch.core.source_location import Place


class ActiveCapture(Protocol):
    """The run of a function that is being traced into a program: `compiled.capture.Capture`, where each of these is
    explained."""

    backend: Backend
    casts: dict[Any, Any]
    constants: list[Array]
    failures: list[tuple[torch.Tensor, type[Exception], str]] | None
    feeds: list[Any]
    loops: Any
    origins: dict[int, Place | None]
    scalars: bool
    sparse: Any
    touched: list[Any]
    values: Any
    world: Any

    def touch(self, cells: Sequence[Storage]) -> None: ...
    def created(self, cell: Storage, location: Place | None = None) -> None: ...
    def note_rebinding(self, t: torch.Tensor) -> None: ...
    def host_array(self, t: torch.Tensor, view: Callable[[torch.Tensor], np.ndarray]) -> Any: ...
    def note_leaves(self, roots: Sequence[Any]) -> None: ...
    def note_inputs(self, roots: Sequence[Any], inputs: Sequence[Any]) -> None: ...
    def draw(self, source: Any) -> Array: ...
    def draw_from(self, generator: torch.Generator) -> Array: ...
    def mark_draws(self, source: Any) -> int: ...
    def rewind_draws(self, source: Any, token: int) -> None: ...
    def reseeded(self, message: str) -> Exception: ...
