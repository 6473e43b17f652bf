"""Storage offsets of tensors as operands of plans: a plan serves given shapes and strides at any offset.

The key of a call includes the offsets of its tensors, so that a call is found as fast as if there were a plan for each;
the key of a plan includes only the form (`dynamic_offset`) of an offset. Offset 0, which most tensors have, is known to
the plan, and so are offsets while a program is traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensorgraft import dynamic_offset
from tensorgraft.dynamic_offset import Form
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.tensors import element_dtype, worded
from tensorgraft.frontends.torch.dispatch.overlapping_elements import overlaps_itself
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import ColdStorage, Geometry, Storage, read, write

_MEMORY = Form("memory")
_now = state.now


def sited(cell: Storage, offset: Any) -> Any:
    """Return the part of a call's key for an offset other than 0: the offset itself if the plan depends on it,
    otherwise a tuple of it and the properties on which its form depends."""
    xp = cell.backend
    if _now.capture is not None or xp.compound:
        return offset
    if cell.__class__ is ColdStorage:  # a cold storage needs no plan
        return offset, cell.cold.shape, cell.cold.dtype
    array = cell.array
    if xp.is_traced(array):
        return offset
    return (offset,) if xp.mutable else (offset, xp.signature(array))


def without_offsets(
    key: Sequence[Any], cells: Sequence[Storage], writes: bool
) -> tuple[list[Any], list[Form | None], list[int]]:
    """Return (the key of a call with forms instead of offsets; of each tensor the form of an offset that is an operand;
    these offsets)."""
    reduced: list[Any] = []
    forms: list[Form | None] = []
    offsets: list[int] = []
    quantized = any(cell.backend.compound for cell in cells)
    for part in key:
        if part.__class__ is tuple and len(part) == 4 and part[0].__class__ is torch.dtype:
            dtype, shape, strides, site = part
            form = None
            if site.__class__ is tuple:
                if not quantized:
                    form = _form(cells[len(forms)], dtype, tuple(shape), strides, site[0], writes)
                part = dtype, shape, strides, site[0] if form is None else form
                if form is not None:
                    offsets.append(site[0])
            forms.append(form)
        reduced.append(part)
    return reduced, forms, offsets


def _form(
    cell: Storage, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, writes: bool
) -> Form | None:
    """Return the form of an offset; None where the plan has to know the offset."""
    xp, array = cell.backend, cell.array
    if writes and overlaps_itself(shape, strides):  # written in steps, whose places are known (`order`)
        return None
    if xp.mutable:
        return _MEMORY
    return dynamic_offset.form_of(
        shape, strides, offset, element_dtype(dtype), tuple(xp.shape(array)), xp.dtype_of(array)
    )


class StorageReference:
    """A tensor in the array of its storage, as a plan reads and writes it. With a `form` its offset is an operand,
    `operands[at]`."""

    __slots__ = ("_at", "_form", "_geometry")

    def __init__(self, geometry: Geometry, form: Form | None = None, at: int = 0) -> None:
        self._geometry = geometry
        self._form = form
        self._at = at

    def read(self, xp: Backend, array: Array, operands: Sequence[Any]) -> Array:
        if self._form is None:
            try:
                return read(xp, array, self._geometry)
            except ValueError as error:
                raise worded(error) from None
        offset = operands[self._at]
        if offset.__class__ is int:  # nothing is traced
            return read(xp, array, self._geometry_at(offset))
        return dynamic_offset.read(xp, array, self._geometry, self._form, offset)

    def write(self, xp: Backend, array: Array, value: Array, operands: Sequence[Any]) -> Array:
        if self._form is None:
            return write(xp, array, self._geometry, value)
        offset = operands[self._at]
        if offset.__class__ is int:
            return write(xp, array, self._geometry_at(offset), value)
        return dynamic_offset.write(xp, array, self._geometry, value, self._form, offset)

    def _geometry_at(self, offset: int) -> Geometry:
        shape, strides, _, dtype = self._geometry
        return Geometry(shape, strides, offset, dtype)


def reaches_of(geometries: Sequence[Geometry], forms: Sequence[Form | None]) -> tuple[list[StorageReference], int]:
    """Return (the reach of each tensor of a plan, how many arguments of its program are arrays of storages and
    offsets)."""
    references, at = [], len(geometries)
    for geometry, form in zip(geometries, forms, strict=True):
        # a tensor that was resized since the form was determined is at the beginning of another storage
        references.append(StorageReference(geometry, form if geometry.offset else None, at))
        at += form is not None
    return references, at
