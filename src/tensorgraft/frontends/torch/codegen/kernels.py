"""Kernels in words: what a kernel of the device would say in operations of the hub, where source has a better name.

They have the arguments of the device's own kernels (`core.spec`), whose place they take while a module is recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tensorgraft.frontends.torch.core.spec import SPECS, Kernel
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array

KERNELS: dict[str, Kernel] = {}


def kernel(*names: str) -> Callable[[Kernel], Kernel]:
    def register(fn: Kernel) -> Kernel:
        KERNELS.update(dict.fromkeys(names, fn))
        return fn

    return register


def per_axis(values: Sequence[int], n: int) -> tuple[int, ...]:
    return tuple(values) * n if len(values) == 1 else tuple(values)


def narrow(xp: Any, *arrays: Array | None) -> bool:
    """Return True if some arrays have 16-bit floats, in which PyTorch does not compute."""
    return any(x is not None and dtypes.accumulator(x.dtype) != x.dtype for x in arrays)


def widened(xp: Any, *arrays: Array | None) -> list[Array | None]:
    return [None if x is None else xp.astype(x, dtypes.accumulator(x.dtype)) for x in arrays]


# ---- activations -----------------------------------------------------------------------------------------------------


def _activation(name: str, *keywords: str) -> Kernel:
    """Make a kernel that records an activation of a single array. As in PyTorch, 16-bit floats are computed in float32
    and rounded once."""

    def fn(xp: Any, x: Array, *args: Any) -> Array:
        options = dict(zip(keywords, args, strict=False))
        return xp.astype(xp.word(name, *widened(xp, x), **options), x.dtype)

    return fn


for _name in ("relu", "silu", "mish", "relu6", "selu"):
    KERNELS[_name] = _activation(_name)
KERNELS["hardswish"] = _activation("hard_silu")
KERNELS["hardsigmoid"] = _activation("hard_sigmoid")
KERNELS["sigmoid"] = lambda xp, x: xp.sigmoid(x)
KERNELS["gelu"] = lambda xp, x, approximate="none": xp.astype(
    xp.word("gelu", *widened(xp, x), **({"approximate": True} if approximate == "tanh" else {})), x.dtype
)
KERNELS["leaky_relu"] = _activation("leaky_relu", "slope")


@kernel("elu")
def _elu(xp: Any, x: Array, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Array:
    if (scale, input_scale) == (1, 1):
        return xp.word("elu", x, **({} if alpha == 1 else {"alpha": float(alpha)}))
    if math.isclose(alpha, 1.6732632423543772) and math.isclose(scale, 1.0507009873554805) and input_scale == 1:
        return xp.word("selu", x)
    inner = xp.multiply(xp.expm1(xp.multiply(xp.minimum(x, 0), float(input_scale))), float(alpha))
    return xp.multiply(xp.where(xp.greater(x, 0), x, inner), float(scale))


@kernel("softplus")
def _softplus(xp: Any, x: Array, beta: Any = 1, threshold: Any = 20) -> Array:
    y = xp.softplus(x) if beta == 1 else xp.divide(xp.softplus(xp.multiply(x, float(beta))), float(beta))
    return xp.where(xp.greater(xp.multiply(x, float(beta)), threshold), x, y) if threshold < 20 else y


@kernel("log_sigmoid_forward")
def _log_sigmoid(xp: Any, x: Array) -> tuple[Array, Array]:
    return xp.word("log_sigmoid", x), x  # the second is for a backward pass


@kernel("hardtanh")
def _hardtanh(xp: Any, x: Array, low: Any = -1, high: Any = 1) -> Array:
    return xp.word("relu6", x) if (low, high) == (0, 6) else xp.clip(x, low, high)


@kernel("clamp")
def _clamp(xp: Any, x: Array, low: Any = None, high: Any = None) -> Array:
    if low is None or high is None:
        return xp.maximum(x, low) if high is None else xp.minimum(x, high)
    return xp.clip(x, low, high)


KERNELS["clamp_min"] = lambda xp, x, low: xp.maximum(x, low)
KERNELS["clamp_max"] = lambda xp, x, high: xp.minimum(x, high)


@kernel("pow.Tensor_Scalar")
def _pow(xp: Any, x: Array, exponent: Any) -> Array:
    known = xp.current.scalars.get(exponent) if xp.is_array(exponent) else exponent
    if known == 2:
        return xp.square(x)
    return SPECS["pow.Tensor_Scalar"].fn(xp, x, exponent)


# ---- products --------------------------------------------------------------------------------------------------------


@kernel("linear")
def _linear(xp: Any, x: Array, weight: Array, bias: Array | None = None) -> Array:
    return xp.word("linear", x, weight) if bias is None else xp.word("linear", x, weight, bias)


@kernel("convolution", "convolution_overrideable")
def _convolution(
    xp: Any,
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    n = xp.ndim(weight) - 2
    stride, padding, dilation = (per_axis(v, n) for v in (stride, padding, dilation))
    if transposed:
        return xp.word(
            "conv_transpose", x, weight, bias, stride=stride, padding=padding,
            output_padding=per_axis(output_padding, n), dilation=dilation, groups=groups,
        )  # fmt: skip
    pads = tuple((p, p) for p in padding)
    return xp.word("conv", x, weight, bias, stride=stride, padding=pads, dilation=dilation, groups=groups)


@kernel("embedding")
def _embedding(xp: Any, weight: Array, indices: Array, padding_idx: int = -1, *_: Any) -> Array:
    trained = weight in xp.current.smooth and torch.is_grad_enabled()
    return xp.word("embedding", weight, indices, *([padding_idx] if padding_idx >= 0 and trained else []))


# ---- normalisation ---------------------------------------------------------------------------------------------------


def in_words(xp: Any, name: str, x: Array, *args: Any, parameters: dict[str, Array | None], **options: Any) -> Array:
    """Record a normalisation as a word; of 16-bit floats it is computed in float32."""
    (wide,), (values) = widened(xp, x), widened(xp, *parameters.values())
    named = {k: v for k, v in zip(parameters, values, strict=True) if v is not None}
    return xp.astype(xp.word(name, wide, *args, **named, **options), x.dtype)


@kernel("native_batch_norm", "_native_batch_norm_legit")
def _batch_norm(
    xp: Any,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array | None,
    variance: Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array | None, ...]:
    """Return (new running statistics, for those that are not None, the result, the residuals of a backward pass)."""
    running = [v for v in (mean, variance) if v is not None]
    parameters = {"weight": weight, "bias": bias}
    zeros = xp.zeros((0,), dtypes.accumulator(x.dtype))
    if not training:
        out = in_words(xp, "batch_norm", x, *widened(xp, mean, variance), parameters=parameters, eps=eps)
        return *[None for _ in running], out, zeros, zeros
    wide, weight, bias = widened(xp, x, weight, bias)
    out, *new_stats = xp.word("batch_norm_training", wide, mean, variance, weight, bias, momentum=momentum, eps=eps)
    axes = (0, *range(2, xp.ndim(x)))
    saved = xp.mean(wide, axes), xp.rsqrt(xp.add(xp.var(wide, axes), eps))
    return *new_stats[: len(running)], xp.astype(out, x.dtype), *saved


@kernel("_native_batch_norm_legit.no_stats")
def _batch_norm_without(
    xp: Any, x: Array, weight: Array | None, bias: Array | None, training: bool, momentum: float, eps: float
) -> tuple[Array | None, ...]:
    return _batch_norm(xp, x, weight, bias, None, None, True, momentum, eps)


# ---- windows ---------------------------------------------------------------------------------------------------------


def _avg_pool(d: int) -> Kernel:
    key = f"avg_pool{d}d"

    def pool(
        xp: Any,
        x: Array,
        window: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Array:
        ks, ss, ps = (per_axis(v, d) for v in (window, stride or window, padding))
        exact = all((n + 2 * p - k) % s == 0 for n, k, s, p in zip(x.shape[-d:], ks, ss, ps, strict=True))
        if (ceil_mode and not exact) or divisor_override is not None or dtypes.is_integer(x.dtype):
            return SPECS[key].fn(xp, x, window, stride, padding, ceil_mode, count_include_pad, divisor_override)
        pads = tuple((p, p) for p in ps)
        options = {} if count_include_pad or not any(ps) else {"count_padding": False}
        return xp.astype(xp.word("avg_pool", *widened(xp, x), ks, ss, pads, **options), x.dtype)

    return pool


KERNELS.update({f"avg_pool{d}d": _avg_pool(d) for d in (2, 3)})


def _adaptive_avg_pool(d: int) -> Kernel:
    key = f"_adaptive_avg_pool{d}d"

    def pool(xp: Any, x: Array, output_size: Sequence[int]) -> Array:
        ks = [n // max(o, 1) for n, o in zip(x.shape[-d:], output_size, strict=True)]
        if any(k * o != n for k, o, n in zip(ks, output_size, x.shape[-d:], strict=True)):
            return SPECS[key].fn(xp, x, output_size)
        if all(k == 1 for k in ks):
            return x
        return xp.astype(xp.word("avg_pool", *widened(xp, x), tuple(ks), tuple(ks), ((0, 0),) * d), x.dtype)

    return pool


KERNELS.update({f"_adaptive_avg_pool{d}d": _adaptive_avg_pool(d) for d in (2, 3)})


def _resize(name: str, method: str) -> Kernel:
    def fn(xp: Any, x: Array, output_size: Sequence[int], *rest: Any) -> Array:
        corners = method != "nearest" and bool(rest[0])
        scales = rest if method == "nearest" else rest[1:]
        extents = zip(x.shape[2:], output_size, scales, strict=False)
        if dtypes.is_integer(x.dtype) or any(s is not None and n * s != m for n, m, s in extents):
            return SPECS[name].fn(xp, x, output_size, *rest)
        options: dict[str, Any] = {} if method == "nearest" else {"method": method}
        if corners:
            options["corners"] = True
        if method == "nearest":
            return xp.word("resize", x, tuple(output_size))
        return xp.astype(xp.word("resize", *widened(xp, x), tuple(output_size), **options), x.dtype)

    return fn


for _name, _method in {
    "upsample_nearest1d": "nearest", "upsample_nearest2d": "nearest", "upsample_nearest3d": "nearest",
    "upsample_linear1d": "linear", "upsample_bilinear2d": "linear", "upsample_trilinear3d": "linear",
    "upsample_bicubic2d": "cubic",
}.items():  # fmt: skip
    KERNELS[_name] = _resize(_name, _method)


def _pad(word: str) -> Kernel:
    def fn(xp: Any, x: Array, padding: Sequence[int]) -> Array:
        pairs = [(padding[k], padding[k + 1]) for k in reversed(range(0, len(padding), 2))]  # the last axis is first
        pads = tuple((max(low, 0), max(high, 0)) for low, high in pairs)
        if any(map(any, pads)):
            x = xp.word(word, x, pads)
        for axis, (low, high) in enumerate(pairs, xp.ndim(x) - len(pairs)):
            if low < 0 or high < 0:  # negative padding cuts off elements, which are reflected first
                x = xp.take_slice(x, axis, max(-low, 0), xp.shape(x)[axis] - max(-high, 0))
        return x

    return fn


for _d in (1, 2, 3):
    KERNELS[f"reflection_pad{_d}d"] = _pad("pad_reflect")
    KERNELS[f"replication_pad{_d}d"] = _pad("pad_edge")


# ---- arrays ----------------------------------------------------------------------------------------------------------


@kernel("arange.start_step")
def _arange(
    xp: Any, start: Any, end: Any, step: Any = 1, dtype: np.dtype | None = None, count: int | None = None
) -> Array:
    integers = all(isinstance(n, int) for n in (start, end, step))
    if not integers and (dtype is None or dtypes.is_integer(dtype)):
        return SPECS["arange.start_step"].fn(xp, start, end, step, dtype)
    return xp.word("arange", start, end, step, dtype or dtypes.int64)


@kernel("index.Tensor")
def _index(xp: Any, x: Array, indices: Sequence[Array | None]) -> Array:
    if any(i is not None and i.dtype.kind not in "iu" for i in indices) or not any(i is not None for i in indices):
        return SPECS["index.Tensor"].fn(xp, x, indices)
    return xp.word("index", x, tuple(indices))


@kernel("index_put")
def _index_put(xp: Any, x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False) -> Array:
    if (
        any(i is not None and i.dtype.kind not in "iu" for i in indices)
        or not any(i is not None for i in indices)
        or (values.dtype != x.dtype and xp.ndim(values))
    ):
        return SPECS["index_put"].fn(xp, x, indices, values, accumulate)
    options = {"mode": "add"} if accumulate else {}
    return xp.word("index_update", x, tuple(indices), xp.astype(values, x.dtype), **options)
