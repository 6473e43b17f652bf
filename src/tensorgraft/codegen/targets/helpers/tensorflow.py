"""Functions of generated TensorFlow files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensorgraft.hub.operations.neural import taps

# ---- elementwise -----------------------------------------------------------------------------------------------------


def trunc(x: tf.Tensor) -> tf.Tensor:
    return tf.where(x < 0, tf.math.ceil(x), tf.floor(x))


def log2(x: tf.Tensor) -> tf.Tensor:
    """The logarithm, exact for powers of two."""
    y = tf.math.log(x) / tf.constant(math.log(2), x.dtype)
    if x.dtype.is_complex:
        return y
    exact = tf.math.is_finite(y) & (tf.constant(2, x.dtype) ** tf.round(y) == x)
    return y + tf.stop_gradient(tf.where(exact, tf.round(y) - y, tf.zeros_like(y)))


def signbit(x: tf.Tensor) -> tf.Tensor:
    """Return whether the sign bit is set, also for -0.0 and NaN."""
    return tf.bitcast(x, {2: tf.int16, 4: tf.int32, 8: tf.int64}[x.dtype.size]) < 0


def erf(x: tf.Tensor) -> tf.Tensor:
    """Compute erf; in double precision tf.math.erf is NaN at infinities."""
    return tf.where(tf.abs(x) > 9, tf.sign(x), tf.math.erf(x))


def erf_inv(x: tf.Tensor) -> tf.Tensor:
    """Compute erf_inv by its negative side, where TensorFlow loses nothing."""
    return -tf.sign(x) * tf.math.erfinv(-tf.abs(x))


def integer_pow(x: tf.Tensor, y: Any) -> tf.Tensor:
    """Integers to any power; negative powers are the truncated reciprocal, as in C."""
    dtype = x.dtype if tf.is_tensor(x) else y.dtype
    x, y = tf.cast(x, tf.int64), tf.cast(y, tf.int64)
    if dtype.is_unsigned:
        return tf.cast(x ** tf.maximum(y, 0), dtype)
    inverse = tf.where(tf.abs(x) == 1, tf.where(y % 2 == 1, x, x * x), tf.zeros_like(x))
    return tf.cast(tf.where(y < 0, inverse, x ** tf.maximum(y, 0)), dtype)


def left_shift(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Shift to the left; 0 if by as many bits as there are, or more."""
    fits = (y >= 0) & (y < 8 * x.dtype.size)
    shifted = tf.bitwise.left_shift(x, tf.where(fits, y, tf.zeros_like(y)))
    return tf.where(fits, shifted, tf.zeros_like(shifted))


