"""Updates of `tf.Variable`s, eagerly and inside `tf.function`."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tensorgraft.updates.rules import check_dtype, check_shape

_SCATTER = {
    "set": tf.tensor_scatter_nd_update,
    "add": tf.tensor_scatter_nd_add,
    "min": tf.tensor_scatter_nd_min,
    "max": tf.tensor_scatter_nd_max,
}


def _fitting(x: tf.Variable, value: Any, keep_dtype: bool = True) -> tf.Tensor:
    number = isinstance(value, bool | int | float | complex)
    if not keep_dtype:
        dtype = value.dtype.as_numpy_dtype if isinstance(value, tf.Tensor | tf.Variable) else np.asarray(value).dtype
        check_dtype(value if number else np.dtype(dtype), np.dtype(x.dtype.as_numpy_dtype))
    value = tf.convert_to_tensor(value)
    if value.dtype.is_complex and not x.dtype.is_complex:
        value = tf.math.real(value)
    return tf.cast(value, x.dtype)


def update(x: tf.Variable, value: Any, keep_dtype: bool) -> None:
    value = _fitting(x, value, keep_dtype)
    check_shape(tuple(value.shape), tuple(x.shape))
    x.assign(tf.broadcast_to(value, x.shape))


def scatter(x: tf.Variable, index: Any, value: Any, mode: str) -> None:
    value = _fitting(x, value)
    positions = _flat_positions(tuple(x.shape), index)
    check_shape(tuple(value.shape), tuple(positions.shape))
    values = tf.reshape(tf.broadcast_to(value, positions.shape), (-1,))
    flat = tf.reshape(x, (-1,))
    at = tf.reshape(positions, (-1, 1))
    if mode == "multiply":
        count = flat.shape[0]
        factors = tf.math.unsorted_segment_prod(values, at[:, 0], count)
        touched = tf.scatter_nd(at, tf.ones_like(at[:, 0]), (count,)) > 0
        updated = tf.where(touched, flat * factors, flat)
    else:
        updated = _SCATTER[mode](flat, at, values)
    x.assign(tf.reshape(updated, x.shape))


def _flat_positions(shape: tuple[int, ...], index: Any) -> tf.Tensor:
    """Return the flat positions that `x[index]` looks at, in its shape."""
    keys = index if isinstance(index, tuple) else (index,)
    known = []
    for k in keys:
        if isinstance(k, tf.Tensor | tf.Variable):
            if not tf.executing_eagerly():
                return _traced_places(shape, keys)
            k = k.numpy()
        known.append(k)
    return tf.constant(np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)[tuple(known)])


def _traced_places(shape: tuple[int, ...], keys: tuple[Any, ...]) -> tf.Tensor:
    """Inside `tf.function`: index tensors for the first axes, one each."""
    if any(not isinstance(k, tf.Tensor | tf.Variable) or not k.dtype.is_integer for k in keys):
        raise TypeError(
            "scatter_update inside tf.function: with traced indices, every index must be a tensor of integers,"
            " one for each of the first axes"
        )
    all_places = tf.reshape(tf.range(int(np.prod(shape)), dtype=tf.int64), shape)
    wrapped = [tf.where(k < 0, k + n, k) for k, n in zip((tf.cast(k, tf.int64) for k in keys), shape, strict=False)]
    return tf.gather_nd(all_places, tf.stack(wrapped, -1))
