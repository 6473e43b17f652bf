"""Words: what a front end may write in a `SourceTrace` beside operations of the hub, as people write.

A word is a function of a backend, which says what it means in operations of the hub (a target that has no name for it
writes these), and of arrays and static values: indexing, random numbers, what has no derivative. Layers of neural
networks are operations of the hub (`hub.operations.neural`).

    @word
    def flatten(xp, x, start=0, end=-1): ...

`SourceStep("flatten", (x,), {}, y)` is a call of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.hub import contraction, dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.operations import operations

Ints = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]
WORDS: dict[str, Callable[..., Any]] = {}


def word(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a word: `fn(xp, *arguments)`."""
    WORDS[fn.__name__] = fn
    return fn


def definition(method: str) -> Callable[..., Any]:
    """Return what a word or an operation of the hub means: a function of a backend and the arguments."""
    return WORDS.get(method) or operations()[method]


# ---- shapes ----------------------------------------------------------------------------------------------------------


@word
def getitem(xp: Any, x: Array, index: tuple[Any, ...]) -> Array:
    """`x[index]`: numbers, slices (of positive steps), None and Ellipsis, as in NumPy; no arrays (see `index`)."""
    shape = xp.shape(x)
    taken = sum(i is not None and i is not Ellipsis for i in index)
    if Ellipsis not in index:
        index = (*index, Ellipsis)
    at = index.index(Ellipsis)
    index = (*index[:at], *[slice(None)] * (len(shape) - taken), *index[at + 1 :])
    start: list[int] = []
    stop: list[int] = []
    step: list[int] = []
    new: list[int] = []
    for i in index:
        if i is None:
            new.append(1)
            continue
        n = shape[len(start)]
        if isinstance(i, slice):
            a, b, c = i.indices(n)
            new.append(max(0, -(-(b - a) // c)))
            b = max(a, b)
        else:
            a, c = i + n if i < 0 else i, 1
            b = a + 1
        start.append(a)
        stop.append(b)
        step.append(c)
    return xp.reshape(xp.slice(x, tuple(start), tuple(stop), tuple(step)), tuple(new))


@word
def flatten(xp: Any, x: Array, start: int = 0, end: int = -1) -> Array:
    """The axes from `start` to `end`, both included, as one."""
    shape = xp.shape(x)
    start, end = start % max(len(shape), 1), end % max(len(shape), 1)
    size = 1
    for n in shape[start : end + 1]:
        size *= n
    return xp.reshape(x, (*shape[:start], size, *shape[end + 1 :]))


@word
def index(xp: Any, x: Array, indices: tuple[Array | None, ...]) -> Array:
    """`x[indices]` with arrays of integers that are within the axes or negative, and None for `:`; as in NumPy."""
    order, arrays, place = _indexed(xp, x, indices)
    return xp.permute_dims(xp.gather(xp.permute_dims(x, order), arrays), place)


@word
def index_update(xp: Any, x: Array, indices: tuple[Array | None, ...], values: Array, mode: str = "set") -> Array:
    """`x` after `x[indices] = values`, or `+=` of every one of them (`mode="add"`)."""
    order, arrays, place = _indexed(xp, x, indices)
    lead = np.broadcast_shapes(*map(xp.shape, arrays))
    target = (*lead, *(xp.shape(x)[a] for a in order[len(arrays) :]))
    values = xp.broadcast_to(values, tuple(target[a] for a in place))
    values = xp.permute_dims(values, tuple(np.argsort(place).tolist()))
    out = xp.scatter(xp.permute_dims(x, order), arrays, values, mode=mode)
    return xp.permute_dims(out, tuple(np.argsort(order).tolist()))


def _indexed(xp: Any, x: Array, indices: tuple[Any, ...]) -> tuple[Ints, tuple[Array, ...], Ints]:
    """(the axes that are indexed, then the others; indices that are not negative; where axes of the result lie)."""
    axes = tuple(axis for axis, i in enumerate(indices) if i is not None)
    rest = tuple(axis for axis in range(xp.ndim(x)) if axis not in axes)
    arrays = tuple(_counted(xp, indices[axis], xp.shape(x)[axis]) for axis in axes)
    k = len(np.broadcast_shapes(*map(xp.shape, arrays)))
    together = axes == tuple(range(axes[0], axes[0] + len(axes)))
    before = axes[0] if together else 0
    place = (*range(k, k + before), *range(k), *range(k + before, k + len(rest)))
    return (*axes, *rest), arrays, place


def _counted(xp: Any, i: Array, n: int) -> Array:
    return i if xp.dtype_of(i).kind == "u" else xp.where(xp.less(i, 0), xp.add(i, n), i)


@word
def arange(xp: Any, start: float, stop: float, step: float, dtype: np.dtype) -> Array:
    """start, start + step, ... as long as they are before stop."""
    n = max(0, math.ceil((stop - start) / step))
    wide = dtypes.int64 if dtypes.is_integer(dtype) else dtypes.float64
    at = xp.astype(xp.iota(n, dtypes.int64), wide)
    return xp.astype(xp.add(xp.multiply(at, step), start), dtype)


@word
def pad_reflect(xp: Any, x: Array, pads: Pads) -> Array:
    """`x` with (before, after) more elements along each of its last axes, of which there are up to three, after one or
    two others: the elements inside of the first and the last one, mirrored."""

    def around(x: Array, axis: int, low: int, high: int) -> tuple[Array, Array]:
        n = xp.shape(x)[axis]
        before, after = xp.take_slice(x, axis, 1, low + 1), xp.take_slice(x, axis, n - 1 - high, n - 1)
        return xp.flip(before, (axis,)), xp.flip(after, (axis,))

    return _padded(xp, x, pads, around)


@word
def pad_edge(xp: Any, x: Array, pads: Pads) -> Array:
    """Pad `x` along its axes as `pad_reflect` does, with the first and the last element repeated."""

    def around(x: Array, axis: int, low: int, high: int) -> tuple[Array, Array]:
        n = xp.shape(x)[axis]
        first, last = xp.take_slice(x, axis, 0, 1), xp.take_slice(x, axis, n - 1, n)
        return xp.repeat(first, low, axis), xp.repeat(last, high, axis)

    return _padded(xp, x, pads, around)


def _padded(xp: Any, x: Array, pads: Pads, around: Callable[..., tuple[Array, Array]]) -> Array:
    for axis, (low, high) in enumerate(pads, xp.ndim(x) - len(pads)):
        before, after = around(x, axis, low, high)
        parts = [*([before] if low else []), x, *([after] if high else [])]
        x = xp.concat(parts, axis=axis) if len(parts) > 1 else x
    return x


# ---- products --------------------------------------------------------------------------------------------------------


@word
def einsum(xp: Any, equation: str, operands: tuple[Array, ...]) -> Array:
    """Two operands at a time; letters, without repeated ones in an operand; `...` in front."""
    return contraction.einsum(xp, equation, *operands)


@word
def embedding(xp: Any, weight: Array, indices: Array, padding: int | None = None) -> Array:
    """Rows of weight (rows, width). That of `padding` is not trained: it has no derivative."""
    return xp.gather(weight, (indices,))


# ---- gradients and randomness ----------------------------------------------------------------------------------------


@word
def stop_gradient(xp: Any, x: Array) -> Array:
    return x


@word
def dropout(xp: Any, x: Array, key: Array, rate: float) -> Array:
    """Zeros in the places that `key` says, the rest divided by 1 - rate. Each framework has its own random numbers."""
    kept = xp.greater_equal(xp.uniform(key, xp.shape(x), xp.dtype_of(x)), rate)
    return xp.where(kept, xp.multiply(x, 1 / (1 - rate)), xp.zeros_like(x))


@word
def split_key(xp: Any, key: Array) -> tuple[Array, Array]:
    """(a key to go on with, a key to use): uint32 (2,) each."""
    zero, one, two = (xp.full((), n, dtypes.uint32) for n in range(3))
    return xp.fold_in(key, zero, one), xp.fold_in(key, zero, two)


# ---- the random numbers of JAX ---------------------------------------------------------------------------------------
# of keys as `jax.random.key_data` has them: uint32 (2,), of Threefry


def _numbered(xp: Any, key: Array, shape: Ints) -> tuple[Array, Array]:
    """The cipher of 0, 1, 2, ..."""
    at = xp.reshape(xp.iota(math.prod(shape), dtypes.uint32), shape)
    return xp.threefry2x32(key, xp.zeros(shape, dtypes.uint32), at)


@word
def jax_bits(xp: Any, key: Array, shape: Ints) -> Array:
    """`jax.random.bits`: uint32."""
    return xp.bitwise_xor(*_numbered(xp, key, shape))


@word
def jax_uniform(xp: Any, key: Array, shape: Ints) -> Array:
    """`jax.random.uniform`: float32 in [0, 1), on a grid of 2^-23."""
    bits = xp.bitwise_right_shift(jax_bits(xp, key, shape), xp.full((), 9, dtypes.uint32))
    return xp.multiply(xp.astype(bits, dtypes.float32), 2.0**-23)


@word
def jax_normal(xp: Any, key: Array, shape: Ints) -> Array:
    """`jax.random.normal`: float32."""
    low = float(np.nextafter(np.float32(-1), np.float32(0)))
    z = xp.maximum(xp.add(xp.multiply(jax_uniform(xp, key, shape), 2.0), low), low)
    return xp.multiply(xp.erf_inv(z), float(np.float32(math.sqrt(2))))


@word
def jax_split(xp: Any, key: Array, shape: Ints) -> Array:
    """`jax.random.split`: keys (*shape, 2)."""
    return xp.stack(_numbered(xp, key, shape), axis=len(shape))


@word
def jax_fold_in(xp: Any, key: Array, data: Array) -> Array:
    """`jax.random.fold_in` of a number (uint32 without axes)."""
    return xp.stack(xp.threefry2x32(key, xp.zeros_like(data), data), axis=0)
