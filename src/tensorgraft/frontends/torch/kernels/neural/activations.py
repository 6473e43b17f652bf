"""Activations and their gradients."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.common import check_fits
from tensorgraft.frontends.torch.kernels.math.elementwise import DEFAULT, like
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import Value, with_operators


@kernel("silu", promotion=DEFAULT)
@with_operators
def _silu(xp: Any, x: Value) -> Value:
    return x / (xp.exp(-x) + 1)


@kernel("silu_backward", promotion=DEFAULT)
@with_operators
def _silu_backward(xp: Any, grad: Value, x: Value) -> Value:
    s = xp.sigmoid(x)
    return grad * s * (x * (1 - s) + 1)


@kernel("gelu", promotion=DEFAULT)
def _gelu(xp: Any, x: Array, approximate: str = "none") -> Array:
    return xp.gelu(x, approximate == "tanh")


@kernel("threshold", promotion=DEFAULT)
def _threshold(xp: Any, x: Array, threshold: float, value: float) -> Array:
    check_fits(threshold, xp.dtype_of(x))
    check_fits(value, xp.dtype_of(x))
    return xp.where(xp.less_equal(x, like(xp, threshold, x)), like(xp, value, x), x)


@kernel("threshold_backward", promotion=DEFAULT, promote=("grad_output", "self"))
def _threshold_backward(xp: Any, grad: Array, x: Array, threshold: float) -> Array:
    check_fits(threshold, xp.dtype_of(x))
    return xp.where(xp.less_equal(x, like(xp, threshold, x)), xp.zeros_like(grad), grad)


@kernel("tanh_backward", promotion=DEFAULT)
@with_operators
def _tanh_backward(xp: Any, grad: Value, out: Value) -> Value:
    out = xp.conj(out) if dtypes.is_complex(out.dtype) else out
    return grad * (1 - out * out)


@kernel("sigmoid_backward", promotion=DEFAULT)
@with_operators
def _sigmoid_backward(xp: Any, grad: Value, out: Value) -> Value:
    out = xp.conj(out) if dtypes.is_complex(out.dtype) else out
    return grad * ((1 - out) * out)


@kernel("leaky_relu", dynamic=("negative_slope",), promotion=DEFAULT)
def _leaky_relu(xp: Any, x: Array, negative_slope: Any = 0.01) -> Array:
    return xp.where(xp.greater(x, 0), x, xp.multiply(x, like(xp, negative_slope, x)))


@with_operators
def _shrink_backward(xp: Any, grad: Value, x: Value, lambd: float) -> Value:
    is_inside = (x >= -lambd) & (x <= lambd)
    return xp.where(is_inside, xp.zeros_like(grad), grad)


kernel("hardshrink_backward", promotion=DEFAULT, promote=("grad_out", "self"))(_shrink_backward)
kernel("softshrink_backward", promotion=DEFAULT, promote=("grad_output", "self"))(_shrink_backward)
