"""Conversion of operands for TensorFlow: dtypes and shapes, Python scalars, floats that are computed in wider ones."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from tensorgraft.backends.tensorflow.framework import EagerTensor, raw, tf
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array

Fn = Callable[..., Any]
Shape = tuple[int, ...]


class _Dtypes(dict[np.dtype, tf.DType]):
    def __missing__(self, dtype: np.dtype) -> NoReturn:
        """Raises NotImplementedError for dtypes that TensorFlow has few kernels for (int4)."""
        raise NotImplementedError(f"TensorFlow cannot compute with arrays of {dtype}: convert them to int8 first")


TF = _Dtypes({dtype: tf.as_dtype(dtype) for dtype in (*dtypes.ALL, *dtypes.FLOAT8)})
NP = {theirs: ours for ours, theirs in TF.items()}
_OF_NUMBER = {theirs.as_datatype_enum: ours for ours, theirs in TF.items()}
SCALARS = frozenset((bool, int, float, complex))
OF_KIND = {bool: dtypes.bool_, int: dtypes.int64, float: dtypes.float64, complex: dtypes.complex128}


def dtype_of(x: Array) -> np.dtype:
    if type(x) is EagerTensor:  # dtypes of TensorFlow are compared in Python
        return _OF_NUMBER[x._datatype_enum()]
    return NP[x.dtype]


def shape_of(x: Array) -> Shape:
    """Return the static shape: every operation here knows that of its result."""
    return x._shape_tuple()


def is_symbolic(x: Any) -> bool:
    """Return True if `x` is a tensor of a graph: it has no value yet, and XLA may compute it."""
    return isinstance(x, tf.Tensor) and not isinstance(x, EagerTensor)


@functools.lru_cache(maxsize=4096)
def _host_ints(values: tuple[int, ...]) -> Array:
    with tf.init_scope(), tf.device("CPU:0"):
        return tf.constant(_ints(values))


def _ints(values: Sequence[int]) -> np.ndarray:
    wide = any(n > 2**31 - 1 for n in values)
    return np.array(values, np.int64 if wide else np.int32)


def ints(values: Sequence[int]) -> Array:
    """Return a shape, axes or positions as an operand, from a cache: converting a list takes TensorFlow 40 us, a
    look-up 1 us."""
    return _host_ints(tuple(values)) if tf.executing_eagerly() else _ints(values)


def axes_of(x: Array, axis: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the axes of a reduction, all non-negative."""
    n = len(shape_of(x))
    if axis is None:
        return tuple(range(n))
    return tuple(a % n for a in ((axis,) if isinstance(axis, int) else axis)) if n else ()


# ---- dtypes --------------------------------------------------------------------------------------------------------


def cast(x: Array, dtype: np.dtype) -> Array:
    """Convert by TensorFlow's own rules. `elementwise.astype` converts by those of the hub."""
    source = dtype_of(x)
    if source == dtype:
        return x
    return _cast_on_host(x, dtype) if {source, dtype} & HOST_CASTS else raw.Cast(x=x, DstT=TF[dtype])


HOST_CASTS = {dtypes.float8_e4m3fnuz, dtypes.float8_e5m2fnuz}  # TensorFlow has neither casts nor bits of them


def _cast_on_host(x: Array, dtype: np.dtype) -> Array:
    """Convert an array that is there. Raises NotImplementedError in a graph."""
    source = dtype_of(x)
    if is_symbolic(x):
        raise NotImplementedError(
            f"TensorFlow converts no {source} to {dtype} in graphs: call the function without tf.function, or keep"
            " these numbers in float32"
        )
    return tf.constant(x.numpy().astype(dtype))  # without a gradient, as TensorFlow's casts to float8


def in_float32(fn: Fn) -> Fn:
    """Wrap a function of arrays of one dtype so that floats narrower than float32 are computed in float32."""

    @functools.wraps(fn)
    def wide(*xs: Array) -> Array:
        dtype = dtype_of(xs[0])
        if dtypes.accumulator(dtype) == dtype:
            return fn(*xs)
        return cast(fn(*(cast(x, dtypes.float32) for x in xs)), dtype)

    return wide


def via_carriers(carriers: dict[np.dtype, np.dtype], fn: Fn) -> Fn:
    """Wrap `fn` so that dtypes for which TensorFlow has no kernel are computed in wider ones that hold all their
    values. The result has the dtype of the operands, and integers wrap."""

    @functools.wraps(fn)
    def via_carrier(x: Array, *rest: Any) -> Array:
        dtype = dtype_of(x)
        carrier = carriers.get(dtype)
        if carrier is None:
            return fn(x, *rest)
        out = fn(*(cast(a, carrier) if isinstance(a, tf.Tensor) and dtype_of(a) == dtype else a for a in (x, *rest)))
        return cast(out, dtype) if dtype_of(out) == carrier else out

    return via_carrier


FLOAT8_AS_FLOAT32 = dict.fromkeys(dtypes.FLOAT8, dtypes.float32)  # exact; few kernels know float8


