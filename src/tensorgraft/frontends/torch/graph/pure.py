"""Captures for pure functions: modules on tensors around a framework's own tracers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.compiled.capture import Capture
from tensorgraft.frontends.torch.core import pytrees
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.state import RandomState
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Storage


class PureCapture(Capture):
    """Lets a function read tensors from outside, and draw from the random state that it receives; other effects are
    errors."""

    def __init__(self, backend: Backend, words: Array | None, seeding: str = "a seed") -> None:
        """`seeding`: how the caller of the function gives random numbers, in words."""
        super().__init__(backend)
        self._seeding = seeding
        self._words = words  # uint32 (2,): the seed
        self._read: list[tuple[Storage, Array]] = []

    def touch(self, cells: Sequence[Storage]) -> None:
        for cell in cells:
            if cell.capture is not self:
                cell.capture = self
                self._read.append((cell, cell.array))
            if self.recomputation is not None:
                self.recomputation.reads(cell)

    def restore(self) -> None:
        """Put everything outside back. Raises TracedValueError if something was written."""
        written_cells = [cell for cell, array in self._read if cell.array is not array]
        for cell, array in self._read:
            cell.array, cell.capture = array, None
        super().restore()
        if written_cells:
            raise TracedValueError(
                f"a tensor of shape {self.backend.shape(written_cells[0].array)} that is neither a parameter nor a"
                " buffer of the module is written, which a pure function cannot do. Register it as a buffer"
                " (register_buffer)."
            )

    def first_words(self, source: RandomState) -> Array:
        if self._words is None:
            raise TracedValueError(
                f"the module draws random numbers: call the function with {self._seeding}, or call .eval() of the"
                " module before"
            )
        xp = self.backend
        start = xp.asarray(np.zeros(2, np.uint32))
        return xp.concat([xp.astype(self._words, dtypes.uint32), start], axis=0)

    def feed(
        self,
        value: Callable[[], np.ndarray],
        example: np.ndarray,
        at_trace: bool = False,
        what: str = "",
        is_number: bool = False,
    ) -> Array:
        raise TracedValueError(
            "a pure function cannot read other values from the host than its arguments (such as a generator's state)"
        )

    def host_array(self, t: torch.Tensor, view: Callable[[torch.Tensor], np.ndarray]) -> Any:
        return view(t)


class HostConstants(TorchFunctionMode):
    """Lets CPU tensors meet tensors of the device, as they do in a module that is on the CPU: those that the module
    makes or has as attributes are constants, which are moved where PyTorch refuses tensors on two devices."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if "same device" not in str(error) or _writes_host(func, args, kwargs):
                raise
            leaves, structure = pytrees.flatten((args, kwargs))
            moved = [x.detach().to(self._device) if _is_host(x) else x for x in leaves]
            if all(new is x for new, x in zip(moved, leaves, strict=True)):
                raise
        args, kwargs = pytrees.unflatten(moved, structure)
        return func(*args, **kwargs)


def _is_host(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type != TYPE


def _writes_host(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether a call would write a CPU tensor."""
    name = getattr(func, "__name__", "")
    in_place = name.startswith(("__i", "__set")) or (name.endswith("_") and not name.endswith("__"))
    return (in_place and bool(args) and _is_host(args[0])) or any(map(_is_host, pytrees.flatten(kwargs.get("out"))[0]))
