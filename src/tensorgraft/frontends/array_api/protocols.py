"""Protocols by which other libraries call on an `Array`, in functions that are written on it."""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from tensorgraft.frontends.array_api.core.array import Array


def __array_namespace__(x: Array, *, api_version: str | None = None) -> types.ModuleType:
    import tensorgraft.array_api as namespace

    known = namespace.__array_api_version__
    if api_version is not None and api_version not in namespace.API_VERSIONS:
        raise ValueError(f"tensorgraft.array_api is of version {known} of the standard, not {api_version!r}")
    return namespace


def __array_ufunc__(x: Array, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
    """NumPy's elementwise functions, by those of the standard on this device. Raises TypeError for others."""
    from tensorgraft.frontends.array_api.extensions import numpy_functions

    return numpy_functions.of_ufunc(ufunc, method, inputs, options)


def __array_function__(x: Array, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """NumPy's other functions, likewise."""
    from tensorgraft.frontends.array_api.extensions import numpy_functions

    if not all(issubclass(t, Array | np.ndarray) for t in types):
        return NotImplemented
    return numpy_functions.of_function(x, function, args, kwargs)


for _method in (__array_namespace__, __array_ufunc__, __array_function__):
    setattr(Array, _method.__name__, _method)
