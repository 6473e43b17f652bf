"""Optionals: the residuals of branches."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import EVERY, rule
from tensorgraft.frontends.tensorflow.values import OptionalValue
from tensorgraft.hub.backend import Backend


@rule("OptionalFromValue", either=EVERY, folds=False)
def from_value(xp: Backend, *components: Any) -> OptionalValue:
    return OptionalValue(components)


@rule("OptionalNone", either=EVERY, folds=False)
def optional_none(xp: Backend) -> OptionalValue:
    return OptionalValue(None)


@rule("OptionalGetValue", either=EVERY, folds=False)
def get_value(xp: Backend, optional: OptionalValue) -> list[Any]:
    if optional.values is None:
        raise ValueError("an optional has no value")
    return list(optional.values)


@rule("OptionalHasValue", either=EVERY, folds=False)
def has_value(xp: Backend, optional: OptionalValue) -> np.ndarray:
    return np.asarray(optional.values is not None)
