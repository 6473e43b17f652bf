"""Rules for the optimizers of `ai.onnx.preview.training`."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.onnx.rule import rule

DOMAIN = "ai.onnx.preview.training"


def _groups(values: tuple[Any, ...], count: int) -> list[tuple[Any, ...]]:
    """Return, for each tensor that is optimized, what belongs to it: all first parts come before all second ones."""
    size = len(values) // count
    return [tuple(values[i + j * size] for j in range(count)) for i in range(size)]


def _listed(groups: list[tuple[Any, ...]]) -> list[Any]:
    return [x for column in zip(*groups, strict=True) for x in column]


@rule("Adagrad", domain=DOMAIN)
def adagrad(
    xp: Any, rate: Any, turn: Any, *values: Any, decay_factor: float = 0.0, epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
) -> Any:  # fmt: skip
    rate = xp.divide(rate, xp.add(xp.multiply(xp.astype(turn, xp.dtype_of(rate)), decay_factor), 1.0))
    new = []
    for x, gradient, total in _groups(values, 3):
        g = xp.add(xp.multiply(x, norm_coefficient), gradient)
        total = xp.add(total, xp.square(g))
        step = xp.divide(g, xp.add(xp.sqrt(total), epsilon))
        new.append((xp.subtract(x, xp.multiply(rate, step)), total))
    return _listed(new)


@rule("Momentum", domain=DOMAIN)
def momentum(
    xp: Any, rate: Any, turn: Any, *values: Any, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> Any:
    dtype = xp.dtype_of(rate)
    is_first = xp.equal(turn, 0)
    share = xp.where(is_first, xp.full((), 1.0, dtype), xp.full((), beta, dtype))
    new = []
    for x, gradient, velocity in _groups(values, 3):
        g = xp.add(xp.multiply(x, norm_coefficient), gradient)
        velocity = xp.add(xp.multiply(velocity, alpha), xp.multiply(g, share))
        step = xp.add(g, xp.multiply(velocity, alpha)) if mode == "nesterov" else velocity
        new.append((xp.subtract(x, xp.multiply(rate, step)), velocity))
    return _listed(new)


@rule("Adam", domain=DOMAIN)
def adam(
    xp: Any, rate: Any, turn: Any, *values: Any, alpha: float = 0.9, beta: float = 0.999, epsilon: float = 0.0,
    norm_coefficient: float = 0.0, norm_coefficient_post: float = 0.0,
) -> Any:  # fmt: skip
    dtype = xp.dtype_of(rate)
    t = xp.astype(turn, dtype)
    one = xp.full((), 1.0, dtype)
    corrected = xp.divide(
        xp.multiply(rate, xp.sqrt(xp.subtract(one, xp.pow(xp.full((), beta, dtype), t)))),
        xp.subtract(one, xp.pow(xp.full((), alpha, dtype), t)),
    )
    rate = xp.where(xp.greater(turn, 0), corrected, rate)
    new = []
    for x, gradient, mean, square in _groups(values, 4):
        g = xp.add(xp.multiply(x, norm_coefficient), gradient)
        mean = xp.add(xp.multiply(mean, alpha), xp.multiply(g, 1 - alpha))
        square = xp.add(xp.multiply(square, beta), xp.multiply(xp.square(g), 1 - beta))
        step = xp.divide(xp.multiply(rate, mean), xp.add(xp.sqrt(square), epsilon))
        new.append((xp.multiply(xp.subtract(x, step), 1 - norm_coefficient_post), mean, square))
    return _listed(new)
