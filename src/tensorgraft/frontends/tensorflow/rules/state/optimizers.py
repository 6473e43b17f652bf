"""Steps of optimizers: on whole variables, and on rows of them.

An update takes the arrays of a variable and its slots and the other operands in TensorFlow's order, and gives what they
become. Where a row is named twice, rows are updated one after the other, as TensorFlow does.
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

Update = Callable[..., Sequence[Array]]


def _toward(xp: Backend, x: Array, to: Array, rate: Array) -> Array:
    return xp.add(x, xp.multiply(xp.subtract(to, x), rate))


def _rest(xp: Backend, x: Array) -> Array:
    return xp.subtract(1, x)


def gradient_descent(xp: Any, v: Array, rate: Array, d: Array) -> Any:
    return (xp.subtract(v, xp.multiply(d, rate)),)


def momentum(xp: Any, v: Array, m: Array, rate: Array, d: Array, beta: Array, *, use_nesterov: bool = False) -> Any:
    m = xp.add(xp.multiply(m, beta), d)
    step = xp.multiply(m, rate)
    if use_nesterov:
        step = xp.add(xp.multiply(d, rate), xp.multiply(xp.multiply(m, beta), rate))
    return xp.subtract(v, step), m


def keras_momentum(
    xp: Any, v: Array, m: Array, rate: Array, d: Array, beta: Array, *, use_nesterov: bool = False
) -> Any:
    m = xp.subtract(xp.multiply(m, beta), xp.multiply(d, rate))
    step = xp.subtract(xp.multiply(m, beta), xp.multiply(d, rate)) if use_nesterov else m
    return xp.add(v, step), m


def rms_prop(
    xp: Any, v: Array, s: Array, m: Array, rate: Array, rho: Array, beta: Array, epsilon: Array, d: Array
) -> Any:
    s = _toward(xp, s, xp.square(d), _rest(xp, rho))
    m = xp.add(xp.multiply(m, beta), xp.divide(xp.multiply(d, rate), xp.sqrt(xp.add(s, epsilon))))
    return xp.subtract(v, m), s, m


def centred_rms_prop(
    xp: Any, v: Array, g: Array, s: Array, m: Array, rate: Array, rho: Array, beta: Array, epsilon: Array, d: Array
) -> Any:
    s = _toward(xp, s, xp.square(d), _rest(xp, rho))
    g = _toward(xp, g, d, _rest(xp, rho))
    spread = xp.add(xp.subtract(s, xp.square(g)), epsilon)
    m = xp.add(xp.multiply(m, beta), xp.divide(xp.multiply(d, rate), xp.sqrt(spread)))
    return xp.subtract(v, m), g, s, m


def ada_max(
    xp: Any, v: Array, m: Array, s: Array, power: Array, rate: Array, beta1: Array, beta2: Array, epsilon: Array,
    d: Array,
) -> Any:  # fmt: skip
    m = _toward(xp, m, d, _rest(xp, beta1))
    s = xp.maximum(xp.multiply(s, beta2), xp.abs(d))
    step = xp.multiply(xp.divide(rate, _rest(xp, power)), xp.divide(m, xp.add(s, epsilon)))
    return xp.subtract(v, step), m, s


def adam(
    xp: Any, v: Array, m: Array, s: Array, power1: Array, power2: Array, rate: Array, beta1: Array, beta2: Array,
    epsilon: Array, d: Array, *, use_nesterov: bool = False,
) -> Any:  # fmt: skip
    scale = xp.divide(xp.multiply(rate, xp.sqrt(_rest(xp, power2))), _rest(xp, power1))
    m = _toward(xp, m, d, _rest(xp, beta1))
    s = _toward(xp, s, xp.square(d), _rest(xp, beta2))
    moment = xp.add(xp.multiply(m, beta1), xp.multiply(d, _rest(xp, beta1))) if use_nesterov else m
    return xp.subtract(v, xp.divide(xp.multiply(moment, scale), xp.add(xp.sqrt(s), epsilon))), m, s


def adam_amsgrad(
    xp: Any, v: Array, m: Array, s: Array, most: Array, power1: Array, power2: Array, rate: Array, beta1: Array,
    beta2: Array, epsilon: Array, d: Array,
) -> Any:  # fmt: skip
    scale = xp.divide(xp.multiply(rate, xp.sqrt(_rest(xp, power2))), _rest(xp, power1))
    m = _toward(xp, m, d, _rest(xp, beta1))
    s = _toward(xp, s, xp.square(d), _rest(xp, beta2))
    most = xp.maximum(most, s)
    return xp.subtract(v, xp.divide(xp.multiply(m, scale), xp.add(xp.sqrt(most), epsilon))), m, s, most


def adadelta(xp: Any, v: Array, s: Array, u: Array, rate: Array, rho: Array, epsilon: Array, d: Array) -> Any:
    s = xp.add(xp.multiply(s, rho), xp.multiply(xp.square(d), _rest(xp, rho)))
    step = xp.multiply(xp.multiply(xp.sqrt(xp.add(u, epsilon)), xp.rsqrt(xp.add(s, epsilon))), d)
    u = xp.add(xp.multiply(u, rho), xp.multiply(xp.square(step), _rest(xp, rho)))
    return xp.subtract(v, xp.multiply(step, rate)), s, u


def adagrad(xp: Any, v: Array, s: Array, rate: Array, d: Array, *, update_slots: bool = True) -> Any:
    s = xp.add(s, xp.square(d)) if update_slots else s
    return xp.subtract(v, xp.multiply(xp.multiply(d, rate), xp.rsqrt(s))), s


def adagrad_v2(xp: Any, v: Array, s: Array, rate: Array, epsilon: Array, d: Array, *, update_slots: bool = True) -> Any:
    s = xp.add(s, xp.square(d)) if update_slots else s
    return xp.subtract(v, xp.divide(xp.multiply(d, rate), xp.add(xp.sqrt(s), epsilon))), s


def adagrad_da(xp: Any, v: Array, g: Array, s: Array, d: Array, rate: Array, l1: Array, l2: Array, step: Array) -> Any:
    step = xp.astype(step, xp.dtype_of(d))
    g, s = xp.add(g, d), xp.add(s, xp.square(d))
    shrunk = xp.subtract(xp.abs(g), xp.multiply(l1, step))
    size = xp.where(xp.greater(l1, 0), xp.maximum(shrunk, xp.zeros_like(shrunk)), xp.abs(g))
    below = xp.add(xp.multiply(xp.multiply(l2, step), rate), xp.sqrt(s))
    return xp.negative(xp.divide(xp.multiply(xp.multiply(xp.sign(g), size), rate), below)), g, s


def add_sign(xp: Any, v: Array, m: Array, rate: Array, alpha: Array, decay: Array, beta: Array, d: Array) -> Any:
    m = xp.add(xp.multiply(m, beta), xp.multiply(d, _rest(xp, beta)))
    factor = xp.add(alpha, xp.multiply(decay, xp.multiply(xp.sign(d), xp.sign(m))))
    return xp.subtract(v, xp.multiply(xp.multiply(factor, d), rate)), m


def power_sign(xp: Any, v: Array, m: Array, rate: Array, logbase: Array, decay: Array, beta: Array, d: Array) -> Any:
    m = xp.add(xp.multiply(m, beta), xp.multiply(d, _rest(xp, beta)))
    factor = xp.exp(xp.multiply(xp.multiply(logbase, decay), xp.multiply(xp.sign(d), xp.sign(m))))
    return xp.subtract(v, xp.multiply(xp.multiply(factor, d), rate)), m


def _shrunk(xp: Any, x: Array, by: Array, l1: Array, below: Array) -> Array:
    less = xp.subtract(xp.abs(x), by)
    soft = xp.multiply(xp.sign(x), xp.maximum(less, xp.zeros_like(less)))
    return xp.divide(xp.where(xp.greater(l1, 0), soft, x), below)


def proximal_adagrad(xp: Any, v: Array, s: Array, rate: Array, l1: Array, l2: Array, d: Array) -> Any:
    s = xp.add(s, xp.square(d))
    own = xp.multiply(rate, xp.rsqrt(s))
    moved = xp.subtract(v, xp.multiply(d, own))
    return _shrunk(xp, moved, xp.multiply(own, l1), l1, xp.add(1, xp.multiply(l2, own))), s


def proximal_descent(xp: Any, v: Array, rate: Array, l1: Array, l2: Array, d: Array) -> Any:
    moved = xp.subtract(v, xp.multiply(d, rate))
    return (_shrunk(xp, moved, xp.multiply(rate, l1), l1, xp.add(1, xp.multiply(rate, l2))),)


def ftrl_v2(
    xp: Any, v: Array, s: Array, line: Array, d: Array, rate: Array, l1: Array, l2: Array, shrinkage: Any,
    power: Array, *, multiply_linear_by_lr: bool = False,
) -> Any:  # fmt: skip
    more = xp.add(s, xp.square(d))
    if shrinkage is not None:
        d = xp.add(d, xp.multiply(xp.multiply(v, shrinkage), 2))

    def root(x: Array) -> Array:
        return xp.pow(x, xp.broadcast_to(xp.negative(power), xp.shape(x)))

    moved = xp.multiply(xp.subtract(root(more), root(s)), v)
    if multiply_linear_by_lr:
        line = xp.add(line, xp.subtract(xp.multiply(d, rate), moved))
        l1, below = xp.multiply(l1, rate), xp.add(root(more), xp.multiply(xp.multiply(l2, rate), 2))
    else:
        line = xp.add(line, xp.subtract(d, xp.divide(moved, rate)))
        below = xp.add(xp.divide(root(more), rate), xp.multiply(l2, 2))
    held = xp.minimum(xp.maximum(line, xp.negative(l1)), l1)
    return xp.divide(xp.subtract(held, line), below), more, line


def ftrl(
    xp: Any, v: Array, s: Array, line: Array, d: Array, rate: Array, l1: Array, l2: Array, power: Array, *,
    multiply_linear_by_lr: bool = False,
) -> Any:  # fmt: skip
    return ftrl_v2(xp, v, s, line, d, rate, l1, l2, None, power, multiply_linear_by_lr=multiply_linear_by_lr)


# name -> (arrays of the variable and its slots, where the derivative is among the operands, update, whether of rows)
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
        before, behind = operands[count:at], operands[at + 2 :]

        def rows(arrays: Sequence[Array], places: Array, share: Array) -> list[Array]:
            seen = [xp.gather(x, (places,)) for x in arrays]
            new = update(xp, *seen, *before, share, *behind, **attributes)
            return [xp.scatter(x, (places,), r) for x, r in zip(arrays, new, strict=True)]

        arrays = [c.value for c in cells]
        if not xp.shape(indices)[0]:
            return []
        if not xp.is_traced(indices) and _are_unique(xp.to_numpy(indices)):
            _store(cells, rows(arrays, indices, d))
            return []

        def one(state: list[Array], row: Any) -> Any:
            place, share = row
            return rows(state, xp.reshape(place, (1,)), xp.expand_dims(share, 0)), place

        _store(cells, xp.scan(one, arrays, (indices, d), length=xp.shape(indices)[0])[0])
        return []

    return step


def _are_unique(x: np.ndarray) -> bool:
    return np.unique(x).size == x.size


def _named(fn: Callable[..., Any], update: Update) -> Callable[..., Any]:
    """Give `fn` a signature with the attributes of the update."""
    import inspect

    own = [p for p in inspect.signature(update).parameters.values() if p.kind is p.KEYWORD_ONLY]
    many = inspect.Parameter("operands", inspect.Parameter.VAR_POSITIONAL)
    first = inspect.Parameter("xp", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    fn.__signature__ = inspect.Signature([first, many, *own])  # type: ignore[attr-defined]
    return fn


for _name, (_count, _at, _update, _rows) in UPDATES.items():
    rule(f"ResourceApply{_name}", writes=True)(_named(_on_whole(_update, _count), _update))
    if _rows:
        rule(f"ResourceSparseApply{_name}", writes=True)(_named(_on_rows(_update, _count, _at), _update))