# ---- Python scalars --------------------------------------------------------------------------------------------------


def constant(value: Any, dtype: np.dtype) -> Array:
    """Return a Python scalar as a tensor of a dtype, to be an operand only: eager ones are shared. Ints wrap."""
    kind: Any = type(value)
    if kind in _SHARED and tf.executing_eagerly():
        return _eager_constant(value, kind, math.copysign(1, value) if type(value) is float else 1, dtype)
    return tf.constant(_host_scalar(value, dtype))


_SHARED = frozenset((bool, int, float))


@functools.lru_cache(maxsize=4096)
def _eager_constant(value: Any, kind: type, sign: float, dtype: np.dtype) -> Array:
    """Making one costs more than adding it. `kind`, `sign`: True equals 1 equals 1.0, and -0.0 equals 0.0."""
    return tf.constant(_host_scalar(value, dtype))


def _host_scalar(value: Any, dtype: np.dtype) -> np.ndarray:
    if dtype.kind in "iu" and not isinstance(value, float):
        bits = 8 * dtype.itemsize
        return np.array(operator.index(value) & ((1 << bits) - 1), f"u{dtype.itemsize}").view(dtype)
    host = np.asarray(value)
    if host.dtype.kind == "c" and dtype.kind not in "cb":
        host = host.real
    return host.astype(dtype)


def mark_weak(x: Array) -> Array:
    """Mark a tensor of a graph as representing a Python scalar, which takes the dtype of the arrays in operations."""
    x.tensorgraft_weak = True
    return x


def is_weak(x: Any) -> bool:
    """Return True for a Python scalar, and for a tensor marked as representing one."""
    kind = type(x)
    return kind is not EagerTensor and (kind in SCALARS or getattr(x, "tensorgraft_weak", False))


def weak_input(value: Any) -> Array:
    """Return a Python scalar as the argument of a compiled function."""
    # TensorFlow keeps one tensor for equal numbers, and -0.0 equals 0.0
    return tf.constant(value if value else np.asarray(value), TF[OF_KIND[type(value)]])


# ---- ranks -----------------------------------------------------------------------------------------------------------

MOST_BROADCAST = 5  # axes that TensorFlow's elementwise kernels broadcast over
MOST_AXES = 8  # the limit of slices, pads and reversals


def broadcast_to(x: Array, shape: Shape) -> Array:
    x_shape = shape_of(x)
    if x_shape == shape:
        return x
    if dtype_of(x) in FLOAT8_AS_FLOAT32:
        return cast(broadcast_to(cast(x, dtypes.float32), shape), dtype_of(x))
    if len(shape) <= MOST_BROADCAST:
        return raw.BroadcastTo(input=x, shape=ints(shape))
    # neighbouring axes that are broadcast, or are not, are one
    old_shape: list[int] = []
    new_shape: list[int] = []
    for m, n in zip((1,) * (len(shape) - len(x_shape)) + x_shape, shape, strict=True):
        if old_shape and (m == n) == (old_shape[-1] == new_shape[-1]):
            old_shape[-1], new_shape[-1] = old_shape[-1] * m, new_shape[-1] * n
        else:
            old_shape.append(m)
            new_shape.append(n)
    x = raw.Reshape(tensor=x, shape=ints(old_shape))
    if len(old_shape) <= MOST_BROADCAST:
        x = raw.BroadcastTo(input=x, shape=ints(new_shape))
    else:  # BroadcastTo lacks kernels for some narrow integers, Tile lacks one for uint16
        multiples = ints([n if m != n else 1 for m, n in zip(old_shape, new_shape, strict=True)])
        if dtype_of(x) == dtypes.uint16:
            x = raw.Bitcast(
                input=raw.Tile(input=raw.Bitcast(input=x, type=tf.int16), multiples=multiples), type=tf.uint16
            )
        else:
            x = raw.Tile(input=x, multiples=multiples)
    return raw.Reshape(tensor=x, shape=ints(shape))


def broadcastable(*arrays: Array) -> Sequence[Array]:
    """Return the arrays, in shapes that TensorFlow's kernels can broadcast."""
    shapes = {s for x in arrays if (s := shape_of(x))}
    if len(shapes) < 2 or max(map(len, shapes)) <= MOST_BROADCAST:
        return arrays
    shape = np.broadcast_shapes(*shapes)
    return [broadcast_to(x, shape) for x in arrays]


def along_axes(fn: Callable[[Array, int], Array], x: Array, axes: Sequence[int]) -> Array:
    """Apply `fn(y, axis)` along one axis after the other, with `y` reshaped to (before, axis, after): for operations on
    more axes than TensorFlow's kernels take. `fn` may change the extent of the axis."""
    shape = list(shape_of(x))
    for axis in axes:
        folded = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
        y = fn(raw.Reshape(tensor=x, shape=ints(folded)), axis)
        shape[axis] = shape_of(y)[1]
        x = raw.Reshape(tensor=y, shape=ints(shape))
    return x
