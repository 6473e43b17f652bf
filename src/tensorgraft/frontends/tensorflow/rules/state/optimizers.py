"""Steps of optimizers: on whole variables, and on rows of them.

An update takes the arrays of a variable and its slots and then the other operands, in TensorFlow's order, and returns
the new arrays of the variable and its slots. If an index occurs twice, rows are updated one after the other, as in
TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.values import VariableCell
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators

Update = Callable[..., Sequence[Array]]


def _toward(xp: ValueBackend, x: Value, to: Value, rate: Value) -> Value:
    return x + (to - x) * rate


def _one_minus(xp: Any, x: AnyArray) -> AnyArray:
    return xp.subtract(1, x)


@with_operators
def gradient_descent(xp: Any, v: Value, rate: Value, d: Value) -> Any:
    return (v - d * rate,)


@with_operators
def momentum(xp: Any, v: Value, m: Value, rate: Value, d: Value, beta: Value, *, use_nesterov: bool = False) -> Any:
    m = m * beta + d
    step = m * rate
    if use_nesterov:
        step = d * rate + m * beta * rate
    return v - step, m


@with_operators
def keras_momentum(
    xp: Any, v: Value, m: Value, rate: Value, d: Value, beta: Value, *, use_nesterov: bool = False
) -> Any:
    m = m * beta - d * rate
    step = m * beta - d * rate if use_nesterov else m
    return v + step, m


@with_operators
def rms_prop(
    xp: Any, v: Value, s: Value, m: Value, rate: Value, rho: Value, beta: Value, epsilon: Value, d: Value
) -> Any:
    s = _toward(xp, s, xp.square(d), _one_minus(xp, rho))
    m = m * beta + d * rate / xp.sqrt(s + epsilon)
    return v - m, s, m


@with_operators
def centred_rms_prop(
    xp: Any, v: Value, g: Value, s: Value, m: Value, rate: Value, rho: Value, beta: Value, epsilon: Value, d: Value
) -> Any:
    s = _toward(xp, s, xp.square(d), _one_minus(xp, rho))
    g = _toward(xp, g, d, _one_minus(xp, rho))
    variance = s - xp.square(g) + epsilon
    m = m * beta + d * rate / xp.sqrt(variance)
    return v - m, g, s, m


@with_operators
def ada_max(
    xp: Any, v: Value, m: Value, s: Value, power: Value, rate: Value, beta1: Value, beta2: Value, epsilon: Value,
    d: Value,
) -> Any:  # fmt: skip
    m = _toward(xp, m, d, _one_minus(xp, beta1))
    s = xp.maximum(s * beta2, abs(d))
    step = rate / _one_minus(xp, power) * (m / (s + epsilon))
    return v - step, m, s


@with_operators
def adam(
    xp: Any, v: Value, m: Value, s: Value, power1: Value, power2: Value, rate: Value, beta1: Value, beta2: Value,
    epsilon: Value, d: Value, *, use_nesterov: bool = False,
) -> Any:  # fmt: skip
    scale = rate * xp.sqrt(_one_minus(xp, power2)) / _one_minus(xp, power1)
    m = _toward(xp, m, d, _one_minus(xp, beta1))
    s = _toward(xp, s, xp.square(d), _one_minus(xp, beta2))
    moment = m * beta1 + d * _one_minus(xp, beta1) if use_nesterov else m
    return v - moment * scale / (xp.sqrt(s) + epsilon), m, s


@with_operators
def adam_amsgrad(
    xp: Any, v: Value, m: Value, s: Value, most: Value, power1: Value, power2: Value, rate: Value, beta1: Value,
    beta2: Value, epsilon: Value, d: Value,
) -> Any:  # fmt: skip
    scale = rate * xp.sqrt(_one_minus(xp, power2)) / _one_minus(xp, power1)
    m = _toward(xp, m, d, _one_minus(xp, beta1))
    s = _toward(xp, s, xp.square(d), _one_minus(xp, beta2))
    most = xp.maximum(most, s)
    return v - m * scale / (xp.sqrt(most) + epsilon), m, s, most


@with_operators
def adadelta(xp: Any, v: Value, s: Value, u: Value, rate: Value, rho: Value, epsilon: Value, d: Value) -> Any:
    s = s * rho + xp.square(d) * _one_minus(xp, rho)
    step = xp.sqrt(u + epsilon) * xp.rsqrt(s + epsilon) * d
    u = u * rho + xp.square(step) * _one_minus(xp, rho)
    return v - step * rate, s, u


@with_operators
def adagrad(xp: Any, v: Value, s: Value, rate: Value, d: Value, *, update_slots: bool = True) -> Any:
    s = s + xp.square(d) if update_slots else s
    return v - d * rate * xp.rsqrt(s), s


@with_operators
def adagrad_v2(xp: Any, v: Value, s: Value, rate: Value, epsilon: Value, d: Value, *, update_slots: bool = True) -> Any:
    s = s + xp.square(d) if update_slots else s
    return v - d * rate / (xp.sqrt(s) + epsilon), s


@with_operators
def adagrad_da(xp: Any, v: Value, g: Value, s: Value, d: Value, rate: Value, l1: Value, l2: Value, step: Value) -> Any:
    step = xp.astype(step, d.dtype)
    g, s = g + d, s + xp.square(d)
    shrunk = abs(g) - l1 * step
    size = xp.where(l1 > 0, xp.maximum(shrunk, xp.zeros_like(shrunk)), abs(g))
    divisor = l2 * step * rate + xp.sqrt(s)
    return -(xp.sign(g) * size * rate / divisor), g, s


@with_operators
def add_sign(xp: Any, v: Value, m: Value, rate: Value, alpha: Value, decay: Value, beta: Value, d: Value) -> Any:
    m = m * beta + d * _one_minus(xp, beta)
    factor = alpha + decay * (xp.sign(d) * xp.sign(m))
    return v - factor * d * rate, m


@with_operators
def power_sign(xp: Any, v: Value, m: Value, rate: Value, logbase: Value, decay: Value, beta: Value, d: Value) -> Any:
    m = m * beta + d * _one_minus(xp, beta)
    factor = xp.exp(logbase * decay * (xp.sign(d) * xp.sign(m)))
    return v - factor * d * rate, m


def _shrunk(xp: Any, x: Value, by: Value, l1: Value, divisor: Value) -> Value:
    """Return `x` with its magnitude reduced `by` an amount if `l1` is positive (soft thresholding), over `divisor`."""
    excess = abs(x) - by
    soft = xp.sign(x) * xp.maximum(excess, xp.zeros_like(excess))
    return xp.where(l1 > 0, soft, x) / divisor


@with_operators
def proximal_adagrad(xp: Any, v: Value, s: Value, rate: Value, l1: Value, l2: Value, d: Value) -> Any:
    s = s + xp.square(d)
    own_rate = rate * xp.rsqrt(s)
    moved = v - d * own_rate
    return _shrunk(xp, moved, own_rate * l1, l1, 1 + l2 * own_rate), s


@with_operators
def proximal_descent(xp: Any, v: Value, rate: Value, l1: Value, l2: Value, d: Value) -> Any:
    moved = v - d * rate
    return (_shrunk(xp, moved, rate * l1, l1, 1 + rate * l2),)


@with_operators
def ftrl_v2(
    xp: Any, v: Value, s: Value, linear: Value, d: Value, rate: Value, l1: Value, l2: Value, shrinkage: Any,
    power: Value, *, multiply_linear_by_lr: bool = False,
) -> Any:  # fmt: skip
    new_s = s + xp.square(d)
    if shrinkage is not None:
        d = d + v * shrinkage * 2

    def root(x: Value) -> Value:
        return x ** xp.broadcast_to(-power, x.shape)

    moved = (root(new_s) - root(s)) * v
    if multiply_linear_by_lr:
        linear = linear + (d * rate - moved)
        l1, divisor = l1 * rate, root(new_s) + l2 * rate * 2
    else:
        linear = linear + (d - moved / rate)
        divisor = root(new_s) / rate + l2 * 2
    clamped = xp.minimum(xp.maximum(linear, -l1), l1)
    return (clamped - linear) / divisor, new_s, linear


def ftrl(
    xp: Any, v: Array, s: Array, linear: Array, d: Array, rate: Array, l1: Array, l2: Array, power: Array, *,
    multiply_linear_by_lr: bool = False,
) -> Any:  # fmt: skip
    return ftrl_v2(xp, v, s, linear, d, rate, l1, l2, None, power, multiply_linear_by_lr=multiply_linear_by_lr)


# {name: (number of arrays of the variable and its slots, position of the derivative among the operands, update,
# whether there is an operation for rows)}
UPDATES: dict[str, tuple[int, int, Update, bool]] = {
    "GradientDescent": (1, 2, gradient_descent, False),
    "Momentum": (2, 3, momentum, True),
    "KerasMomentum": (2, 3, keras_momentum, True),
    "RMSProp": (3, 7, rms_prop, True),
    "CenteredRMSProp": (4, 8, centred_rms_prop, True),
    "AdaMax": (3, 8, ada_max, False),
    "Adam": (3, 9, adam, False),
    "AdamWithAmsgrad": (4, 10, adam_amsgrad, False),
    "Adadelta": (3, 6, adadelta, True),
    "Adagrad": (2, 3, adagrad, True),
    "AdagradV2": (2, 4, adagrad_v2, True),
    "AdagradDA": (3, 3, adagrad_da, True),
    "AddSign": (2, 6, add_sign, False),
    "PowerSign": (2, 6, power_sign, False),
    "ProximalAdagrad": (2, 5, proximal_adagrad, True),
    "ProximalGradientDescent": (1, 4, proximal_descent, True),
    "Ftrl": (3, 3, ftrl, True),
    "FtrlV2": (3, 3, ftrl_v2, True),
}


def _on_whole(update: Update, count: int) -> Callable[..., list[Any]]:
    def step(xp: Backend, *operands: Any, **attributes: Any) -> list[Any]:
        cells = operands[:count]
        _store(cells, update(xp, *[c.value for c in cells], *operands[count:], **attributes))
        return []

    return step


def _store(cells: Sequence[VariableCell], arrays: Sequence[Array]) -> None:
    for cell, x in zip(cells, arrays, strict=True):
        cell.value = x


def _on_rows(update: Update, count: int, at: int) -> Callable[..., list[Any]]:
    def step(xp: Backend, *operands: Any, **attributes: Any) -> list[Any]:
        cells, d, indices = operands[:count], operands[at], xp.astype(operands[at + 1], dtypes.int64)
        before, operands_after = operands[count:at], operands[at + 2 :]

        def rows(arrays: Sequence[Array], positions: Array, share: Array) -> list[Array]:
            gathered_rows = [xp.gather(x, (positions,)) for x in arrays]
            new = update(xp, *gathered_rows, *before, share, *operands_after, **attributes)
            return [xp.scatter(x, (positions,), r) for x, r in zip(arrays, new, strict=True)]

        arrays = [c.value for c in cells]
        if not xp.shape(indices)[0]:
            return []
        if not xp.is_traced(indices) and _are_unique(xp.to_numpy(indices)):
            _store(cells, rows(arrays, indices, d))
            return []

        def update_row(state: list[Array], row: Any) -> Any:
            position, share = row
            return rows(state, xp.reshape(position, (1,)), xp.expand_dims(share, 0)), position

        _store(cells, xp.scan(update_row, arrays, (indices, d), length=xp.shape(indices)[0])[0])
        return []

    return step


def _are_unique(x: np.ndarray) -> bool:
    return np.unique(x).size == x.size


def _with_signature(fn: Callable[..., Any], update: Update) -> Callable[..., Any]:
    """Give `fn` a signature with the keyword parameters of the update, which are the operation's attributes."""
    import inspect

    attributes = [p for p in inspect.signature(update).parameters.values() if p.kind is p.KEYWORD_ONLY]
    operand_parameter = inspect.Parameter("operands", inspect.Parameter.VAR_POSITIONAL)
    first = inspect.Parameter("xp", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    fn.__signature__ = inspect.Signature([first, operand_parameter, *attributes])  # type: ignore[attr-defined]
    return fn


for _name, (_count, _at, _update, _rows) in UPDATES.items():
    rule(f"ResourceApply{_name}", writes=True)(_with_signature(_on_whole(_update, _count), _update))
    if _rows:
        rule(f"ResourceSparseApply{_name}", writes=True)(_with_signature(_on_rows(_update, _count, _at), _update))
