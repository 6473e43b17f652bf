"""SciPy, imported when first needed: special functions, BLAS and LAPACK."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.errors import BackendNotAvailableError


def scipy(module: str, wanted_by: str) -> Any:
    """Import `scipy.<module>`. Raises BackendNotAvailableError, with the command that installs it."""
    try:
        return importlib.import_module(f"scipy.{module}")
    except ImportError as error:
        raise BackendNotAvailableError(
            f'{wanted_by} on the NumPy backend needs SciPy, which is not installed: pip install "tensorgraft[numpy]"'
        ) from error


# SciPy's names, where they are others than the hub's
_NAMES = {"erf_inv": "erfinv", "digamma": "psi", "bessel_i0e": "i0e", "bessel_i1e": "i1e"}
_NAMES |= {"igamma": "gammainc", "igammac": "gammaincc"}


def function(name: str) -> Callable[..., Any]:
    """SciPy's special function, which is imported when it is called."""
    function = functools.cache(lambda: getattr(scipy("special", name), _NAMES.get(name, name)))

    def fn(*operands: Any) -> Any:
        return function()(*operands)

    return fn


def lgamma(x: Any) -> Any:
    """SciPy's is -inf at -inf; C's, and other frameworks', inf."""
    y = scipy("special", "lgamma").gammaln(x)
    return np.where(np.isneginf(x), -y, y)
