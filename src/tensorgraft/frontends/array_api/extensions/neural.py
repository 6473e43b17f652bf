"""Functions of neural networks on `Array`s: activations, softmax, normalisation, convolution, attention."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.frontends.array_api.core.calls import arrays_of, axes_of, axis_of, fail, operand
from tensorgraft.frontends.array_api.standard.elementwise import where
from tensorgraft.frontends.array_api.standard.linear_algebra import matmul
from tensorgraft.hub import cold, dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Storage

Kernel = Callable[..., Any]  # (the backend, its arrays, then static arguments) -> an array of it
Pads = Sequence[tuple[int, int]]


def _call(xp: Backend, kernel: Kernel, arrays: Sequence[Array], *static: Any) -> Array:
    """Run a kernel: as one program if the backend compiles and no trace is active."""
    with xp.scope():
        values = [x._value() for x in arrays]
        if xp.compiles and not any(map(xp.is_traced, values)):
            eager = cold.attempt(xp, (kernel, static), lambda host, *operands: kernel(host, *operands, *static), values)
            out = _program(xp, kernel, static)(*values)[0] if eager is None else eager[0]
        else:
            out = kernel(xp, *values, *static)
        return Array(Storage(xp.ensure_owned(out) if xp.mutable else out, xp))


@functools.lru_cache(maxsize=1024)
def _program(xp: Backend, kernel: Kernel, static: tuple[Any, ...]) -> Callable[..., tuple[Any, ...]]:
    return xp.compile(lambda *values: (kernel(xp, *values, *static),))


# ---- activations -----------------------------------------------------------------------------------------------------


def relu(x: Array) -> Array:
    """Compute x where it is positive, else 0; its derivative at 0 is 0. Of the shape and dtype of `x`, a real array of
    integers or floating point. Raises TypeError for another."""
    return _call(operand("relu", x, "if"), _of("relu"), (x,))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), of the shape and dtype of `x`, a real floating-point array. Raises TypeError for another."""
    return _call(operand("sigmoid", x, "f"), _of("sigmoid"), (x,))


def silu(x: Array) -> Array:
    """Compute x sigmoid(x) (Elfwing et al. 2018, arXiv 1702.03118), of the shape and dtype of `x`, a real
    floating-point array. Raises TypeError for another."""
    return _call(operand("silu", x, "f"), _of("silu"), (x,))


def softplus(x: Array) -> Array:
    """Compute log(1 + exp(x)), of the shape and dtype of `x`, a real floating-point array. Raises TypeError for
    another."""
    return _call(operand("softplus", x, "f"), _softplus, (x,))


def _softplus(xp: Backend, x: Any) -> Any:
    return xp.logaddexp(x, xp.zeros_like(x))


def gelu(x: Array, approximate: bool = True) -> Array:
    """Compute x times the probability that a normal number is below x, or its approximation by tanh (Hendrycks and
    Gimpel 2016, arXiv 1606.08415), of the shape and dtype of `x`, a real floating-point array. Raises TypeError for
    another."""
    return _call(operand("gelu", x, "f"), _gelu, (x,), bool(approximate))


def _gelu(xp: Backend, x: Any, approximate: bool) -> Any:
    if not approximate:
        below = xp.multiply(xp.erfc(xp.multiply(x, -math.sqrt(0.5))), 0.5)
        return xp.multiply(x, below)
    cubed = xp.multiply(xp.multiply(xp.square(x), x), 0.044715)
    inner = xp.multiply(xp.add(x, cubed), math.sqrt(2 / math.pi))
    return xp.multiply(x, xp.multiply(xp.add(xp.tanh(inner), 1), 0.5))


def elu(x: Array, alpha: float = 1.0) -> Array:
    """Compute x where it is positive, else alpha (exp(x) - 1) (Clevert et al. 2015, arXiv 1511.07289), of the shape and
    dtype of `x`, a real floating-point array. Raises TypeError for another."""
    return _call(operand("elu", x, "f"), _of("elu"), (x,), float(alpha))


def leaky_relu(x: Array, negative_slope: float = 0.01) -> Array:
    """Compute x where it is positive, else negative_slope x, of the shape and dtype of `x`, a real floating-point
    array. Raises TypeError for another."""
    return _call(operand("leaky_relu", x, "f"), _leaky_relu, (x,), float(negative_slope))


def _leaky_relu(xp: Backend, x: Any, slope: float) -> Any:
    return xp.where(xp.greater_equal(x, 0), x, xp.multiply(x, slope))


def _of(name: str) -> Kernel:
    method = _METHODS.get(name)
    if method is None:
        method = _METHODS[name] = lambda xp, *args: getattr(xp, name)(*args)
    return method


_METHODS: dict[str, Kernel] = {}


# ---- along axes ------------------------------------------------------------------------------------------------------


