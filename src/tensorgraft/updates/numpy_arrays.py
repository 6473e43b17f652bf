"""Updates of `numpy.ndarray`s."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.updates.rules import check_dtype, check_shape

_AT = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}


def _fitting(x: np.ndarray, value: Any, keep_dtype: bool = True) -> np.ndarray:
    if not x.flags.writeable:
        raise ValueError("the array is read-only: make a copy that can be written with numpy.array(x)")
    if not keep_dtype:
        number = isinstance(value, bool | int | float | complex)
        check_dtype(value if number else np.asarray(value).dtype, x.dtype)
    value = np.asarray(value)
    if value.dtype.kind == "c" and x.dtype.kind != "c":
        value = value.real
    with np.errstate(all="ignore"):
        return value.astype(x.dtype)


def update(x: np.ndarray, value: Any, keep_dtype: bool) -> None:
    value = _fitting(x, value, keep_dtype)
    check_shape(value.shape, x.shape)
    x[...] = value


def scatter(x: np.ndarray, index: Any, value: Any, mode: str) -> None:
    value = _fitting(x, value)
    check_shape(value.shape, x[index].shape)
    if mode == "set":
        x[index] = value
    else:
        _AT[mode].at(x, index, value)
