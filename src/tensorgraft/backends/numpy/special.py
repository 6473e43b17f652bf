"""SciPy, imported when first needed: special functions, BLAS and LAPACK."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tensorgraft.errors import BackendNotAvailableError


def scipy(module: str, wanted_by: str) -> Any:
    """`scipy.<module>`; raises BackendNotAvailableError, which says how to install it."""
    try:
        return importlib.import_module(f"scipy.{module}")
    except ImportError as error:
        raise BackendNotAvailableError(
            f'{wanted_by} on the NumPy backend needs SciPy, which is not installed: pip install "tensorgraft[numpy]"'
        ) from error


def _special(name: str, scipy_name: str) -> Callable[..., Any]:
    def fn(*operands: Any) -> Any:
        return getattr(scipy("special", name), scipy_name)(*operands)

    return fn


FUNCTIONS = {
    name: _special(name, scipy_name)
    for name, scipy_name in {
        "erf": "erf",
        "erfc": "erfc",
        "erf_inv": "erfinv",
        "lgamma": "gammaln",
        "digamma": "psi",
        "bessel_i0e": "i0e",
        "bessel_i1e": "i1e",
        "igamma": "gammainc",
        "igammac": "gammaincc",
        "zeta": "zeta",
    }.items()
}
