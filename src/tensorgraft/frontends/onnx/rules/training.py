"""Rules for the optimizers of `ai.onnx.preview.training`."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.onnx.rule import rule
from tensorgraft.hub.value import Value, with_operators

DOMAIN = "ai.onnx.preview.training"


def _groups(values: tuple[Any, ...], count: int) -> list[tuple[Any, ...]]:
    """Return, for each tensor that is optimized, what belongs to it: all first parts come before all second ones."""
    size = len(values) // count
    return [tuple(values[i + j * size] for j in range(count)) for i in range(size)]


def _listed(groups: list[tuple[Any, ...]]) -> list[Any]:
    return [x for column in zip(*groups, strict=True) for x in column]


@rule("Adagrad", domain=DOMAIN)
@with_operators
def adagrad(
    xp: Any, rate: Value, turn: Value, *values: Value, decay_factor: float = 0.0, epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
) -> Any:  # fmt: skip
    rate = rate / (xp.astype(turn, rate.dtype) * decay_factor + 1.0)
    new = []
    for x, gradient, total in _groups(values, 3):
        g = x * norm_coefficient + gradient
        total = total + xp.square(g)
        new.append((x - rate * (g / (xp.sqrt(total) + epsilon)), total))
    return _listed(new)


@rule("Momentum", domain=DOMAIN)
@with_operators
def momentum(
    xp: Any, rate: Value, turn: Value, *values: Value, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> Any:
    share = xp.where(turn == 0, xp.ones_like(rate), xp.full_like(rate, beta))
    new = []
    for x, gradient, velocity in _groups(values, 3):
        g = x * norm_coefficient + gradient
        velocity = velocity * alpha + g * share
        new.append((x - rate * (g + velocity * alpha if mode == "nesterov" else velocity), velocity))
    return _listed(new)


@rule("Adam", domain=DOMAIN)
@with_operators
def adam(
    xp: Any, rate: Value, turn: Value, *values: Value, alpha: float = 0.9, beta: float = 0.999, epsilon: float = 0.0,
    norm_coefficient: float = 0.0, norm_coefficient_post: float = 0.0,
) -> Any:  # fmt: skip
    t = xp.astype(turn, rate.dtype)
    corrected = rate * xp.sqrt(1 - xp.full_like(rate, beta) ** t) / (1 - xp.full_like(rate, alpha) ** t)
    rate = xp.where(turn > 0, corrected, rate)
    new = []
    for x, gradient, mean, square in _groups(values, 4):
        g = x * norm_coefficient + gradient
        mean = mean * alpha + g * (1 - alpha)
        square = square * beta + xp.square(g) * (1 - beta)
        step = rate * mean / (xp.sqrt(square) + epsilon)
        new.append(((x - step) * (1 - norm_coefficient_post), mean, square))
    return _listed(new)
