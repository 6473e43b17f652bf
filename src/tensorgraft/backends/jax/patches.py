"""Convolutions as products of matrices, where XLA's own are slow on the CPU. `benchmarks/convolution.py` measures both.

XLA gives plain convolutions to Eigen, which is as fast as a product of matrices, except (one core, JAX 0.10, GFLOP/s of
XLA's and of these; 105 is what a large product reaches):

- It turns convolutions inside out whose window has more places than the image, which Eigen does not take: a scalar
  loop. 512 -> 512 channels, 3 x 3 on 2 x 2: 1 and 99; the gradient in the images of 4 x 4 by stride 2: 1 and 96.
- It turns the weights to channels-last at every call, and back for their gradient. Where results have few places that
  is most of the time: 512 -> 512 channels, 3 x 3 on 4 x 4, batch 8: 66 and 103, batch 1: 25 and 104; its gradient in
  the images 33 and 100, in the weights 12 and 100.
- It turns images to channels-last and back: with a window of one place that costs as much as the product. 64 -> 256
  channels on 56 x 56: 23 and 88, the gradient in the images 23 and 103, in the weights 15 and 93.
- It runs element by element what has one channel a group, or batch groups (the gradient in the weights of any grouped
  convolution): 128 channels apart, 3 x 3 on 16 x 16, 40 times slower; its like's gradient, 32 groups, 400 times.

- It runs convolutions of volumes in a scalar loop (8 -> 8 channels, 3 x 3 x 3 on 16 x 32 x 32: 45 times slower).

On large images with few channels it is XLA's that are faster (64 -> 64 channels, 3 x 3 on 28 x 28: 85 and 60).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorgraft.backends.jax.linalg import dot_general, full_precision
from tensorgraft.hub.array import NativeArray as Array

Ints = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]
MANY = 64  # pieces of an image that are worth a slice each


def _few_places(positions: int, taps: int, outputs: int) -> bool:
    """Return True if copying patches (C x taps x places) is faster than transposing weights (C x taps x outputs).
    Measured: with up to half as many places as output channels; in more cases where images have even sides."""
    return taps <= MANY and 2 * positions <= outputs


# With a window of one place, a product for each image, whose layout stays, is better than one for all of them, for
# images are transposed if the weights have at most this many numbers for each pixel (measured)
FORWARD, IMAGES, WEIGHTS = 256, 128, 512


# ---- convolution -----------------------------------------------------------------------------------------------------


def rewritten(
    x: Array, w: Array, strides: Ints, padding: Pads, lhs_dilation: Ints, rhs_dilation: Ints, groups: int, batches: int
) -> Array | None:
    """Return the convolution, or None where XLA's own is as fast. Arguments as in `Backend.convolution`."""
    window, taps = w.shape[2:], math.prod(w.shape[2:])
    if 0 in x.shape or 0 in w.shape or not window:
        return None
    dilated_shape = [((n - 1) * d + 1 + sum(p)) for n, d, p in zip(x.shape[2:], lhs_dilation, padding, strict=True)]
    out = tuple(
        (n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(dilated_shape, window, strides, rhs_dilation, strict=True)
    )
    if min(out) < 1:
        return None
    depthwise = groups > 1 and w.shape[1] == 1
    plain = groups == batches == 1 and all(d == 1 for d in lhs_dilation)
    if taps == 1 and plain and not any(map(any, padding)):
        return _pointwise(x[:, :, *(slice(None, None, s) for s in strides)], w)
    few_positions = plain and _few_places(x.shape[0] * math.prod(out), taps, w.shape[0])
    by_taps = batches == 1 and taps <= MANY and (depthwise or few_positions or taps > math.prod(x.shape[2:]))
    by_positions = batches > 1 and math.prod(out) <= MANY
    if not (by_taps or by_positions):
        volume = len(window) == 3 and batches == 1
        return _by_slices(x, w, out, strides, padding, lhs_dilation, rhs_dilation, groups) if volume else None
    config = [(0, 0, 0)] * 2 + [(*p, d - 1) for p, d in zip(padding, lhs_dilation, strict=True)]
    if by_positions:
        x = lax.pad(x, np.zeros((), x.dtype), config)
        return _by_positions(list(_pieces(x, out, strides, window, rhs_dilation)), w, out, batches)
    if depthwise:
        x = lax.pad(x, np.zeros((), x.dtype), config)
        return _depthwise(list(_pieces(x, window, rhs_dilation, out, strides)), w)
    return _by_taps(_patches(x, config, window, rhs_dilation, out, strides), w, out, groups)


def _pieces(x: Array, at: Ints, at_step: Ints, size: Ints, step: Ints) -> Iterator[Array]:
    """Yield, in row-major order, the grid of extents `size` that begins at each point of the grid `at`."""
    lead = x.shape[:2]
    for point in np.ndindex(*at):
        start = tuple(p * s for p, s in zip(point, at_step, strict=True))
        stop = tuple(b + (n - 1) * s + 1 for b, n, s in zip(start, size, step, strict=True))
        yield lax.slice(x, (0, 0, *start), (*lead, *stop), (1, 1, *step))


def _patches(x: Array, config: Any, window: Ints, dilation: Ints, out: Ints, strides: Ints) -> Array:
    """Return (C, taps, N, out...): for each tap of the window, the elements of the padded x (N, C, ...) that it reads.

    An axis at a time, which is as fast as a slice for each tap, and half the kernels to compile with 3 x 3 of them."""
    x = lax.pad(x.swapaxes(0, 1), np.zeros((), x.dtype), config)[:, None]
    for axis, (taps, d, n, s) in enumerate(zip(window, dilation, out, strides, strict=True), 3):
        starts = range(0, taps * d, d)
        pieces = [lax.slice_in_dim(x, start, start + (n - 1) * s + 1, s, axis=axis) for start in starts]
        x = jnp.stack(pieces, 2).reshape(len(x), -1, *x.shape[2:axis], n, *x.shape[axis + 1 :])
    return x


def _by_taps(patches: Array, w: Array, out: Ints, groups: int) -> Array:
    """Compute the convolution as one product for each group, of (O, C taps), as the weights are in memory, with (C
    taps, N out)."""
    c, taps, n = patches.shape[:3]
    o = w.shape[0]
    columns = patches.reshape(groups, c // groups * taps, -1)
    rows = w.reshape(groups, o // groups, c // groups * taps)
    batch = ((0,), (0,)) if groups > 1 else ((), ())
    if groups == 1:
        rows, columns = rows[0], columns[0]
    products = dot_general(rows, columns, ((rows.ndim - 1,), (rows.ndim - 2,)), batch, None)
    return products.reshape(o, n, *out).swapaxes(0, 1)


def _by_slices(
    x: Array, w: Array, out: Ints, strides: Ints, padding: Pads, lhs_dilation: Ints, rhs_dilation: Ints, groups: int
) -> Array:
    """Compute a convolution of volumes as one of images: each slice of the result is an image whose channels are those
    of the slices that its window sees."""
    n, c = x.shape[:2]
    o, _, depth, *window = w.shape
    x = lax.pad(x, np.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), (*padding[0], lhs_dilation[0] - 1), *[(0, 0, 0)] * 2])
    patches = []
    for k in range(depth):
        first = k * rhs_dilation[0]
        patches.append(lax.slice_in_dim(x, first, first + (out[0] - 1) * strides[0] + 1, strides[0], axis=2))
    channels = jnp.stack(patches, 2).reshape(n, c * depth, out[0], *x.shape[3:])
    images = channels.swapaxes(1, 2).reshape(n * out[0], c * depth, *x.shape[3:])
    flat = lax.conv_general_dilated(
        images,
        w.reshape(o, -1, *window),
        strides[1:],
        padding[1:],
        lhs_dilation[1:],
        rhs_dilation[1:],
        feature_group_count=groups,
        precision=full_precision(),
    )
    return flat.reshape(n, out[0], o, *out[1:]).swapaxes(1, 2)


def _pointwise(x: Array, w: Array) -> Array:
    """Return the product of x (N, C, ...) with the weights (O, C, 1...)."""
    n, _, *out = x.shape
    o, c = w.shape[:2]
    w = w.reshape(o, c)
    positions = math.prod(out)
    if n == 1 or w.size <= FORWARD * positions:
        weights = jnp.broadcast_to(w, (n, o, c))
        return dot_general(weights, x.reshape(n, c, positions), ((2,), (1,)), ((0,), (0,)), None).reshape(n, o, *out)
    products = dot_general(jnp.moveaxis(x, 1, -1).reshape(-1, c), w, ((1,), (1,)), ((), ()), None)
    return jnp.moveaxis(products.reshape(n, *out, o), -1, 1)


def _by_positions(pieces: list[Array], w: Array, out: Ints, batches: int) -> Array:
    """Pieces (N, C, window), one a position of the result: for few positions of large windows."""
    n, c, *window = pieces[0].shape
    o = w.shape[0]
    if o == n == batches:  # one channel a group: a product of matrices would be one of vectors
        return jnp.stack([lax.reduce_sum(x * w, range(1, x.ndim)) for x in pieces], 1).reshape(1, o, *out)
    views = jnp.stack(pieces).reshape(len(pieces), batches, n // batches, c, *window)
    rows = w.reshape(batches, o // batches, c, *window)
    axes = range(len(window) + 1)
    contract = tuple(a + 2 for a in axes), tuple(a + 3 for a in axes)
    products = dot_general(rows, views, contract, ((0,), (1,)), None)  # (batches, O / batches, positions, N / batches)
    return products.reshape(o, *out, n // batches).transpose(len(out) + 1, *range(len(out) + 1))


def _depthwise(pieces: list[Array], w: Array) -> Array:
    """Compute a convolution with one channel a group as a sum of shifted images, which XLA fuses."""
    multiplier = w.shape[0] // pieces[0].shape[1]
    weights = w.reshape(w.shape[0], len(pieces))
    wide = [jnp.repeat(x, multiplier, axis=1) if multiplier > 1 else x for x in pieces]
    spatial = (1,) * (len(w.shape) - 2)
    terms = [x * weights[:, tap].reshape(-1, *spatial) for tap, x in enumerate(wide)]
    return functools.reduce(lax.add, terms)


# ---- its gradients ---------------------------------------------------------------------------------------------------


def transposed(x: Array, w: Array, strides: Ints, padding: Ints, dilation: Ints, output_padding: Ints) -> Array | None:
    """Compute `Backend.transposed_convolution` without groups, or return None. One product gives what each position of
    x adds to every tap; the results are then added up at the taps, so that the weights stay as they lie."""
    n, c, *spatial = x.shape
    o, *window = w.shape[1:]
    taps = math.prod(window)
    if 0 in x.shape or 0 in w.shape or not window:
        return None
    extents = list(zip(spatial, window, strides, dilation, padding, output_padding, strict=True))
    if min((i - 1) * s + d * (k - 1) + 1 - 2 * p + extra for i, k, s, d, p, extra in extents) < 1:
        return None
    area = math.prod(spatial)
    if not (taps == 1 or _few_places(n * area, taps, max(c, o)) or (taps <= MANY and taps > area)):
        return None
    if taps == 1 and w.size <= IMAGES * area:
        batched_weights = jnp.broadcast_to(w.reshape(c, o), (n, c, o))
        products = dot_general(batched_weights, x.reshape(n, c, area), ((1,), (1,)), ((0,), (0,)), None)
        cotangents = [products.reshape(n, o, *spatial)]
    else:
        rows = jnp.moveaxis(x, 1, -1).reshape(-1, c)
        products = dot_general(rows, w.reshape(c, o * taps), ((1,), (0,)), ((), ()), None)
        products = products.reshape(n, *spatial, o, taps)
        cotangents = [jnp.moveaxis(products[..., tap], -1, 1) for tap in range(taps)]
    zero = np.zeros((), x.dtype)
    placed = []
    for at, value in zip(np.ndindex(*window), cotangents, strict=True):
        config = []
        for t, (_, k, s, d, p, extra) in zip(at, extents, strict=True):
            config.append((t * d - p, (k - 1 - t) * d - p + extra, s - 1))
        placed.append(lax.pad(value, zero, [(0, 0, 0)] * 2 + config))
    return functools.reduce(lax.add, placed)


def weights(x: Array, grad: Array, window: Ints, strides: Ints, padding: Ints, dilation: Ints) -> Array | None:
    """Compute `Backend.convolution_weights` without groups, as one product of the gradient with the patches, or return
    None."""
    n, c, *sides = x.shape
    o, *out = grad.shape[1:]
    taps = math.prod(window)
    if 0 in x.shape or 0 in grad.shape or not window:
        return None
    area = math.prod(out)
    if not (taps == 1 or _few_places(n * area, taps, o) or (taps <= MANY and area > math.prod(sides))):
        return None
    config = [(0, 0, 0)] * 2
    for i, s, k, d, p, m in zip(sides, strides, window, dilation, padding, out, strict=True):
        config.append((p, (m - 1) * s + d * (k - 1) + 1 - i - p, 0))  # places that no window sees are cut off
    rows = grad.swapaxes(0, 1).reshape(o, -1)
    if taps == 1:
        x = lax.pad(x, np.zeros((), x.dtype), config)[:, :, *(slice(None, None, s) for s in strides)]
        if o * c <= WEIGHTS * area:
            factors = grad.reshape(n, o, area), x.reshape(n, c, area)
            return lax.reduce_sum(dot_general(*factors, ((2,), (2,)), ((0,), (0,)), None), (0,)).reshape(o, c, *window)
        pixels = jnp.moveaxis(x, 1, -1).reshape(-1, c)
        return dot_general(rows, pixels, ((1,), (0,)), ((), ()), None).reshape(o, c, *window)
    patches = _patches(x, config, tuple(window), dilation, tuple(out), strides).reshape(c * taps, -1)
    return dot_general(rows, patches, ((1,), (1,)), ((), ()), None).reshape(o, c, *window)
