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
        is_set = xp.not_equal(scores, 0)
        exps = xp.where(is_set, xp.exp(xp.subtract(scores, xp.max(scores, -1, True))), xp.zeros_like(scores))
        return xp.divide(exps, xp.sum(exps, -1, True))
    if kind == "PROBIT":
        return _probit(xp, scores)
    return scores


@with_operators
def _probit(xp: Any, p: Value) -> Value:
    """Return the quantile of the normal distribution."""
    return xp.erf_inv(p * 2 - 1) * math.sqrt(2)


def classified(xp: Any, scores: Any, labels: Any, kind: str, is_binary: bool) -> list[Any]:
    """Return (the label of each row, the scores of the classes). Scores of two classes may be given by that of the
    second one."""
    if is_binary:
        other = xp.negative(scores) if kind not in ("NONE", "PROBIT") else xp.subtract(1.0, scores)
        scores = xp.concat([other, scores], axis=1)
    scores = transformed(xp, scores, kind)
    return [labelled(xp, xp.argmax(scores, 1), labels), scores]


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
