"""Rules for shapes, layouts and creation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.frontends.onnx.element_types import STRING, Carried, dtype_of
from tensorgraft.frontends.onnx.rule import rule, rules_of
from tensorgraft.hub import dtypes


def ints(x: Any) -> tuple[int, ...]:
    """Return known integers as a tuple."""
    return tuple(int(n) for n in np.ravel(x))


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """Return axes counted from the start. Raises ValueError for one that there is not."""
    found = []
    for a in ints(axes):
        if not -rank <= a < rank:
            raise ValueError(f"axis {a} of an array of {rank} axes")
        found.append(a % rank)
    return tuple(found)


rules_of({
    "Shape": lambda xp, x, *, start=0, end=None: np.asarray(x.shape[start:end], np.int64),
    "Size": lambda xp, x: np.asarray(math.prod(x.shape), np.int64),
    "EyeLike": lambda xp, x, *, dtype=0, k=0: xp.eye(*x.shape, dtype_of(dtype) if dtype else xp.dtype_of(x), k),
})  # fmt: skip
rules_of(
    {
        "Identity": lambda xp, x: x,
        "Expand": lambda xp, x, shape: moved(xp, x, "broadcast_to", np.broadcast_shapes(tuple(x.shape), ints(shape))),
        "Trilu": lambda xp, x, k=None, *, upper=1: (xp.triu if upper else xp.tril)(x, int(np.ravel(k or 0)[0])),
    },
    known=("shape", "k"), moves=True,
)  # fmt: skip


@rule("Reshape", known=("shape",), moves=True)
def reshape(xp: Any, data: Any, shape: Any, *, allowzero: int = 0) -> Any:
    extents = list(ints(shape))
    if not allowzero:
        extents = [data.shape[i] if n == 0 else n for i, n in enumerate(extents)]
    if -1 in extents:
        known = math.prod(n for n in extents if n != -1)
        total = math.prod(data.shape)
        if (not known and total) or (known and total % known):
            raise ValueError(f"cannot reshape {tuple(data.shape)} to {tuple(extents)}")
        extents[extents.index(-1)] = total // known if known else 0
    if math.prod(extents) != math.prod(data.shape) or min(extents, default=0) < 0:
        raise ValueError(f"cannot reshape {tuple(data.shape)} to {tuple(extents)}")
    return moved(xp, data, "reshape", tuple(extents))


def moved(xp: Any, x: Any, name: str, *args: Any) -> Any:
    """Apply an operation that moves elements, also to strings of the host."""
    if isinstance(x, np.ndarray) and x.dtype == object:
        return getattr(np, {"permute_dims": "transpose"}.get(name, name))(x, *args)
    return getattr(xp, name)(x, *args)


@rule("Transpose", moves=True)
def transpose(xp: Any, data: Any, *, perm: tuple[int, ...] = ()) -> Any:
    rank = len(data.shape)
    return moved(xp, data, "permute_dims", axes_of(perm, rank) if perm else tuple(range(rank))[::-1])


@rule("Flatten", moves=True)
def flatten(xp: Any, x: Any, *, axis: int) -> Any:
    axis = axis % len(x.shape) if axis < 0 else axis
    return moved(xp, x, "reshape", (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@rule("Squeeze", known=("axes",), moves=True)
def squeeze(xp: Any, data: Any, axes: Any = None) -> Any:
    rank = len(data.shape)
    dropped = [i for i, n in enumerate(data.shape) if n == 1] if axes is None else axes_of(axes, rank)
    if longer := [i for i in dropped if data.shape[i] != 1]:
        raise ValueError(f"axis {longer[0]} of {tuple(data.shape)} has more than one element")
    return moved(xp, data, "reshape", tuple(n for i, n in enumerate(data.shape) if i not in dropped))


@rule("Unsqueeze", known=("axes",), moves=True)
def unsqueeze(xp: Any, data: Any, axes: Any) -> Any:
    rank = len(data.shape) + np.size(axes)
    added = axes_of(axes, rank)
    if len(set(added)) < len(added):
        raise ValueError(f"axes {ints(axes)} are not distinct")
    rest = iter(data.shape)
    return moved(xp, data, "reshape", tuple(1 if i in added else next(rest) for i in range(rank)))


@rule("Concat", moves=True)
def concat(xp: Any, *inputs: Any, axis: int = 1) -> Any:
    if isinstance(inputs[0], np.ndarray) and inputs[0].dtype == object:
        return np.concatenate(inputs, axis)
    return inputs[0] if len(inputs) == 1 else xp.concat(list(inputs), axis=axes_of(axis, len(inputs[0].shape))[0])


@rule("Split", known=("split",), moves=True)
def split(xp: Any, x: Any, split: Any = None, *, axis: int, num_outputs: int | None = None, node: Any = None) -> Any:
    axis = axis % len(x.shape)
    n = x.shape[axis]
    count = num_outputs or len(node.outputs)
    part = -(-n // count)
    sizes = ints(split) if split is not None else [min(part, max(n - i * part, 0)) for i in range(count)]
    if sum(sizes) != n:
        raise ValueError(f"an axis of {n} elements cannot be split into {tuple(sizes)}")
    return list(xp.split(x, sizes, axis))


@rule("Slice", known=("starts", "ends", "axes", "steps"), moves=True)
def slice_(xp: Any, data: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    rank = len(data.shape)
    positions = axes_of(axes, rank) if axes is not None else range(len(ints(starts)))
    step_of = ints(steps) if steps is not None else (1,) * len(ints(starts))
    return sliced(xp, data, {a: slice(s, e if s_ > 0 or e >= -data.shape[a] else None, s_) for a, s, e, s_ in zip(
        positions, ints(starts), ints(ends), step_of, strict=True)})  # fmt: skip


def sliced(xp: Any, x: Any, cuts: dict[int, slice]) -> Any:
    """Return what Python's slices of some axes give."""
    start, stop, step, flipped = [], [], [], []
    for axis, n in enumerate(x.shape):
        places = range(n)[cuts.get(axis, slice(None))]
        if places.step < 0:
            flipped.append(axis)
            places = places[::-1]
        start.append(places.start if len(places) else 0)
        stop.append(places[-1] + 1 if len(places) else 0)
        step.append(places.step)
    if isinstance(x, np.ndarray) and x.dtype == object:
        return x[tuple(cuts.get(i, slice(None)) for i in range(x.ndim))]
    out = xp.slice(x, tuple(start), tuple(stop), tuple(step))
    return xp.flip(out, tuple(flipped)) if flipped else out


