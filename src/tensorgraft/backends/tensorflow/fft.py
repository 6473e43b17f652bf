"""Fourier transforms. TensorFlow's are of the last axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorgraft.backends.tensorflow.framework import raw, tf
from tensorgraft.backends.tensorflow.operation import TF, dtype_of, ints, shape_of
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array


def _along_axis(fn: Callable[[Array], Array], x: Array, axis: int) -> Array:
    n = len(shape_of(x))
    axis %= n
    if axis == n - 1:
        return fn(x)
    perm = list(range(n))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    return raw.Transpose(x=fn(raw.Transpose(x=x, perm=ints(perm))), perm=ints(perm))


def _empty(x: Array, axis: int, extent: int, dtype: Any) -> Array:
    shape = list(shape_of(x))
    shape[axis] = extent
    return tf.zeros(shape, TF[dtype])


class TensorFlowFFT:
    def fft(self, x: Array, /, axis: int) -> Array:
        return _along_axis(lambda y: raw.FFT(input=y), x, axis) if 0 not in shape_of(x) else x

    def ifft(self, x: Array, /, axis: int) -> Array:
        return _along_axis(lambda y: raw.IFFT(input=y), x, axis) if 0 not in shape_of(x) else x

    def rfft(self, x: Array, /, axis: int) -> Array:
        n, dtype = shape_of(x)[axis], dtypes.complex_dtype(dtype_of(x))
        if 0 in shape_of(x):
            return _empty(x, axis, n // 2 + 1, dtype)
        return _along_axis(lambda y: raw.RFFT(input=y, fft_length=ints((n,)), Tcomplex=TF[dtype]), x, axis)

    def irfft(self, x: Array, /, n: int, axis: int) -> Array:
        dtype = dtypes.real_dtype(dtype_of(x))
        if 0 in shape_of(x) or not n:
            return _empty(x, axis, n, dtype)
        return _along_axis(lambda y: raw.IRFFT(input=y, fft_length=ints((n,)), Treal=TF[dtype]), x, axis)
