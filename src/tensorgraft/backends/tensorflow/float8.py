"""Bits of float8 in graphs: TensorFlow has no kernels for float8 except conversions from and to float32."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np

from tensorgraft.backends.tensorflow.framework import raw, tf
from tensorgraft.hub.array import NativeArray as Array


@functools.cache
def _numbers(dtype: np.dtype) -> np.ndarray:
    """Return the number of each byte, float32 (256,)."""
    return np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)


def from_bytes(x: Array, dtype: np.dtype) -> Array:
    """Return the float8 array with these bits (uint8, any shape); each NaN becomes any NaN."""
    table = tf.constant(_numbers(dtype))
    return raw.Cast(x=tf.gather(table, raw.Cast(x=x, DstT=tf.int32)), DstT=tf.as_dtype(dtype))


def to_bytes(x: Array, dtype: np.dtype) -> Array:
    """Return the bits of a float8 array as uint8."""
    half = _numbers(dtype)[:128]
    ascending = half[: int(np.isnan(half).argmax()) if np.isnan(half).any() else 128]
    wide = raw.Cast(x=x, DstT=tf.float32)
    size = tf.reshape(tf.abs(wide), (1, -1))
    code = raw.LowerBound(sorted_inputs=tf.constant(ascending[None]), values=size, out_type=tf.int32)
    code = tf.where(raw.IsNan(x=wide), len(ascending), tf.reshape(code, x.shape))
    negative = tf.logical_and(raw.Less(x=raw.Bitcast(input=wide, type=tf.int32), y=0), raw.Equal(x=wide, y=wide))
    return raw.Cast(x=code + tf.where(negative, 128, 0), DstT=tf.uint8)


def nearest(x: Array, dtype: np.dtype) -> Array:
    """Return float32 numbers rounded to those of a float8. XLA's older conversions round twice, first to float16."""
    limits = ml_dtypes.finfo(dtype)
    exponent = raw.BitwiseAnd(x=raw.Bitcast(input=x, type=tf.int32), y=0x7F800000)
    power = raw.Minimum(x=raw.Bitcast(input=exponent, type=tf.float32), y=2.0**100)  # finite
    step = raw.Maximum(x=power * 2.0**-limits.nmant, y=float(limits.smallest_subnormal))
    return raw.Round(x=x / step) * step
