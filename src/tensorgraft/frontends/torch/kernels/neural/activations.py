"""Activations and their gradients."""

from __future__ import annotations

import math
from typing import Any

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.math.elementwise import DEFAULT, like
from tensorgraft.hub import dtypes

Array = Any


def _tanh_gelu(xp: Any, x: Array) -> tuple[Array, Array]:
    inner = xp.multiply(xp.add(x, xp.multiply(xp.multiply(xp.multiply(x, x), x), 0.044715)), math.sqrt(2 / math.pi))
    return inner, xp.tanh(inner)


@kernel("gelu", promotion=DEFAULT)
def _gelu(xp: Any, x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return xp.multiply(xp.multiply(x, 0.5), xp.add(_tanh_gelu(xp, x)[1], 1))
    return xp.multiply(xp.multiply(x, 0.5), xp.add(xp.erf(xp.multiply(x, math.sqrt(0.5))), 1))


@kernel("gelu_backward", promotion=DEFAULT)
def _gelu_backward(xp: Any, grad: Array, x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        _, t = _tanh_gelu(xp, x)
        slope = xp.multiply(xp.add(xp.multiply(xp.multiply(x, x), 3 * 0.044715), 1), math.sqrt(2 / math.pi))
        right = xp.multiply(xp.multiply(xp.multiply(x, 0.5), xp.subtract(1, xp.multiply(t, t))), slope)
        return xp.multiply(grad, xp.add(xp.multiply(xp.add(t, 1), 0.5), right))
    cdf = xp.multiply(xp.add(xp.erf(xp.multiply(x, math.sqrt(0.5))), 1), 0.5)
    pdf = xp.multiply(xp.exp(xp.multiply(xp.multiply(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return xp.multiply(grad, xp.add(cdf, xp.multiply(x, pdf)))


@kernel("silu", promotion=DEFAULT)
def _silu(xp: Any, x: Array) -> Array:
    return xp.divide(x, xp.add(xp.exp(xp.negative(x)), 1))


@kernel("silu_backward", promotion=DEFAULT)
def _silu_backward(xp: Any, grad: Array, x: Array) -> Array:
    s = xp.sigmoid(x)
    return xp.multiply(xp.multiply(grad, s), xp.add(xp.multiply(x, xp.subtract(1, s)), 1))


@kernel("threshold_backward", promotion=DEFAULT, promote=("grad_output", "self"))
def _threshold_backward(xp: Any, grad: Array, x: Array, threshold: float) -> Array:
    return xp.where(xp.less_equal(x, threshold), xp.zeros_like(grad), grad)


@kernel("tanh_backward", promotion=DEFAULT)
def _tanh_backward(xp: Any, grad: Array, out: Array) -> Array:
    out = xp.conj(out) if dtypes.is_complex(xp.dtype_of(out)) else out
    return xp.multiply(grad, xp.subtract(1, xp.multiply(out, out)))


@kernel("sigmoid_backward", promotion=DEFAULT)
def _sigmoid_backward(xp: Any, grad: Array, out: Array) -> Array:
    out = xp.conj(out) if dtypes.is_complex(xp.dtype_of(out)) else out
    return xp.multiply(grad, xp.multiply(xp.subtract(1, out), out))


@kernel("leaky_relu", dynamic=("negative_slope",), promotion=DEFAULT)
def _leaky_relu(xp: Any, x: Array, negative_slope: Any = 0.01) -> Array:
    return xp.where(xp.greater(x, 0), x, xp.multiply(x, like(xp, negative_slope, x)))


def _shrink_backward(xp: Any, grad: Array, x: Array, lambd: float) -> Array:
    inside = xp.logical_and(xp.greater_equal(x, -lambd), xp.less_equal(x, lambd))
    return xp.where(inside, xp.zeros_like(grad), grad)


kernel("hardshrink_backward", promotion=DEFAULT, promote=("grad_out", "self"))(_shrink_backward)
kernel("softshrink_backward", promotion=DEFAULT, promote=("grad_output", "self"))(_shrink_backward)