def softmax(x: Array, axis: int = -1) -> Array:
    """Compute exp(x) / sum(exp(x)) along an axis, of the shape and dtype of `x`. Raises TypeError for anything but a
    real floating-point array, AxisError for an axis out of range."""
    xp = operand("softmax", x, "f")
    return _call(xp, _of("softmax"), (x,), axis_of("softmax", x, axis))


def log_softmax(x: Array, axis: int = -1) -> Array:
    """Compute x - log(sum(exp(x))) along an axis, of the shape and dtype of `x`. Raises TypeError for anything but a
    real floating-point array, AxisError for an axis out of range."""
    xp = operand("log_softmax", x, "f")
    return _call(xp, _of("log_softmax"), (x,), axis_of("log_softmax", x, axis))


def logsumexp(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """Compute log(sum(exp(x))) along axes (None: all), without overflow, in the dtype of `x`. Raises TypeError for
    anything but a real floating-point array, AxisError for an axis out of range, ValueError for a repeated one."""
    xp = operand("logsumexp", x, "f")
    return _call(xp, _of("logsumexp"), (x,), axes_of("logsumexp", x, axis), bool(keepdims))


def layer_norm(x: Array, ndim: int, eps: float) -> Array:
    """Return (x - mean) / sqrt(var + eps) over the last `ndim` axes (Ba et al. 2016, arXiv 1607.06450)."""
    xp = operand("layer_norm", x, "f")
    return _call(xp, _of("layer_norm"), (x,), None, None, ndim, float(eps))


def rms_norm(x: Array, ndim: int, eps: float) -> Array:
    """Compute x / sqrt(mean(x^2) + eps) over the last `ndim` axes (Zhang and Sennrich 2019, arXiv 1910.07467)."""
    xp = operand("rms_norm", x, "f")
    return _call(xp, _of("rms_norm"), (x,), None, ndim, float(eps))


# ---- convolution -----------------------------------------------------------------------------------------------------


def convolution(
    x: Array, w: Array, strides: tuple[int, ...], padding: Pads, dilation: tuple[int, ...], groups: int = 1
) -> Array:
    """Cross-correlation of x (N, C, spatial...) with w (O, C / groups, spatial...), of one dtype; zeros around x."""
    xp, dtype = arrays_of("convolution", x, w, kinds="fc")
    if x.dtype != dtype or w.dtype != dtype:
        fail("convolution", (x, w), "arrays of one dtype", TypeError)
    return _call(xp, _convolution, (x, w), strides, tuple(map(tuple, padding)), dilation, groups)


def _convolution(xp: Backend, x: Any, w: Any, strides: Any, padding: Any, dilation: Any, groups: int) -> Any:
    return xp.convolution(x, w, strides, padding, (1,) * len(strides), dilation, groups)


def padding_of(name: str, extents: Sequence[int], kernel: Sequence[int], strides: Sequence[int]) -> Pads:
    """Return the padding that SAME, SAME_LOWER or VALID means for windows of these extents (dilation included)."""
    if name == "VALID":
        return [(0, 0)] * len(kernel)
    pads = []
    for n, k, s in zip(extents, kernel, strides, strict=True):
        total = max((-(-n // s) - 1) * s + k - n, 0)
        small, large = total // 2, total - total // 2
        pads.append((small, large) if name == "SAME" else (large, small))
    return pads


def padded(x: Array, padding: Pads, mode: str) -> Array:
    """Return `x` with more elements around its last axes: copies of its own, as `numpy.pad` chooses them (reflect,
    edge, wrap)."""
    xp = operand("padded", x, "bifc")
    return _call(xp, _padded, (x,), tuple(map(tuple, padding)), mode)


def _padded(xp: Backend, x: Any, padding: Pads, mode: Any) -> Any:
    first = len(xp.shape(x)) - len(padding)
    for axis, (low, high) in enumerate(padding, first):
        if low or high:
            positions = np.pad(np.arange(xp.shape(x)[axis]), (low, high), mode=mode)
            x = xp.take(x, xp.asarray(positions), axis)
    return x


# ---- attention -------------------------------------------------------------------------------------------------------


def attention_weights(query: Array, key: Array, mask: Array | None = None) -> Array:
    """Compute softmax(query key^T / sqrt(size)), (..., q, kv): how much each query (..., q, size) looks at each key
    (..., kv, size); nothing where `mask`, which broadcasts, is false (Vaswani et al. 2017, arXiv 1706.03762). The
    softmax is computed in at least float32."""
    xp, dtype = arrays_of("attention_weights", query, key, kinds="f")
    logits = matmul(query / math.sqrt(query.shape[-1]), key.mT)
    if mask is not None:
        logits = where(mask, logits, float(dtypes.finfo(dtype).min))
    return _call(xp, _attention_softmax, (logits,))


def _attention_softmax(xp: Backend, logits: Any) -> Any:
    dtype = xp.dtype_of(logits)
    wide = dtypes.accumulator(dtype)
    out = xp.softmax(logits if wide == dtype else xp.astype(logits, wide), axis=len(xp.shape(logits)) - 1)
    return out if wide == dtype else xp.astype(out, dtype)
