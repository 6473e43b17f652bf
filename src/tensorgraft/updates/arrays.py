"""Updates of `Array`s."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.array_api.core import indexing
from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.traced_numbers import Number
from tensorgraft.updates.rules import check_dtype, check_shape


def _fitting(x: Array, value: Any, keep_dtype: bool, shape: tuple[int, ...] | None = None) -> Array:
    import tensorgraft.array_api as xp

    number = isinstance(value, bool | int | float | complex)
    if not number and not isinstance(value, Array):
        value = xp.asarray(value, device=x.device)  # the backend's own arrays, NumPy's
    if not keep_dtype:
        check_dtype(value if number else value.dtype, x.dtype)
    if isinstance(value, Number) and (traced_value := value.inside(x._cell.backend)) is not None:
        value = new_array(traced_value, x._cell.backend)
    elif number:
        host = np.asarray(value)
        host = host.real if host.dtype.kind == "c" and x.dtype.kind != "c" else host
        value = xp.asarray(host.astype(x.dtype), device=x.device)
    if shape is not None:
        check_shape(value.shape, shape)
    if value.dtype.kind == "c" and x.dtype.kind != "c":
        value = xp.real(value)
    return xp.astype(value, x.dtype, copy=False)


def update(x: Array, value: Any, keep_dtype: bool) -> None:
    x[...] = _fitting(x, value, keep_dtype, x.shape)


def scatter(x: Array, index: Any, value: Any, mode: str) -> None:
    indexing.put(x, index, _fitting(x, value, True), mode)
