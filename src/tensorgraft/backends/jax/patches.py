"""Convolutions as products of matrices, where XLA's own are slow on the CPU.

XLA gives plain convolutions to Eigen, but runs others element by element: those with one channel a group, those with
batch groups (the gradient of the weights of any grouped convolution), and those that it turns inside out because the
window is larger than the image. Measured on 2 cores with JAX 0.10: 512 -> 512 channels, 3x3 on 2x2 images, 169 against
2 ms; 128 channels apart, 3x3 on 16x16, 8 against 0.2 ms; its like's gradient in the weights, 32 groups, 2575 against 6.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorgraft.backends.jax.linalg import dot_general

Array = Any
Ints = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]
MANY = 64  # pieces of an image that are worth a slice each


def rewritten(
    x: Array, w: Array, strides: Ints, padding: Pads, lhs_dilation: Ints, rhs_dilation: Ints, groups: int, batches: int
) -> Array | None:
    """The convolution, or None where XLA's own is as fast. Arguments as in `Backend.convolution`."""
    window, taps = w.shape[2:], math.prod(w.shape[2:])
    if 0 in x.shape or 0 in w.shape or not window:
        return None
    spread = [((n - 1) * d + 1 + sum(p)) for n, d, p in zip(x.shape[2:], lhs_dilation, padding, strict=True)]
    out = tuple(
        (n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(spread, window, strides, rhs_dilation, strict=True)
    )
    if min(out) < 1:
        return None
    depthwise = groups > 1 and w.shape[1] == 1
    by_taps = batches == 1 and taps <= MANY and (depthwise or taps > math.prod(x.shape[2:]))
    by_positions = batches > 1 and math.prod(out) <= MANY
    if not (by_taps or by_positions):
        return None
    config = [(0, 0, 0)] * 2 + [(*p, d - 1) for p, d in zip(padding, lhs_dilation, strict=True)]
    x = lax.pad(x, np.zeros((), x.dtype), config)
    if by_positions:
        return _by_positions(list(_pieces(x, out, strides, window, rhs_dilation)), w, out, batches)
    pieces = list(_pieces(x, window, rhs_dilation, out, strides))
    return _depthwise(pieces, w) if depthwise else _by_taps(pieces, w, groups)


def _pieces(x: Array, at: Ints, at_step: Ints, size: Ints, step: Ints) -> Iterator[Array]:
    """For every point of the grid `at`, row-major, the grid of extents `size` that begins there."""
    lead = x.shape[:2]
    for point in np.ndindex(*at):
        start = tuple(p * s for p, s in zip(point, at_step, strict=True))
        stop = tuple(b + (n - 1) * s + 1 for b, n, s in zip(start, size, step, strict=True))
        yield lax.slice(x, (0, 0, *start), (*lead, *stop), (1, 1, *step))


def _by_taps(pieces: list[Array], w: Array, groups: int) -> Array:
    """Pieces (N, C, out), one a tap: one product of (O, taps C) with (taps C, N out) a group."""
    n, c, *out = pieces[0].shape
    o = w.shape[0]
    columns = jnp.stack(pieces).reshape(len(pieces), n, groups, c // groups, *out)
    rows = w.reshape(groups, o // groups, c // groups, len(pieces))
    found = dot_general(rows, columns, ((2, 3), (3, 0)), ((0,), (2,)), None)  # (groups, O / groups, N, out)
    return jnp.moveaxis(found.reshape(o, n, *out), 0, 1)


def _by_positions(pieces: list[Array], w: Array, out: Ints, batches: int) -> Array:
    """Pieces (N, C, window), one a position of the result: for few positions of large windows."""
    n, c, *window = pieces[0].shape
    o = w.shape[0]
    if o == n == batches:  # one channel a group: a product of matrices would be one of vectors
        return jnp.stack([lax.reduce_sum(x * w, range(1, x.ndim)) for x in pieces], 1).reshape(1, o, *out)
    seen = jnp.stack(pieces).reshape(len(pieces), batches, n // batches, c, *window)
    rows = w.reshape(batches, o // batches, c, *window)
    axes = range(len(window) + 1)
    contract = tuple(a + 2 for a in axes), tuple(a + 3 for a in axes)
    found = dot_general(rows, seen, contract, ((0,), (1,)), None)  # (batches, O / batches, positions, N / batches)
    return found.reshape(o, *out, n // batches).transpose(len(out) + 1, *range(len(out) + 1))


def _depthwise(pieces: list[Array], w: Array) -> Array:
    """One channel a group: sums of shifted images, which XLA fuses."""
    many = w.shape[0] // pieces[0].shape[1]
    weights = w.reshape(w.shape[0], len(pieces))
    wide = [jnp.repeat(x, many, axis=1) if many > 1 else x for x in pieces]
    spatial = (1,) * (len(w.shape) - 2)
    terms = [x * weights[:, tap].reshape(-1, *spatial) for tap, x in enumerate(wide)]
    return functools.reduce(lax.add, terms)