@rule("Tile", known=("repeats", "axis"), moves=True)
def tile(xp: Any, x: Any, repeats: Any, axis: Any = None) -> Any:
    if axis is not None:  # opset 1: how often, and along which axis
        times = [1] * len(x.shape)
        times[int(np.reshape(axis, ()))] = int(np.reshape(repeats, ()))
        return xp.tile(x, times)
    return xp.tile(x, list(ints(repeats)))


@rule("Pad", known=("pads", "axes"), moves=True)
def pad(xp: Any, data: Any, pads: Any, value: Any = None, axes: Any = None, *, mode: str = "constant") -> Any:
    rank = len(data.shape)
    on = axes_of(axes, rank) if axes is not None else tuple(range(rank))
    amounts = ints(pads)
    config = [(0, 0)] * rank
    for i, a in enumerate(on):
        config[a] = (amounts[i], amounts[i + len(on)])
    if mode == "constant":
        fill = 0 if value is None else xp.astype(xp.reshape(value, ()), xp.dtype_of(data))
        return xp.pad(data, fill, [(low, high, 0) for low, high in config])
    cuts = {a: slice(max(-low, 0), n - max(-high, 0)) for a, (n, (low, high)) in
            enumerate(zip(data.shape, config, strict=True)) if low < 0 or high < 0}  # fmt: skip
    data = sliced(xp, data, cuts) if cuts else data
    for a, (low, high) in enumerate(config):
        low, high = max(low, 0), max(high, 0)
        if low or high:
            data = xp.take(data, xp.asarray(_outside(data.shape[a], low, high, mode)), a)
    return data


def _outside(n: int, low: int, high: int, mode: str) -> np.ndarray:
    """Return the positions in an axis of `n` elements that a padded one has."""
    at = np.arange(-low, n + high)
    if mode == "wrap":
        return at % n
    if mode == "edge":
        return np.clip(at, 0, n - 1)
    if mode != "reflect":
        raise ValueError(f"Pad has no mode {mode!r}")
    period = max(2 * (n - 1), 1)
    at = np.abs(at) % period
    return np.minimum(at, period - at) if n > 1 else np.zeros_like(at)


@rule("DepthToSpace", moves=True)
def depth_to_space(xp: Any, x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    n, c, h, w = x.shape
    b, depth = blocksize, c // blocksize**2
    parts, order = ((b, b, depth), (0, 3, 4, 1, 5, 2)) if mode == "DCR" else ((depth, b, b), (0, 1, 4, 2, 5, 3))
    return xp.reshape(xp.permute_dims(xp.reshape(x, (n, *parts, h, w)), order), (n, depth, h * b, w * b))


@rule("SpaceToDepth", moves=True)
def space_to_depth(xp: Any, x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    n, c, h, w = x.shape
    b = blocksize
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    parts = xp.permute_dims(xp.reshape(x, (n, c, h // b, b, w // b, b)), order)
    return xp.reshape(parts, (n, c * b**2, h // b, w // b))


# ---- creation --------------------------------------------------------------------------------------------------------


@rule("ConstantOfShape", known=("shape",))
def constant_of_shape(xp: Any, shape: Any, *, value: Any = None) -> Any:
    if value is None:
        return xp.full(ints(shape), 0.0, dtypes.float32)
    if isinstance(value, Carried):
        return value.mapped(lambda a: xp.full(ints(shape), a.ravel()[0].item(), a.dtype))
    if value.dtype == STRING:
        return np.full(ints(shape), value.ravel()[0], object)
    return xp.full(ints(shape), value.ravel()[0].item(), value.dtype)


@rule("Range", known=("start", "limit", "delta"))
def range_(xp: Any, start: Any, limit: Any, delta: Any) -> Any:
    start, limit, delta = (np.reshape(x, ()) for x in (start, limit, delta))
    count = max(math.ceil((limit.item() - start.item()) / delta.item()), 0)
    whole = xp.iota(count, dtypes.int64 if start.dtype.kind == "i" else start.dtype)
    return xp.astype(xp.add(xp.multiply(whole, delta.item()), start.item()), start.dtype)


@rule("ReverseSequence")
def reverse_sequence(xp: Any, x: Any, sequence_lens: Any, *, batch_axis: int = 1, time_axis: int = 0) -> Any:
    """Reverse the first elements along time of each row, as many as `sequence_lens` has for it."""
    n = x.shape[time_axis]
    along = [1] * len(x.shape)
    along[time_axis] = n
    at = xp.reshape(xp.iota(n, dtypes.int64), tuple(along))
    along = [1] * len(x.shape)
    along[batch_axis] = x.shape[batch_axis]
    lengths = xp.reshape(xp.astype(sequence_lens, dtypes.int64), tuple(along))
    places = xp.where(xp.less(at, lengths), xp.subtract(xp.subtract(lengths, 1), at), at)
    return xp.take_along_axis(x, xp.broadcast_to(places, tuple(x.shape)), time_axis)
