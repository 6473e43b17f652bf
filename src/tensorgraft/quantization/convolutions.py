"""Rules of convolutions with quantised weights.

A scale for each output channel, or one for all, multiplies the result, if that has fewer elements than the weights;
other scales multiply the weights before a convolution of floats. No backend has a fast convolution of integers (XLA's
for the CPU takes 20 times as long as that of floats), so activations are never rounded here, whatever the scheme: all
backends compute the same.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from tensorgraft.hub import dtypes
from tensorgraft.hub.abstract.array import ShapeDtype
from tensorgraft.hub.abstract.backend import AbstractBackend
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization.quantized import Quantized, dense, view_codes

_OUTPUTS = {"convolution": 0, "transposed_convolution": 1}  # the axis of the weights for the channels that come out
_abstract = functools.cache(AbstractBackend)


def convolved(name: str, xp: Backend, x: Any, w: Any, *args: Any, **kwargs: Any) -> Array | None:
    """Compute the operation `name` of the hub: `convolution` with weights (O, C / groups, taps...), or
    `transposed_convolution` with (C, O / groups, taps...). None where others than the weights are quantised."""
    if isinstance(x, Quantized) or not isinstance(w, Quantized):
        return None
    dtype = xp.dtype_of(x)
    scale = _of_outputs(xp, w, _OUTPUTS[name]) if dtype in (dtypes.float32, dtypes.float64) else None
    if scale is not None:
        shapes = ShapeDtype(xp.shape(x), dtype), ShapeDtype(w.shape, dtype)
        shape = getattr(_abstract(), name)(*shapes, *args, **kwargs).shape
        if math.prod(shape) < math.prod(w.shape):
            values = xp.astype(w.encoding.decode(xp, view_codes(xp, w).codes), dtype)
            values = values if xp.shape(values) == w.shape else xp.broadcast_to(values, w.shape)
            return xp.multiply(
                getattr(xp, name)(x, values, *args, **kwargs), _broadcast_scales(xp, scale, shape, dtype)
            )
    values = dense(xp, w)
    return getattr(xp, name)(x, values if w.dtype == dtype else xp.astype(values, dtype), *args, **kwargs)


def _of_outputs(xp: Backend, w: Quantized, outputs: int) -> Array | None:
    """Return (n,) scales, one for each output channel of a group or 1; None where there are others, or zero points."""
    if w.zero is not None or w.encoding.kind == "dense":
        return None
    scale = view_codes(xp, w).scale
    extents = xp.shape(scale)
    if len(extents) != len(w.shape) or any(n != 1 for axis, n in enumerate(extents) if axis != outputs):
        return None
    return xp.reshape(scale, (extents[outputs],))


def _broadcast_scales(xp: Backend, scale: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Scales as they broadcast to a result (N, O, ...): of transposed ones, those of a group for all groups."""
    (n,) = xp.shape(scale)
    if n not in (1, shape[1]):
        scale, n = xp.reshape(xp.broadcast_to(scale, (shape[1] // n, n)), (shape[1],)), shape[1]
    return xp.astype(xp.reshape(scale, (n, *(1,) * (len(shape) - 2))), dtype)


__all__ = ["convolved"]
