"""Scores of classifiers and regressors of `ai.onnx.ml`: their transforms, and labels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.errors import TracedValueError
from tensorgraft.hub.value import Value, with_operators


def transformed(xp: Any, scores: Any, kind: str) -> Any:
    """Return scores (N, classes) after a `post_transform`."""
    if kind == "LOGISTIC":
        return xp.sigmoid(scores)
    if kind == "SOFTMAX":
        return xp.softmax(scores, -1)
    if kind == "SOFTMAX_ZERO":
        is_set = xp.greater(xp.abs(scores), 1e-7)
        exps = xp.where(is_set, xp.exp(xp.subtract(scores, xp.max(scores, -1, True))), xp.zeros_like(scores))
        return xp.divide(exps, xp.sum(exps, -1, True))
    if kind == "PROBIT":
        return _probit(xp, scores)
    return scores


@with_operators
def _probit(xp: Any, p: Value) -> Value:
    """Return the quantile of the normal distribution."""
    return xp.erf_inv(p * 2 - 1) * math.sqrt(2)


def of_two_classes(xp: Any, score: Any, kind: str, is_probability: bool) -> Any:
    """Return the scores (N, 2) of two classes by the score (N, 1) of the second one. Only `LOGISTIC` and `PROBIT`
    transform them: the first class has the rest to 1 of a probability, else the opposite number."""
    if kind == "LOGISTIC":
        return transformed(xp, xp.concat([xp.negative(score), score], axis=1), kind)
    other = xp.subtract(1.0, score) if is_probability or kind == "PROBIT" else xp.negative(score)
    scores = xp.concat([other, score], axis=1)
    return transformed(xp, scores, kind) if kind == "PROBIT" else scores


def regressed(xp: Any, scores: Any, kind: str) -> Any:
    """Return scores (N, targets) after a `post_transform`, of which those of one target know `PROBIT` alone."""
    return scores if scores.shape[1] == 1 and kind != "PROBIT" else transformed(xp, scores, kind)


def labelled(xp: Any, at: Any, labels: Any) -> Any:
    """Return the labels at positions. Raises TracedValueError for strings, which only the host has."""
    if not labels:
        return at
    if not isinstance(labels[0], str):
        return xp.take(xp.asarray(np.array(labels, np.int64)), at, 0)
    if xp.is_traced(at):
        raise TracedValueError(
            "labels are strings, which a compiled program cannot return: call the model without compiling it, or"
            " return the scores alone"
        )
    return np.array(labels, object)[np.asarray(xp.to_numpy(at))]
