"""From numbers to codes: the scale of every block, and the nearest codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization.observers import observed
from tensorgraft.quantization.quantized import Quantized
from tensorgraft.quantization.ranges import ranges, with_ranges
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.storage import contiguous_geometry


def encode(
    xp: Backend,
    x: Array,
    scheme: Scheme,
    name: str = "quantize",
    observer: str = "minmax",
    inputs: Sequence[np.ndarray] = (),
) -> Quantized:
    """Return a floating array, of any shape, quantised.

    Arguments:
        scheme: the codes, and the blocks of elements that share a scale.
        name: the operation that error messages name.
        observer: how the range of a block is found: "minmax", "mse", "percentile" or, for example, "percentile_99.5".
        inputs: for a scheme with static activations, the scale of these, and their zero point if they have one.

    Raises TypeError for other dtypes, ValueError where the shape does not divide into the scheme's blocks, and for
    values that are not finite, or beyond float32. A trace checks only values that it knows.
    """
    dtype, shape = xp.dtype_of(x), xp.shape(x)
    if not dtypes.is_floating(dtype):
        raise TypeError(f"{name}: expected a floating-point dtype to quantise, got {dtype}")
    block = scheme.blocks(shape)
    _check_all(xp, xp.isfinite(x), f"{name}: the {dtype} tensor of shape {shape}", "NaN or infinite values")
    if dtype.itemsize > 4:
        small = xp.less_equal(xp.abs(x), float(np.finfo(np.float32).max))
        _check_all(xp, small, f"{name}: the {dtype} tensor of shape {shape}", "values beyond those of float32")
    scale, zero = observed(xp, x, scheme, block, observer)
    if zero is not None:
        label = f"{name}: the {dtype} tensor of shape {shape}"
        _check_all(xp, xp.isfinite(scale), label, "values further from each other than float32 has numbers")
    encoded = with_ranges(xp, x, scheme, scale, zero)
    input_ranges: dict[str, Any] = dict(zip(("input_scale", "input_zero"), map(xp.asarray, inputs), strict=False))
    return replace(encoded, **input_ranges) if input_ranges else encoded


def _check_all(xp: Backend, holds: Array, label: str, problem: str) -> None:
    """Raise ValueError if `holds`, a bool array, is not True everywhere; while a program is traced, only if `holds` is
    known."""
    all_hold = xp.all(holds)
    if not xp.is_traced(all_hold) and not bool(xp.to_numpy(all_hold)):
        raise ValueError(
            f"{label} has {problem}, which cannot be quantised: find their origin (isfinite), or replace them"
            " (nan_to_num, clip)"
        )


def encode_like(xp: Backend, x: Array, like: Quantized) -> Quantized:
    """Return `x`, which has the shape of `like`'s whole array (`base`), quantised as that is: by its scheme, in as many
    blocks, with the dtype and the ranges of activations that it has. The scales are those of the new numbers.
    """
    dtype = like.dtype
    values = x if xp.dtype_of(x) == dtype else xp.astype(x, dtype)
    scheme = like.scheme
    if scheme.codes.kind in ("dense", "trained"):
        return replace(like, codes=values, base=xp.shape(values), geometry=contiguous_geometry(xp.shape(values), dtype))
    grid = xp.shape(like.scale)
    block = tuple(max(n, 1) // max(s, 1) for n, s in zip(xp.shape(values), grid, strict=True))
    encoded = with_ranges(xp, values, scheme, *ranges(xp, values, scheme, block))
    return replace(encoded, input_scale=like.input_scale, input_zero=like.input_zero)
