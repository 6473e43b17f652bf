"""Copies, conversions and operators that move elements without looking at them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.common import number
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array


@kernel("clone")
def _clone(xp: Any, x: Array) -> Array:
    return x


@kernel("cat")
def _cat(xp: Any, tensors: list[Array], dim: int = 0) -> Array:
    nonempty = [x for x in tensors if xp.shape(x) != (0,)] or tensors[:1]  # PyTorch skips empty 1-d tensors
    common = _common([xp.dtype_of(x) for x in tensors])
    return xp.concat([xp.astype(x, common) for x in nonempty], axis=dim % xp.ndim(nonempty[0]))


def _valid_range(x: Any, dim: int, start: int, length: int, **_: Any) -> dict[str, Any] | None:
    n = x.size(dim) if -x.dim() <= dim < x.dim() else 0
    return {} if start >= 0 and 0 <= length <= n - start else None


@kernel("narrow_copy", positions=("start",), moves=_valid_range)
def _narrow_copy(xp: Any, x: Array, dim: int, start: Any, length: int) -> Array:
    shape = list(xp.shape(x))
    dim %= len(shape)
    if isinstance(start, int):
        start += shape[dim] * (start < 0)
        return xp.take_slice(x, dim, start, start + length)
    shape[dim] = length
    zero, at = xp.full((), 0, dtypes.int64), xp.astype(start, dtypes.int64)
    return xp.dynamic_slice(x, [at if axis == dim else zero for axis in range(len(shape))], tuple(shape))


def _common(kinds: list[np.dtype]) -> np.dtype:
    import torch

    from tensorgraft.frontends.torch.core.tensors import FROM_NUMPY, numpy_dtype

    common = FROM_NUMPY[kinds[0]]
    for kind in kinds[1:]:
        common = torch.promote_types(common, FROM_NUMPY[kind])
    return numpy_dtype(common)


@kernel("flip")
def _flip(xp: Any, x: Array, dims: list[int]) -> Array:
    return xp.flip(x, tuple(d % max(xp.ndim(x), 1) for d in dims)) if xp.ndim(x) else x


@kernel("roll", positions=("shifts",))
def _roll(xp: Any, x: Array, shifts: list[Any], dims: list[int] | tuple[()] = ()) -> Array:
    if not dims:
        flat = xp.reshape(x, (xp.size(x),))
        return xp.reshape(_rolled(xp, flat, shifts[0], 0), xp.shape(x))
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(xp, x, shift, dim % xp.ndim(x))
    return x


def _rolled(xp: Any, x: Array, shift: Any, axis: int) -> Array:
    n = xp.shape(x)[axis]
    if isinstance(shift, int) or not n:
        return xp.roll(x, shift, axis) if n else x
    at = xp.subtract(xp.iota(n, dtypes.int64), xp.astype(shift, dtypes.int64))
    return xp.take(x, xp.remainder(at, n), axis)


@kernel("repeat")
def _repeat(xp: Any, x: Array, repeats: list[int]) -> Array:
    lead = len(repeats) - xp.ndim(x)
    # nothing is repeated -2 times, too
    return xp.tile(xp.reshape(x, (*(1,) * lead, *xp.shape(x))), [max(n, 0) for n in repeats])


@kernel("constant_pad_nd", dynamic=("value",))
def _constant_pad(xp: Any, x: Array, pad: list[int], value: Any = 0) -> Array:
    n = xp.ndim(x)
    config = [(0, 0, 0)] * n
    for k in range(len(pad) // 2):
        config[n - 1 - k] = (pad[2 * k], pad[2 * k + 1], 0)
    return xp.pad(x, number(xp, value, xp.dtype_of(x)), config)


@kernel("tril", positions=("diagonal",))
def _tril(xp: Any, x: Array, diagonal: Any = 0) -> Array:
    return xp.tril(x, diagonal)


@kernel("triu", positions=("diagonal",))
def _triu(xp: Any, x: Array, diagonal: Any = 0) -> Array:
    return xp.triu(x, diagonal)


@kernel("_reshape_copy")
def _reshape_copy(xp: Any, x: Array, size: list[int]) -> Array:
    return xp.reshape(x, _sizes(size, xp.size(x)))


def _sizes(size: list[int], n: int) -> tuple[int, ...]:
    known = math.prod(s for s in size if s != -1)
    return tuple(n // max(known, 1) if s == -1 else s for s in size)


@kernel("view_as_real_copy")
def _view_as_real_copy(xp: Any, x: Array) -> Array:
    return xp.stack([xp.real(x), xp.imag(x)], axis=-1)


@kernel("_conj_copy")
def _conj_copy(xp: Any, x: Array) -> Array:
    return xp.conj(x) if dtypes.is_complex(xp.dtype_of(x)) else x


# ---- channels and pixels: PyTorch's composites do the same, with other strides than its CPU kernels ------------------


@kernel("pixel_shuffle")
def _pixel_shuffle(xp: Any, x: Array, upscale_factor: int) -> Array:
    r = upscale_factor
    *batch, c, h, w = xp.shape(x)
    n = len(batch)
    parts = xp.reshape(x, (*batch, c // r**2, r, r, h, w))
    parts = xp.permute_dims(parts, (*range(n + 1), n + 3, n + 1, n + 4, n + 2))
    return xp.reshape(parts, (*batch, c // r**2, h * r, w * r))


@kernel("pixel_unshuffle")
def _pixel_unshuffle(xp: Any, x: Array, downscale_factor: int) -> Array:
    r = downscale_factor
    *batch, c, h, w = xp.shape(x)
    n = len(batch)
    if not xp.size(x):  # as on the CPU
        return x
    parts = xp.reshape(x, (*batch, c, h // r, r, w // r, r))
    parts = xp.permute_dims(parts, (*range(n + 1), n + 2, n + 4, n + 1, n + 3))
    return xp.reshape(parts, (*batch, c * r**2, h // r, w // r))


@kernel("native_channel_shuffle")
def _channel_shuffle(xp: Any, x: Array, groups: int) -> Array:
    n, c, *rest = xp.shape(x)
    parts = xp.reshape(x, (n, groups, c // groups, *rest))
    return xp.reshape(xp.swapaxes(parts, 1, 2), (n, c, *rest))