def right_shift(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Shift to the right; 0, or -1 of negative numbers, if by as many bits as there are, or more."""
    most = tf.constant(8 * x.dtype.size - 1, y.dtype)
    fits = (y >= 0) & (y <= most)
    shifted = tf.bitwise.right_shift(x, tf.where(fits, y, most))
    return tf.where(fits, shifted, tf.zeros_like(shifted)) if x.dtype.is_unsigned else shifted


def nextafter(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    if x.dtype in (tf.float32, tf.float64):
        return tf.math.nextafter(x, y)
    x, y = x + tf.zeros_like(y), y + tf.zeros_like(x)
    bits = tf.bitcast(x, tf.int16)  # in the order of the numbers on each side of zero
    stepped = tf.where((y > x) == (x > 0), bits + 1, bits - 1)
    from_zero = tf.where(y > 0, tf.constant(1, tf.int16), tf.constant(-(2**15) + 1, tf.int16))
    out = tf.bitcast(tf.where(x == 0, from_zero, stepped), x.dtype)
    return tf.where(tf.math.is_nan(x) | tf.math.is_nan(y), x + y, tf.where(x == y, y, out))


def bitcast(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The bytes of x (n) as another dtype."""
    if x.dtype == dtype:
        return x
    if x.dtype == tf.bool:
        x = tf.cast(x, tf.uint8)
    if x.dtype.is_complex:
        x = tf.reshape(tf.stack([tf.math.real(x), tf.math.imag(x)], axis=1), [-1])
    if dtype == tf.bool:
        return bitcast(x, tf.uint8) != 0
    if dtype.is_complex:
        parts = tf.reshape(bitcast(x, dtype.real_dtype), [-1, 2])
        return tf.complex(parts[:, 0], parts[:, 1])
    if dtype.size > x.dtype.size:
        x = tf.reshape(x, [-1, dtype.size // x.dtype.size])
    return tf.reshape(tf.bitcast(x, dtype), [-1])


def gelu_tanh(x: tf.Tensor) -> tf.Tensor:
    """Hendrycks, Gimpel 2016."""
    return 0.5 * x * (1 + tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def padded_embedding(weight: tf.Tensor, indices: tf.Tensor, padding: int) -> tf.Tensor:
    """Rows of weight, of which that of `padding` is not trained."""
    rows = tf.gather(weight, indices)
    return tf.where((indices == padding)[..., None], tf.stop_gradient(rows), rows)


def elu(x: tf.Tensor, alpha: float) -> tf.Tensor:
    return tf.where(x > 0, x, alpha * tf.math.expm1(tf.minimum(x, 0)))


# ---- reductions ------------------------------------------------------------------------------------------------------


def variance(x: tf.Tensor, axis: Any = None, keepdims: bool = False, correction: float = 0) -> tf.Tensor:
    """Compute the variance with n - correction degrees of freedom."""
    mean = tf.reduce_mean(x, axis=axis, keepdims=True)
    n = math.prod(x.shape) / math.prod(mean.shape)
    total = tf.reduce_sum(tf.abs(x - mean) ** 2, axis=axis, keepdims=keepdims)
    return total / max(n - correction, 0)


def argmax(x: tf.Tensor, axis: int) -> tf.Tensor:
    """The first of the greatest values, or the first NaN."""
    best = (x == tf.reduce_max(x, axis=axis, keepdims=True)) | tf.math.is_nan(x)
    return tf.argmax(tf.cast(best, tf.uint8), axis=axis)


def argmin(x: tf.Tensor, axis: int) -> tf.Tensor:
    """The first of the least values, or the first NaN."""
    best = (x == tf.reduce_min(x, axis=axis, keepdims=True)) | tf.math.is_nan(x)
    return tf.argmax(tf.cast(best, tf.uint8), axis=axis)


def running(combine: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], x: tf.Tensor, axis: int) -> tf.Tensor:
    """Combine each element with those before it along an axis, in log2(n) rounds (Hillis, Steele 1986)."""
    n, step = x.shape[axis], 1
    while step < n:
        front, rest = tf.split(x, [step, n - step], axis=axis)
        before, _ = tf.split(x, [n - step, step], axis=axis)
        x = tf.concat([front, combine(rest, before)], axis=axis)
        step *= 2
    return x


# ---- updates, sorting ------------------------------------------------------------------------------------------------


def pad(x: tf.Tensor, value: Any, config: Sequence[tuple[int, int, int]]) -> tf.Tensor:
    """Each axis by (low, high, between two elements); negative numbers cut off."""
    apart = [n + max(n - 1, 0) * gap for n, (_, _, gap) in zip(x.shape, config, strict=True)]
    wide = [max(low, 0) + n + max(high, 0) for n, (low, high, _) in zip(apart, config, strict=True)]
    start = [max(low, 0) for low, _, _ in config]
    out = slice_update(tf.fill(wide, tf.cast(value, x.dtype)), x, start, [gap + 1 for _, _, gap in config])
    return out[tuple(slice(max(-low, 0), n + min(high, 0)) for n, (low, high, _) in zip(wide, config, strict=True))]


def slice_update(x: tf.Tensor, update: tf.Tensor, start: Sequence[Any], step: Sequence[int] | None = None) -> tf.Tensor:
    """`x` with `update` at `start`, in each axis every `step`."""
    if 0 in update.shape:
        return x
    step = step or [1] * len(x.shape)
    end = [b + (n - 1) * s + 1 for b, n, s in zip(start, update.shape, step, strict=True)]
    return tf.raw_ops.TensorStridedSliceUpdate(input=x, begin=start, end=end, strides=step, value=update)


def window(x: tf.Tensor, start: Sequence[Any], sizes: Sequence[int]) -> list[tf.Tensor]:
    """Return the start of a window along each axis, moved so that it fits."""
    return [
        tf.clip_by_value(tf.cast(at, tf.int32), 0, n - size) for at, n, size in zip(start, x.shape, sizes, strict=True)
    ]


def dynamic_slice(x: tf.Tensor, start: Sequence[Any], sizes: Sequence[int]) -> tf.Tensor:
    return tf.ensure_shape(tf.slice(x, window(x, start, sizes), sizes), sizes)


def dynamic_update_slice(x: tf.Tensor, update: tf.Tensor, start: Sequence[Any]) -> tf.Tensor:
    return slice_update(x, update, window(x, start, update.shape))


def together(indices: Sequence[tf.Tensor]) -> tf.Tensor:
    """Index arrays that broadcast, as one with a last axis."""
    shape = np.broadcast_shapes(*(i.shape for i in indices))
    return tf.stack([tf.broadcast_to(tf.cast(i, tf.int64), shape) for i in indices], axis=-1)


def gather(x: tf.Tensor, indices: Sequence[tf.Tensor]) -> tf.Tensor:
    """`x[i, j]` of arrays."""
    return tf.gather_nd(x, together(indices))


def scatter(x: tf.Tensor, indices: Sequence[tf.Tensor], updates: tf.Tensor, mode: str = "set") -> tf.Tensor:
    """`x` with updates put (added, ...) at `x[i, j]`."""
    if x.dtype == tf.bool and mode != "set":
        mode = {"add": "max", "multiply": "min"}.get(mode, mode)
        return tf.cast(scatter(tf.cast(x, tf.int32), indices, tf.cast(updates, tf.int32), mode), tf.bool)
    wide = {tf.float16: tf.float32, tf.bfloat16: tf.float32, tf.int8: tf.int32, tf.int16: tf.int32, tf.uint8: tf.int32,
            tf.uint16: tf.int32, tf.uint32: tf.int64, tf.uint64: tf.int64}  # fmt: skip
    if mode != "set" and x.dtype in wide and not (x.dtype == tf.uint64 and mode in ("min", "max")):
        carrier = wide[x.dtype]
        return tf.cast(scatter(tf.cast(x, carrier), indices, tf.cast(updates, carrier), mode), x.dtype)
    if not indices:
        combine = {"add": tf.add, "multiply": tf.multiply, "min": tf.minimum, "max": tf.maximum}
        return combine[mode](x, updates) if mode in combine else tf.broadcast_to(updates, x.shape)
    at = together(indices)
    updates = tf.broadcast_to(updates, [*at.shape[:-1], *x.shape[at.shape[-1] :]])
    if len(at.shape) == 1:
        at, updates = at[None], updates[None]
    if mode == "multiply":
        return multiplied(x, at, updates)
    put = {
        "set": tf.tensor_scatter_nd_update,
        "add": tf.tensor_scatter_nd_add,
        "min": tf.tensor_scatter_nd_min,
        "max": tf.tensor_scatter_nd_max,
    }[mode]
    return put(x, at, updates)


def multiplied(x: tf.Tensor, at: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
    """One factor after the other."""
    k = at.shape[-1]
    places, factors = tf.reshape(at, [-1, k]), tf.reshape(updates, [-1, *x.shape[k:]])
    for i in range(places.shape[0]):
        here = places[i : i + 1]
        x = tf.tensor_scatter_nd_update(x, here, tf.gather_nd(x, here) * factors[i : i + 1])
    return x


def along(indices: tf.Tensor, axis: int) -> list[tf.Tensor]:
    """Index arrays that say where `indices`, used along an axis, look."""
    grid = tf.meshgrid(*(tf.range(n, dtype=tf.int64) for n in indices.shape), indexing="ij")
    grid[axis] = tf.cast(indices, tf.int64)
    return grid


def take_along_axis(x: tf.Tensor, indices: tf.Tensor, axis: int) -> tf.Tensor:
    return tf.gather_nd(x, together(along(indices, axis)))


def put_along_axis(x: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor, axis: int, mode: str = "set") -> tf.Tensor:
    if not x.shape:
        flat = scatter(x[None], [tf.reshape(indices, [-1])], tf.reshape(updates, [-1]), mode)
        return flat[0]
    return scatter(x, along(indices, axis), updates, mode)


def positive(i: tf.Tensor, n: int) -> tf.Tensor:
    """Indices counted from the front."""
    return tf.where(i < 0, i + n, i)


def index(x: tf.Tensor, indices: Sequence[tf.Tensor | None]) -> tf.Tensor:
    """`x[indices]` of arrays of integers, and None for `:`."""
    axes = [a for a, i in enumerate(indices) if i is not None]
    rest = [a for a in range(len(x.shape)) if a not in axes]
    at = together([positive(indices[a], x.shape[a]) for a in axes])
    k, before = len(at.shape) - 1, axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    out = tf.gather_nd(tf.transpose(x, axes + rest), at)
    return tf.transpose(out, [*range(k, k + before), *range(k), *range(k + before, k + len(rest))])


def index_update(x: tf.Tensor, indices: Sequence[tf.Tensor | None], values: tf.Tensor, mode: str = "set") -> tf.Tensor:
    """`x` after `x[indices] = values`, or `+=` of every one of them."""
    axes = [a for a, i in enumerate(indices) if i is not None]
    rest = [a for a in range(len(x.shape)) if a not in axes]
    arrays = [positive(indices[a], x.shape[a]) for a in axes]
    lead = np.broadcast_shapes(*(i.shape for i in arrays))
    k, before = len(lead), axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    place = [*range(k, k + before), *range(k), *range(k + before, k + len(rest))]
    shape = [*lead, *(x.shape[a] for a in rest)]
    values = tf.transpose(tf.broadcast_to(values, [shape[a] for a in place]), np.argsort(place))
    out = scatter(tf.transpose(x, axes + rest), arrays, values, mode)
    return tf.transpose(out, np.argsort(axes + rest))


def argsort(x: tf.Tensor, axis: int = -1, descending: bool = False) -> tf.Tensor:
    """Stable; NaN counts as greatest."""
    if x.dtype == tf.bool:
        x = tf.cast(x, tf.uint8)
    direction = "DESCENDING" if descending else "ASCENDING"
    if not x.dtype.is_floating:
        return tf.cast(tf.argsort(x, axis=axis, direction=direction, stable=True), tf.int64)
    numbers = tf.where(tf.math.is_nan(x), tf.constant(math.inf, x.dtype), x)
    order = tf.cast(tf.argsort(numbers, axis=axis, direction=direction, stable=True), tf.int64)
    unknown = tf.cast(take_along_axis(tf.math.is_nan(x), order, axis), tf.uint8)
    last = tf.argsort(unknown, axis=axis, direction=direction, stable=True)
    return take_along_axis(order, last, axis)


def sort_with_indices(x: tf.Tensor, axis: int = -1, descending: bool = False) -> tuple[tf.Tensor, tf.Tensor]:
    """The values in order, and where they were."""
    order = argsort(x, axis, descending)
    return take_along_axis(x, order, axis), order


def sort(operands: Sequence[tf.Tensor], axis: int = -1, num_keys: int = 1) -> tuple[tf.Tensor, ...]:
    """Tensors ordered together, by the first of them."""
    order = argsort(operands[num_keys - 1], axis)
    for key in reversed(operands[: num_keys - 1]):
        order = take_along_axis(order, argsort(take_along_axis(key, order, axis), axis), axis)
    return tuple(take_along_axis(x, order, axis) for x in operands)


def searchsorted(boundaries: tf.Tensor, values: tf.Tensor, side: str = "left") -> tf.Tensor:
    """Return the indices at which `values` go into the sorted `boundaries`, row by row."""
    before = tf.less if side == "left" else tf.less_equal
    found = before(boundaries[..., None, :] if len(boundaries.shape) > 1 else boundaries, values[..., None])
    return tf.reduce_sum(tf.cast(found, tf.int64), axis=-1)


# ---- matrices --------------------------------------------------------------------------------------------------------


def eigh(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the real eigenvalues and the eigenvectors of complex matrices."""
    values, vectors = tf.linalg.eigh(x)
    return tf.math.real(values), vectors


def svd(x: tf.Tensor, full_matrices: bool = False) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(u, s, the adjoint of v)."""
    s, u, v = tf.linalg.svd(x, full_matrices=full_matrices)
    return u, s, tf.linalg.adjoint(v)


def lu(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(L and U in one matrix, which row was swapped in each step, the order of the rows)."""
    *batch, m, n = x.shape
    rows, columns, b = tf.range(m), tf.range(n), len(batch)
    order = tf.broadcast_to(rows, [*batch, m])
    pivots = [tf.zeros([*batch, 0], tf.int32)]
    for k in range(min(m, n)):
        size = tf.where(rows >= k, tf.abs(x[..., k]), -1)
        best = tf.argmax(size, axis=-1, output_type=tf.int32)[..., None]
        swapped = tf.where(rows == k, best, tf.where(rows == best, k, rows))
        x, order = tf.gather(x, swapped, batch_dims=b, axis=b), tf.gather(order, swapped, batch_dims=b, axis=b)
        pivot = x[..., k : k + 1, k : k + 1]
        below = (rows > k)[:, None] & (pivot != 0)
        factor = tf.where(below, x[..., k : k + 1] / tf.where(pivot == 0, tf.ones_like(pivot), pivot), 0)
        left = x - factor * x[..., k : k + 1, :]
        x = tf.where(below & (columns > k), left, tf.where(below & (columns == k), factor, x))
        pivots.append(best)
    return x, tf.concat(pivots, axis=-1), order


def triangular_solve(
    a: tf.Tensor, b: tf.Tensor, lower: bool, left: bool = True, transpose: bool = False, adjoint: bool = False,
    unit_diagonal: bool = False,
) -> tf.Tensor:  # fmt: skip
    """x with a x = b (or x a = b), from one triangle of `a`."""
    if unit_diagonal:
        a = tf.linalg.set_diag(a, tf.ones_like(tf.linalg.diag_part(a)))
    if transpose or adjoint:
        a, lower = tf.linalg.matrix_transpose(a, conjugate=adjoint), not lower
    if left:
        return tf.linalg.triangular_solve(a, b, lower=lower)
    turned = tf.linalg.triangular_solve(tf.linalg.matrix_transpose(a), tf.linalg.matrix_transpose(b), lower=not lower)
    return tf.linalg.matrix_transpose(turned)


def householder_product(a: tf.Tensor, tau: tf.Tensor) -> tf.Tensor:
    """The first columns of the product of reflectors (LAPACK's orgqr)."""
    m, n = a.shape[-2:]
    out = tf.broadcast_to(tf.eye(m, n, dtype=a.dtype), a.shape)
    for k in reversed(range(tau.shape[-1])):
        v = tf.concat([tf.zeros_like(a[..., :k, k]), tf.ones_like(a[..., :1, k]), a[..., k + 1 :, k]], axis=-1)
        row = tf.math.conj(v)[..., None, :] @ out
        out = out - tau[..., k, None, None] * v[..., None] * row
    return out


# ---- windows ---------------------------------------------------------------------------------------------------------


def convolution(
    x: tf.Tensor,
    weight: tf.Tensor,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    groups: int = 1,
    batch_groups: int = 1,
) -> tf.Tensor:
    """x (N, C, spatial...) with weight (O, C / groups, spatial...): TensorFlow has the channels at the end."""
    n, dtype = len(strides), x.dtype
    narrow = {tf.float16: tf.float32, tf.bfloat16: tf.float32}
    wide = tf.int32 if dtype.is_integer and dtype.size <= 4 else narrow.get(dtype, dtype)
    if wide != dtype:
        x, weight = tf.cast(x, wide), tf.cast(weight, wide)
    gaps = [d - 1 for d in lhs_dilation or [1] * n]
    dilation = list(rhs_dilation or [1] * n)
    config = [(0, 0, 0), (0, 0, 0), *((*p, g) for p, g in zip(padding, gaps, strict=True))]
    if any(map(any, config)):
        x = pad(x, 0, config)
    reach = [d * (k - 1) + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
    places = [max(s - r, -t) // t + 1 for s, r, t in zip(x.shape[2:], reach, strides, strict=True)]
    shape = [x.shape[0] // batch_groups, weight.shape[0], *places]
    if 0 in (*shape, *weight.shape):
        return tf.zeros(shape, dtype)
    x = tf.transpose(x, [0, *range(2, n + 2), 1])
    weight = tf.transpose(weight, [*range(2, n + 2), 1, 0])
    many = groups * batch_groups
    xs = tf.split(x, groups, axis=-1) if batch_groups == 1 else tf.split(x, batch_groups, axis=0)
    both = max(strides, default=1) > 1 and max(dilation, default=1) > 1  # of which TensorFlow has one at a time
    rows = []
    layout = "NDHWC" if n == 3 else None  # which the derivative asks for
    for part, w in zip(xs, tf.split(weight, many, axis=-1), strict=True):
        if n == 0:
            rows.append(part @ w)
        elif both:
            whole = tf.nn.convolution(part, w, padding="VALID", dilations=dilation, data_format=layout)
            rows.append(whole[(slice(None), *(slice(None, None, s) for s in strides))])
        else:
            rows.append(
                tf.nn.convolution(
                    part, w, strides=list(strides), padding="VALID", dilations=dilation, data_format=layout
                )
            )
    y = rows[0] if many == 1 else tf.concat(rows, axis=-1)
    return tf.cast(tf.transpose(y, [0, n + 1, *range(1, n + 1)]), dtype)


def reduce_window(
    reduce: Callable[..., tf.Tensor],
    x: tf.Tensor,
    initial: Any,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] | None = None,
) -> tf.Tensor:
    """Sums, maxima or minima over windows, one size an axis; one axis after the other."""
    if any(map(any, padding)):
        x = pad(x, tf.constant(initial, x.dtype), [(*p, 0) for p in padding])
    for axis, (k, s, d) in enumerate(zip(window, strides, dilation or [1] * len(window), strict=True)):
        n = max(x.shape[axis] - d * (k - 1) - 1, -s) // s + 1
        if k > 1 or s > 1:
            at = [i * d for i in range(k)]
            index = [slice(None)] * axis
            seen = [x[(*index, slice(i, i + (n - 1) * s + 1 if n else i, s))] for i in at]
            x = reduce(tf.stack(seen), axis=0)
    return x


# ---- control flow ----------------------------------------------------------------------------------------------------


def scan(
    step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: tuple[Any, ...], length: int, reverse: bool = False
) -> tuple[Any, Any]:
    """`step(carry, x) -> (carry, y)` along the first axis; (the last carry, the stacked ys)."""
    order = range(length - 1, -1, -1) if reverse else range(length)
    rows = []
    for i in order:
        carry, y = step(carry, tuple(x[i] for x in xs))
        rows.append(y)
    if reverse:
        rows.reverse()
    return carry, tuple(tf.stack(ys) for ys in zip(*rows, strict=True))


# ---- words -----------------------------------------------------------------------------------------------------------


def conv_channels_last(
    x: tf.Tensor,
    weight: tf.Tensor,
    bias: tf.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int | tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> tf.Tensor:
    """x (N, spatial..., C) with weight (spatial..., C / groups, O) and bias (O)."""
    n = len(weight.shape) - 2
    each: list[Any] = [v if isinstance(v, tuple) else (v,) * n for v in (stride, padding, dilation)]
    strides, pads, gaps = each
    pads = [p if isinstance(p, tuple) else (p, p) for p in pads]
    if any(map(any, pads)):
        x = tf.pad(x, [(0, 0), *pads, (0, 0)])
    both = max(strides) > 1 and max(gaps) > 1  # of which TensorFlow has one at a time
    once = [1] * n if both else list(strides)
    layout = "NDHWC" if n == 3 else None  # which the derivative asks for
    rows = [
        tf.nn.convolution(part, w, strides=once, padding="VALID", dilations=list(gaps), data_format=layout)
        for part, w in zip(tf.split(x, groups, axis=-1), tf.split(weight, groups, axis=-1), strict=True)
    ]
    y = rows[0] if groups == 1 else tf.concat(rows, axis=-1)
    if both:
        y = y[(slice(None), *(slice(None, None, s) for s in strides))]
    return y if bias is None else y + bias


def dropout(x: tf.Tensor, key: tf.Tensor, rate: float) -> tf.Tensor:
    """Zeros at random, the rest divided by 1 - rate."""
    return tf.nn.experimental.stateless_dropout(x, rate, seed=key)


def resize(x: tf.Tensor, size: tuple[int, ...], method: str = "nearest", corners: bool = False) -> tf.Tensor:
    """The last axes of x at another size: by the nearest places, or "linear" or "cubic" (Keys 1981) between them."""
    for axis, m in zip(range(len(x.shape) - len(size), len(x.shape)), size, strict=True):
        n = x.shape[axis]
        if method == "nearest":
            x = tf.gather(x, np.arange(m) * n // m, axis=axis)
        elif n != m:
            weights = tf.constant(taps(n, m, method, corners), x.dtype)
            x = tf.experimental.numpy.moveaxis(tf.tensordot(x, weights, [[axis], [1]]), -1, axis)
    return x
