"""Activations, losses, and their gradients, which are operations of TensorFlow."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators


def _zeros_where(xp: Any, condition: AnyArray, x: AnyArray) -> AnyArray:
    """0 where the condition holds, else `x`."""
    return xp.where(condition, xp.zeros_like(x), x)


@rule("Relu")
def relu(xp: Backend, x: Array) -> Array:
    return xp.maximum(x, xp.zeros_like(x))


@rule("Relu6")
def relu6(xp: Backend, x: Array) -> Array:
    return xp.minimum(relu(xp, x), xp.full_like(x, 6))


@rule("LeakyRelu")
def leaky_relu(xp: Backend, x: Array, *, alpha: float = 0.2) -> Array:
    return xp.leaky_relu(x, alpha)


@rule("Elu")
def elu(xp: Backend, x: Array) -> Array:
    return xp.where(xp.less(x, 0), xp.expm1(x), x)


_SCALE, _SCALE_ALPHA = 1.0507009873554804934193349852946, 1.7580993408473768599402175208123


@rule("Selu")
def selu(xp: Backend, x: Array) -> Array:
    return xp.where(xp.less(x, 0), xp.multiply(xp.expm1(x), _SCALE_ALPHA), xp.multiply(x, _SCALE))


@rule("Softplus")
def softplus(xp: Backend, x: Array) -> Array:
    return xp.softplus(x)


@rule("Softsign")
@with_operators
def softsign(xp: ValueBackend, x: Value) -> Value:
    return x / (abs(x) + 1)


@rule("Softmax")
def softmax(xp: Backend, x: Array) -> Array:
    return xp.softmax(x, -1)


@rule("LogSoftmax")
def log_softmax(xp: Backend, x: Array) -> Array:
    return xp.log_softmax(x, -1)


@rule("L2Loss")
def l2_loss(xp: Backend, x: Array) -> Array:
    return xp.divide(xp.sum(xp.square(x)), 2)


@rule("SparseSoftmaxCrossEntropyWithLogits")
@with_operators
def sparse_cross_entropy(xp: ValueBackend, logits: Value, labels: Value) -> list[Value]:
    """Labels out of range give NaN."""
    n, dtype = logits.shape[-1], logits.dtype
    logs = xp.log_softmax(logits, -1)
    hot = xp.one_hot(labels, n, dtypes.bool_)
    loss = -xp.sum(_zeros_where(xp, ~hot, logs), axis=-1)
    in_range = (labels >= 0) & (labels < n)
    nan = xp.full((), float("nan"), dtype)
    loss = xp.where(in_range, loss, nan)
    gradient = xp.exp(logs) - xp.astype(hot, dtype)
    return [loss, xp.where(xp.expand_dims(in_range, -1), gradient, nan)]


@rule("SoftmaxCrossEntropyWithLogits")
def cross_entropy(xp: Backend, logits: Array, labels: Array) -> list[Array]:
    shape = _broadcast(xp.shape(logits), xp.shape(labels))
    logits, labels = xp.broadcast_to(logits, shape), xp.broadcast_to(labels, shape)
    logs = xp.log_softmax(logits, -1)
    loss = xp.negative(xp.sum(_zeros_where(xp, xp.equal(labels, 0), xp.multiply(labels, logs)), axis=-1))
    return [loss, xp.subtract(xp.exp(logs), labels)]


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(max(m, n) if min(m, n) else 0 for m, n in zip(a, b, strict=True))


# ---- derivatives -----------------------------------------------------------------------------------------------------


@rule("TanhGrad")
@with_operators
def tanh_grad(xp: ValueBackend, y: Value, d: Value) -> Value:
    return d * (xp.ones_like(y) - y * y)


@rule("SigmoidGrad")
@with_operators
def sigmoid_grad(xp: ValueBackend, y: Value, d: Value) -> Value:
    return d * y * (xp.ones_like(y) - y)


def _conjugate(xp: Any, y: AnyArray) -> AnyArray:
    return xp.conj(y) if dtypes.is_complex(xp.dtype_of(y)) else y


def _unless_zero(xp: Any, d: AnyArray, x: AnyArray) -> AnyArray:
    """Return 0 where the incoming gradient is 0, even if the other factor is infinite or NaN."""
    return _zeros_where(xp, xp.equal(d, 0), x)


@rule("SqrtGrad")
@with_operators
def sqrt_grad(xp: ValueBackend, y: Value, d: Value) -> Value:
    return _unless_zero(xp, d, d * 0.5 / _conjugate(xp, y))


@rule("RsqrtGrad")
@with_operators
def rsqrt_grad(xp: ValueBackend, y: Value, d: Value) -> Value:
    y = _conjugate(xp, y)
    return _unless_zero(xp, d, d * -0.5 * y * (y * y))


@rule("ReciprocalGrad", "InvGrad")
@with_operators
def reciprocal_grad(xp: ValueBackend, y: Value, d: Value) -> Value:
    y = _conjugate(xp, y)
    return _unless_zero(xp, d, -(y * d * y))


def _where(xp: Any, condition: AnyArray, d: AnyArray) -> AnyArray:
    """Return the product of the two: NaN and infinities stay NaN. XLA would make a choice of a product with a bool."""
    return xp.where(condition, d, xp.multiply(d, 0))


@rule("ReluGrad")
def relu_grad(xp: Backend, d: Array, x: Array) -> Array:
    return _where(xp, xp.greater(x, 0), d)


@rule("Relu6Grad")
@with_operators
def relu6_grad(xp: ValueBackend, d: Value, x: Value) -> Value:
    in_range = (x > 0) & (x < 6)
    return _where(xp, in_range, d)


@rule("LeakyReluGrad")
def leaky_relu_grad(xp: Backend, d: Array, x: Array, *, alpha: float = 0.2) -> Array:
    return xp.where(xp.greater(x, 0), d, xp.multiply(d, alpha))


@rule("EluGrad")
@with_operators
def elu_grad(xp: ValueBackend, d: Value, y: Value) -> Value:
    return xp.where(y < 0, (y + 1) * d, d)


@rule("SeluGrad")
@with_operators
def selu_grad(xp: ValueBackend, d: Value, y: Value) -> Value:
    return xp.where(y < 0, d * (y + _SCALE_ALPHA), d * _SCALE)


@rule("SoftplusGrad")
@with_operators
def softplus_grad(xp: ValueBackend, d: Value, x: Value) -> Value:
    return d / (xp.exp(-x) + 1)


@rule("SoftsignGrad")
@with_operators
def softsign_grad(xp: ValueBackend, d: Value, x: Value) -> Value:
    return d / xp.square(abs(x) + 1)
