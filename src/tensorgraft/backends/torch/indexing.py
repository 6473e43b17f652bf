"""Gather and scatter."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tensorgraft.backends.torch.elementwise import convert
from tensorgraft.backends.torch.precision import SIGNED, as_bits, from_bits, from_ordered, ordered, rounded, widen
from tensorgraft.errors import TracedValueError
from tensorgraft.hub.array import NativeArray as Array

Tensor = torch.Tensor

_REDUCE = {"multiply": "prod", "min": "amin", "max": "amax"}


def _positions(indices: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Index arrays as PyTorch takes them: it has uint8 for masks."""
    return tuple(convert(i, torch.int64) for i in indices)


def _rows(shape: Sequence[int], indices: tuple[Tensor, ...]) -> Tensor:
    """Return the rows (of the axes without index) that the indices select in the array, flat."""
    flat = indices[0]
    for i, n in zip(indices[1:], shape[1:], strict=False):
        flat = flat * n + i
    return flat.reshape(-1)


def _reduced(x: Tensor, updates: Tensor, indices: tuple[Tensor, ...], mode: str) -> Tensor:
    """Return `updates` of the whole shape, combined into `x`."""
    indices = tuple(torch.broadcast_tensors(*indices))
    k = len(indices)
    rows = _rows(x.shape[:k], indices)
    width = math.prod(x.shape[k:])
    flat, new = x.reshape(math.prod(x.shape[:k]), width), updates.reshape(rows.shape[0], width)
    if mode == "multiply" and x.dtype.is_complex:
        return _multiplied(flat, new, rows).reshape(x.shape)
    at = rows.unsqueeze(1).expand(new.shape)
    return torch.scatter_reduce(flat, 0, at, new, _REDUCE[mode], include_self=True).reshape(x.shape)


def _multiplied(x: Tensor, updates: Tensor, rows: Tensor) -> Tensor:
    """Multiply rows at equal indices, which PyTorch supports for real numbers only: the updates of a row are made
    adjacent and multiplied in a segmented scan (Hillis and Steele 1986), and the last product of each row is
    written."""
    n = rows.shape[0]
    rows, order = torch.sort(rows, stable=True)
    factors = updates[order]
    step = 1
    while step < n:
        repeats = (rows[step:] == rows[: n - step]).unsqueeze(1)
        factors = torch.cat(
            [factors[:step], torch.where(repeats, factors[step:] * factors[: n - step], factors[step:])]
        )
        step *= 2
    last = torch.cat([rows[1:] != rows[:-1], torch.ones_like(rows[:1], dtype=torch.bool)]).unsqueeze(1)
    # one factor a row: put in as a sum with zeros
    factor = torch.zeros_like(x).index_add(0, rows, torch.where(last, factors, 0))
    is_set = (
        torch.zeros_like(x, dtype=torch.float32).index_add(0, rows, last.expand(factors.shape).to(torch.float32)) > 0
    )
    return torch.where(is_set, x * factor, x)


def _selected(x: Tensor, axis: int, at: Tensor) -> Tensor:
    """Select rows, by `index_select` where it is available: it is the fastest, but lacks unsigned integers of more than
    8 bits."""
    return from_bits(torch.index_select(as_bits(x), axis, at), x.dtype)


class TorchIndexing:
    def gather(self, x: Array, indices: Sequence[Array], /) -> Array:
        at = _positions(indices)
        if len(at) == 1 and at[0].ndim == 1:
            return _selected(x, 0, at[0])
        if any(not i.ndim for i in at):  # PyTorch would read their values
            gathered = x[tuple(i if i.ndim else i.unsqueeze(0) for i in at)]
            return gathered if any(i.ndim for i in at) else gathered.squeeze(0)
        return x[at] if at else x

    def scatter(self, x: Array, indices: Sequence[Array], updates: Array, /, mode: str = "set") -> Array:
        dtype = x.dtype
        if not indices:
            at: tuple[Tensor, ...] = (torch.zeros(1, dtype=torch.int64, device=x.device),)
            return self.scatter(x.unsqueeze(0), at, updates.expand(x.shape).unsqueeze(0), mode).squeeze(0)
        at = _positions(indices)
        if mode == "set":
            return from_bits(torch.index_put(as_bits(x), at, as_bits(updates)), dtype)
        if dtype == torch.bool:
            of_bool = {"add": "max", "multiply": "min"}.get(mode, mode)
            return self.scatter(x.to(torch.uint8), at, updates.to(torch.uint8), of_bool).to(torch.bool)
        if mode == "add":
            if dtype in SIGNED:
                return torch.index_put(as_bits(x), at, as_bits(updates), accumulate=True).view(dtype)
            return rounded(torch.index_put(widen(x), at, widen(updates), accumulate=True), dtype)
        lead = torch.broadcast_shapes(*(i.shape for i in at))
        updates = updates.expand((*lead, *x.shape[len(at) :]))
        if mode == "multiply":
            wide = (as_bits(x), as_bits(updates)) if dtype in SIGNED else (widen(x), widen(updates))
            out = _reduced(*wide, at, mode)
            return from_bits(out, dtype) if dtype in SIGNED else out.to(dtype)
        return from_ordered(_reduced(ordered(x), ordered(updates), at, mode), dtype)

    def nonzero(self, x: Array, /) -> tuple[Array, ...]:
        if self.is_traced(x):  # type: ignore[attr-defined]
            raise TracedValueError(
                f"how many elements of a {x.dtype} tensor of shape {tuple(x.shape)} are not zero is known only when the"
                " program runs: take this step out of the compiled function"
            )
        if not x.ndim:
            return ()
        return tuple(torch.nonzero(as_bits(x), as_tuple=True))

    # ---- composites ------------------------------------------------------------------------------------------------

    def take(self, x: Array, indices: Array, axis: int) -> Array:
        at = convert(indices, torch.int64)
        if at.ndim < 2:
            return _selected(x, axis, at) if at.ndim else _selected(x, axis, at.unsqueeze(0)).squeeze(axis)
        return x[(slice(None),) * (axis % x.ndim) + (at,)]
