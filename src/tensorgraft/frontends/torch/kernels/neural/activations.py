"""Activations and their gradients."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.common import check_fits
from tensorgraft.frontends.torch.kernels.math.elementwise import DEFAULT, like
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array


@kernel("silu", promotion=DEFAULT)
def _silu(xp: Any, x: Array) -> Array:
    return xp.divide(x, xp.add(xp.exp(xp.negative(x)), 1))


@kernel("silu_backward", promotion=DEFAULT)
def _silu_backward(xp: Any, grad: Array, x: Array) -> Array:
    s = xp.sigmoid(x)
    return xp.multiply(xp.multiply(grad, s), xp.add(xp.multiply(x, xp.subtract(1, s)), 1))


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
