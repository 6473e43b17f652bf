"""Shapes, layouts, creation. What a shape says is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import EVERY, rule
from tensorgraft.frontends.tensorflow.rules.mathematics.reduction import axes_of
from tensorgraft.frontends.tensorflow.values import VariableCell, is_known, lifted
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import Value, ValueBackend, with_operators

Ints = tuple[int, ...]


def ints(x: np.ndarray) -> Ints:
    return tuple(int(n) for n in np.ravel(x))


def _shape(xp: Backend, x: Any) -> Ints:
    if isinstance(x, VariableCell):
        x = x.value
    return tuple(x.shape) if is_known(x) else tuple(xp.shape(x))


@rule("Shape", "VariableShape", either=EVERY)
def shape(xp: Backend, x: Any, *, out_type: np.dtype = dtypes.int32) -> np.ndarray:
    return np.asarray(_shape(xp, x), out_type)


@rule("ShapeN", either=EVERY)
def shape_n(xp: Backend, *xs: Any, out_type: np.dtype = dtypes.int32) -> list[np.ndarray]:
    return [np.asarray(_shape(xp, x), out_type) for x in xs]


@rule("Size", either=EVERY)
def size(xp: Backend, x: Any, *, out_type: np.dtype = dtypes.int32) -> np.ndarray:
    return np.asarray(math.prod(_shape(xp, x)), out_type)


@rule("Rank", either=EVERY)
def rank(xp: Backend, x: Any) -> np.ndarray:
    return np.asarray(len(_shape(xp, x)), np.int32)


@rule("BroadcastArgs", known=(0, 1))
def broadcast_args(xp: Backend, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(np.broadcast_shapes(ints(a), ints(b)), a.dtype)


@rule("BroadcastGradientArgs", known=(0, 1))
def broadcast_gradient_args(xp: Backend, a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    """Over which axes of the result the derivatives of two operands are summed."""
    n = max(a.size, b.size)
    shapes = [(1,) * (n - s.size) + ints(s) for s in (a, b)]
    if shapes[0] == shapes[1] and a.size == b.size:
        return [np.asarray([], a.dtype)] * 2
    return [np.asarray([i for i, m in enumerate(s) if m == 1], a.dtype) for s in shapes]


@rule("Reshape", known=("shape",))
def reshape(xp: Backend, x: Array, shape: np.ndarray) -> Array:
    extents = filled(ints(shape), xp.size(x))
    if math.prod(extents) != xp.size(x):
        raise ValueError(f"a tensor of {xp.size(x)} elements cannot be reshaped to {list(ints(shape))}")
    return xp.reshape(x, extents)


def filled(shape: Ints, size: int) -> Ints:
    """Return a shape in which -1 is replaced by the extent that it stands for."""
    if -1 not in shape:
        return shape
    rest = math.prod(n for n in shape if n != -1)
    return tuple((size // rest if rest else 0) if n == -1 else n for n in shape)


@rule("Transpose", known=("perm",))
def transpose(xp: Backend, x: Array, perm: np.ndarray) -> Array:
    return xp.permute_dims(x, ints(perm))


@rule("ConjugateTranspose", known=("perm",))
def conjugate_transpose(xp: Backend, x: Array, perm: np.ndarray) -> Array:
    x = xp.permute_dims(x, ints(perm))
    return xp.conj(x) if dtypes.is_complex(xp.dtype_of(x)) else x


@rule("ExpandDims", known=("axis",))
def expand_dims(xp: Backend, x: Array, axis: np.ndarray) -> Array:
    return xp.expand_dims(x, int(axis.item()))


@rule("Squeeze")
def squeeze(xp: Backend, x: Array, *, squeeze_dims: Ints = ()) -> Array:
    axes = squeeze_dims or tuple(i for i, n in enumerate(xp.shape(x)) if n == 1)
    return xp.squeeze(x, tuple(axes)) if axes else x


@rule("BroadcastTo", known=("shape",))
def broadcast_to(xp: Backend, x: Array, shape: np.ndarray) -> Array:
    return xp.broadcast_to(x, ints(shape))


@rule("Tile", known=("multiples",))
def tile(xp: Backend, x: Array, multiples: np.ndarray) -> Array:
    return xp.tile(x, ints(multiples)) if multiples.size else x


@rule("Fill", known=("dims",))
def fill(xp: Backend, dims: np.ndarray, value: Array) -> Array:
    return xp.broadcast_to(value, ints(dims))


@rule("Empty", known=("dims",))
def empty(xp: Backend, dims: np.ndarray, *, dtype: np.dtype) -> Array:
    return xp.zeros(ints(dims), dtype)


@rule("Range", either=EVERY)
def range_(xp: Backend, start: Any, limit: Any, delta: Any, *, Tidx: np.dtype) -> Any:
    """The bounds say how many there are: they have to be known."""
    if all(map(is_known, (start, limit, delta))):
        return np.arange(start.item(), limit.item(), delta.item()).astype(Tidx)
    start, limit, delta = (x if is_known(x) else xp.to_numpy(x) for x in (start, limit, delta))
    return lifted(xp, np.arange(start.item(), limit.item(), delta.item()).astype(Tidx))


@rule("LinSpace", known=("num",))
@with_operators
def linspace(xp: ValueBackend, start: Value, stop: Value, num: np.ndarray) -> Value:
    n, dtype = int(num), start.dtype
    if n == 1:
        return xp.reshape(start, (1,))
    step = (stop - start) / (n - 1)
    inner = xp.astype(xp.iota(n - 1, dtypes.int64), dtype) * step + start
    return xp.concat([inner, xp.reshape(stop, (1,))], axis=0)


@rule("ConcatV2", known=(-1,))
def concat_v2(xp: Backend, *values: Any) -> Array:
    *arrays, axis = values
    return xp.concat(arrays, axis=int(axis) % xp.ndim(arrays[0]))


@rule("Concat", known=(0,))
def concat(xp: Backend, axis: np.ndarray, *arrays: Array) -> Array:
    return concat_v2(xp, *arrays, axis)


@rule("ConcatOffset", known=EVERY)
def concat_offset(xp: Backend, axis: np.ndarray, *shapes: np.ndarray) -> list[np.ndarray]:
    at, offsets, total = int(axis), [], 0
    for s in shapes:
        offset_vector = np.zeros_like(s)
        offset_vector[at] = total
        total += int(s[at])
        offsets.append(offset_vector)
    return offsets


@rule("Pack")
def pack(xp: Backend, *arrays: Array, axis: int = 0) -> Any:
    if not xp.is_array(arrays[0]):  # a tensor of lists, of compressed matrices, ...
        return arrays
    return xp.stack(arrays, axis=axis)


@rule("Unpack")
def unpack(xp: Backend, x: Any, *, axis: int = 0) -> list[Any]:
    return list(x) if isinstance(x, tuple) else xp.unstack(x, axis)


@rule("Split", known=(0,))
def split(xp: Backend, axis: np.ndarray, x: Array, *, num_split: int) -> list[Array]:
    at = int(axis) % xp.ndim(x)
    return xp.split(x, [xp.shape(x)[at] // num_split] * num_split, at)


@rule("SplitV", known=("sizes", "axis"))
def split_v(xp: Backend, x: Array, sizes: np.ndarray, axis: np.ndarray) -> list[Array]:
    at = int(axis) % xp.ndim(x)
    return xp.split(x, split_sizes(ints(sizes), xp.shape(x)[at]), at)


def split_sizes(sizes: Ints, total: int) -> Sequence[int]:
    return [total - sum(n for n in sizes if n >= 0) if n < 0 else n for n in sizes]


@rule("ReverseV2", known=("axes",))
def reverse_v2(xp: Backend, x: Array, axes: np.ndarray) -> Array:
    over = axes_of(xp, x, axes)
    return xp.flip(x, over) if over else x


@rule("Reverse", known=("dims",))
def reverse(xp: Backend, x: Array, dims: np.ndarray) -> Array:
    over = tuple(i for i, flips in enumerate(dims) if flips)
    return xp.flip(x, over) if over else x


@rule("Roll", known=("shift", "axis"))
def roll(xp: Backend, x: Array, shift: np.ndarray, axis: np.ndarray) -> Array:
    for by, at in zip(np.ravel(shift), np.ravel(axis), strict=True):
        x = xp.roll(x, int(by), int(at))
    return x


@rule("InvertPermutation", known=(0,))
def invert_permutation(xp: Backend, p: np.ndarray) -> np.ndarray:
    return np.argsort(p).astype(p.dtype)


# ---- padding, blocks -------------------------------------------------------------------------------------------------


@rule("Pad", "PadV2", known=("paddings",))
def pad(xp: Backend, x: Array, paddings: np.ndarray, value: Any = 0) -> Array:
    return xp.pad(x, value, [(int(low), int(high), 0) for low, high in paddings])


@rule("MirrorPad", known=("paddings",))
def mirror_pad(xp: Backend, x: Array, paddings: np.ndarray, *, mode: str) -> Array:
    inner = mode == "REFLECT"
    for axis, (low, high) in enumerate(paddings):
        n = xp.shape(x)[axis]
        before = xp.flip(xp.take_slice(x, axis, int(inner), int(low) + inner), (axis,))
        reflected = xp.flip(xp.take_slice(x, axis, n - int(high) - inner, n - inner), (axis,))
        x = xp.concat([before, x, reflected], axis=axis)
    return x


@rule("MirrorPadGrad", known=("paddings",))
@with_operators
def mirror_pad_grad(xp: ValueBackend, d: Value, paddings: np.ndarray, *, mode: str) -> Value:
    inner = int(mode == "REFLECT")
    for axis, (low, high) in enumerate(paddings):
        low, high = int(low), int(high)
        n = d.shape[axis] - low - high
        middle = xp.take_slice(d, axis, low, low + n)

        def placed(part: Value, before: int, pad_after: int, axis: int = axis) -> Value:
            pad_config = [(before, pad_after, 0) if a == axis else (0, 0, 0) for a in range(part.ndim)]
            return xp.pad(xp.flip(part, (axis,)), 0, pad_config)

        first = placed(xp.take_slice(d, axis, 0, low), inner, n - low - inner)
        last = placed(xp.take_slice(d, axis, low + n, low + n + high), n - high - inner, inner)
        d = middle + first + last
    return d


@rule("SpaceToBatchND", known=("block", "paddings"))
def space_to_batch_nd(xp: Backend, x: Array, block: np.ndarray, paddings: np.ndarray) -> Array:
    m = block.size
    rest = xp.ndim(x) - 1 - m
    x = xp.pad(x, 0, [(0, 0, 0), *[(int(a), int(b), 0) for a, b in paddings], *[(0, 0, 0)] * rest])
    batch, *extents = xp.shape(x)
    shape = [batch]
    for n, b in zip(extents, ints(block), strict=False):
        shape += [n // b, b]
    x = xp.reshape(x, (*shape, *extents[m:]))
    order = [2 + 2 * i for i in range(m)] + [0] + [1 + 2 * i for i in range(m)] + list(range(1 + 2 * m, xp.ndim(x)))
    x = xp.permute_dims(x, tuple(order))
    spatial = [n // b for n, b in zip(extents, ints(block), strict=False)]
    return xp.reshape(x, (batch * math.prod(ints(block)), *spatial, *extents[m:]))


@rule("BatchToSpaceND", known=("block", "crops"))
def batch_to_space_nd(xp: Backend, x: Array, block: np.ndarray, crops: np.ndarray) -> Array:
    m, blocks = block.size, ints(block)
    total, *extents = xp.shape(x)
    batch = total // math.prod(blocks)
    x = xp.reshape(x, (*blocks, batch, *extents))
    order = [m]
    for i in range(m):
        order += [m + 1 + i, i]
    x = xp.permute_dims(x, (*order, *range(2 * m + 1, xp.ndim(x))))
    spatial = [n * b for n, b in zip(extents, blocks, strict=False)]
    x = xp.reshape(x, (batch, *spatial, *extents[m:]))
    for i, (low, high) in enumerate(crops):
        x = xp.take_slice(x, i + 1, int(low), spatial[i] - int(high))
    return x


@rule("SpaceToDepth")
def space_to_depth(xp: Backend, x: Array, *, block_size: int, data_format: str = "NHWC") -> Array:
    if data_format == "NCHW":
        n, c, h, w = xp.shape(x)
        x = xp.reshape(x, (n, c, h // block_size, block_size, w // block_size, block_size))
        x = xp.permute_dims(x, (0, 3, 5, 1, 2, 4))
        return xp.reshape(x, (n, c * block_size**2, h // block_size, w // block_size))
    n, h, w, c = xp.shape(x)
    x = xp.reshape(x, (n, h // block_size, block_size, w // block_size, block_size, c))
    x = xp.permute_dims(x, (0, 1, 3, 2, 4, 5))
    return xp.reshape(x, (n, h // block_size, w // block_size, c * block_size**2))


@rule("DepthToSpace")
def depth_to_space(xp: Backend, x: Array, *, block_size: int, data_format: str = "NHWC") -> Array:
    if data_format == "NCHW":
        n, c, h, w = xp.shape(x)
        x = xp.reshape(x, (n, block_size, block_size, c // block_size**2, h, w))
        return xp.reshape(
            xp.permute_dims(x, (0, 3, 4, 1, 5, 2)), (n, c // block_size**2, h * block_size, w * block_size)
        )
    n, h, w, c = xp.shape(x)
    x = xp.reshape(x, (n, h, w, block_size, block_size, c // block_size**2))
    x = xp.permute_dims(x, (0, 1, 3, 2, 4, 5))
    return xp.reshape(x, (n, h * block_size, w * block_size, c // block_size**2))
