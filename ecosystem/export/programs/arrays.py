"""Functions of the Array API."""

from __future__ import annotations

from typing import Any

from ecosystem.export.programs import Program, normal


def _attention() -> Any:
    import tensorgraft as tg

    xp = tg.array_api
    w = xp.asarray(normal(3, 16, 16))

    def attention(x: Any) -> Any:
        q, k, v = (x @ w[i, ...] for i in range(3))
        scores = q @ xp.matrix_transpose(k) / 4.0
        weights = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
        return (weights / xp.sum(weights, axis=-1, keepdims=True)) @ v

    return attention, lambda batch, length: ((xp.asarray(normal(batch, length, 16)),), {})


def _filter() -> Any:
    """The step of a Kalman filter, for a batch of states."""
    import tensorgraft as tg

    xp = tg.array_api
    move, noise = xp.asarray([[1.0, 0.1], [0.0, 1.0]], dtype=xp.float32), 0.01 * xp.eye(2, dtype=xp.float32)

    def step(mean: Any, covariance: Any, measured: Any) -> Any:
        mean = xp.squeeze(move @ mean[..., None], axis=-1)
        covariance = move @ covariance @ xp.matrix_transpose(move) + noise
        gain = covariance[..., :, 0] / (covariance[..., 0, 0] + 0.1)[..., None]
        mean = mean + gain * (measured - mean[..., 0])[..., None]
        return mean, covariance - gain[..., :, None] * covariance[..., 0, None, :]

    def arguments(batch: int, length: int) -> Any:
        eye = xp.broadcast_to(xp.eye(2, dtype=xp.float32), (batch, 2, 2))
        return (xp.asarray(normal(batch, 2)), xp.asarray(eye), xp.asarray(normal(batch))), {}

    return step, arguments


PROGRAMS = [
    Program("attention", "Array API", "array_api", _attention, True),
    Program("Kalman filter", "Array API", "array_api", _filter),
]
