"""Where tensors begin in their storages, as operands of plans: a plan is for shapes and strides, wherever they are.

What of an offset is part of a plan's key is its form (`anywhere`). Offset 0, which most tensors have, is known to the
plan, and so are offsets while a program is traced.
"""

from __future__ import annotations

from typing import Any

import torch

from tensorgraft import anywhere
from tensorgraft.anywhere import Form
from tensorgraft.frontends.torch import state
from tensorgraft.frontends.torch.order import overlaps_itself
from tensorgraft.frontends.torch.tensors import cell_of, numpy_dtype
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Geometry, Storage, read, write

Array = Any

_MEMORY = Form("memory")  # of a backend that has views
_MOST = 1 << 14
_forms: dict[Any, Form | None] = {}


def placed(t: torch.Tensor, cell: Storage, offset: int, offsets: list[Any], writes: bool) -> Form | int:
    """What stands for the offset of a tensor in a plan's key: its form, and then it is added to `offsets`, the plan's
    operands; or itself."""
    xp = cell.backend
    if state.now.capture is not None or xp.wraps or xp.is_traced(cell.array):
        return offset
    key = (t.dtype, t.shape, t.stride(), offset, writes, xp.mutable or xp.signature(cell.array))
    try:
        form = _forms[key]
    except KeyError:
        if len(_forms) >= _MOST:
            _forms.clear()
        form = _forms[key] = _form(t, xp, cell.array, writes)
    if form is None:
        return offset
    offsets.append(offset)
    return form


def _form(t: torch.Tensor, xp: Backend, array: Array, writes: bool) -> Form | None:
    shape, strides = tuple(t.shape), t.stride()
    if writes and overlaps_itself(shape, strides):  # in steps whose places are known (`order`)
        return None
    if xp.mutable:
        return _MEMORY
    dtype, here = numpy_dtype(t.dtype), tuple(xp.shape(array))
    return anywhere.form_of(shape, strides, int(t.storage_offset()), dtype, here, xp.dtype_of(array))


def forms(tensors: list[torch.Tensor], writes: bool) -> list[Form | None]:
    """Of each tensor, the form of an offset that is an operand."""
    kinds = []
    for t in tensors:
        offset = t.storage_offset()
        kind = placed(t, cell_of(t), offset, [], writes) if offset else 0
        kinds.append(kind if isinstance(kind, Form) else None)
    return kinds


class Reach:
    """How a plan gets at a tensor in its storage: reads and writes at an offset that may be an operand."""

    __slots__ = ("_form", "geometry")

    def __init__(self, geometry: Geometry, form: Form | None) -> None:
        self.geometry = geometry
        self._form = form

    def at(self, offset: Any) -> Geometry:
        shape, strides, _, dtype = self.geometry
        return Geometry(shape, strides, offset, dtype)

    def read(self, xp: Backend, array: Array, offset: Any) -> Array:
        if self._form is None:
            return read(xp, array, self.geometry)
        if offset.__class__ is int:  # nothing is traced
            return read(xp, array, self.at(offset))
        return anywhere.read(xp, array, self.geometry, self._form, offset)

    def write(self, xp: Backend, array: Array, value: Array, offset: Any) -> Array:
        if self._form is None:
            return write(xp, array, self.geometry, value)
        if offset.__class__ is int:
            return write(xp, array, self.at(offset), value)
        return anywhere.write(xp, array, self.geometry, value, self._form, offset)
