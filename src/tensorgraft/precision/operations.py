"""Autocast of a backend's own operations, for programs that are not PyTorch's.

    xp = precision.autocasting(xp)      # `xp` itself where no region is active
    xp.matmul(a, b)                     # arguments cast by the region's policy
    xp = precision.with_region(xp, region)  # for programs whose dtypes are fixed: results are cast back

An operation is looked up under its own name, composites too, and computed by the backend as a whole: what a composite
is made of is not looked up again, as PyTorch does not inside an operator that it has cast.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.precision.policies import LOWER, POLICIES, PROMOTE, UNEXPECTED
from tensorgraft.precision.state import Region, current

_SAME = """
    acos asin atan2 cosh cumprod cumsum exp expm1 log log10 log1p log2 logsumexp lu_solve matmul reciprocal rsqrt sinh
    softplus tan
"""
# operation of the hub -> ATen overloads that it is, the first of which that a policy has decides
OPERATORS: dict[str, str] = {
    **{name: name for name in _SAME.split()},
    "erf_inv": "erfinv",
    "dot_general": "matmul",
    "convolution": "conv2d",
    "convolution_weights": "conv2d",
    "sum": "sum.dim_IntList",
    "prod": "prod.dim_int",
    "softmax": "softmax.int",
    "log_softmax": "log_softmax.int",
    "attention": "scaled_dot_product_attention",
    "concat": "cat",
    "stack": "stack",
    "scatter": "index_put",
    "cholesky": "linalg_cholesky cholesky",
    "qr": "linalg_qr qr",
    "svd": "linalg_svd svd",
    "svdvals": "linalg_svdvals",
    "eigh": "linalg_eigh",
    "eig": "linalg_eig",
    "lu": "_lu_with_info",
    "triangular_solve": "triangular_solve",
    "householder_product": "linalg_householder_product",
    "solve": "linalg_solve",
    "inv": "linalg_inv inverse",
    "fft": "fft_fft",
    "ifft": "fft_ifft",
    "rfft": "fft_rfft",
    "irfft": "fft_irfft",
}
# those whose overload depends on the arguments
BY_ARGUMENTS: dict[str, Callable[..., str]] = {
    "pow": lambda is_array, x, y: (
        "pow.Tensor_Tensor" if is_array(x) and is_array(y) else "pow.Tensor_Scalar" if is_array(x) else "pow.Scalar"
    ),
    "put_along_axis": lambda is_array, x, indices, updates, axis, mode="set": (
        "scatter_add" if mode == "add" else "scatter.src"
    ),
}


def autocasting(xp: Backend) -> Backend:
    """Return `xp` with the casts of the autocast region of this thread; `xp` itself outside of one, or in a disabled
    one.

    A function compiled with it always has these casts, so the key of its cache has to include `precision.current()`.
    Raises nothing.
    """
    region = current()
    return xp if region is None else _casting(xp, region.policy, region.dtype)


def with_region(xp: Backend, region: Region | None) -> Backend:
    """Return `xp` with the casts of a region, for a program that fixes the dtype of every result: an operation computes
    in the dtype of the policy, and its result is cast to the dtype that it has outside. Raises nothing."""
    return xp if region is None else _casting(xp, region.policy, region.dtype, True)


@functools.cache
def _casting(xp: Backend, policy: str, dtype: np.dtype, keeps: bool = False) -> Backend:
    return cast(Backend, Casting(xp, policy, dtype, keeps))


class Casting:
    """A backend whose operations cast their operands by a policy. Operations without a row in it are unchanged.
    `keeps`: results are cast to the dtypes that they have without the policy."""

    def __init__(self, xp: Backend, policy: str, dtype: np.dtype, keeps: bool = False) -> None:
        self.inner, self.policy, self.low, self.keeps = xp, policy, dtype, keeps

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self.inner, name)
        table = POLICIES[self.policy]
        if name in BY_ARGUMENTS:
            wrapped = self._by_arguments(operation, BY_ARGUMENTS[name])
        else:
            kind = next((table[row] for row in OPERATORS.get(name, "").split() if row in table), None)
            wrapped = operation if kind is None else functools.partial(self._run, operation, kind)
        self.__dict__[name] = wrapped  # found without us the next time
        return wrapped

    def _by_arguments(self, operation: Callable[..., Any], overload: Callable[..., str]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            kind = POLICIES[self.policy].get(overload(self.inner.is_array, *args, **kwargs))
            return operation(*args, **kwargs) if kind is None else self._run(operation, kind, *args, **kwargs)

        return run

    def _run(self, operation: Callable[..., Any], kind: str, *args: Any, **kwargs: Any) -> Any:
        if kind == LOWER:
            dtype = self.low
        elif kind == PROMOTE:
            dtype = self._widest(args)
        else:  # no operation of the hub takes the dtype of its result: to cast the operand means the same
            dtype = dtypes.float32
        results = operation(*(self._cast(a, dtype) for a in args), **kwargs)
        return self._as_before(results, args, dtype) if self.keeps else results

    def _as_before(self, results: Any, args: Sequence[Any], dtype: np.dtype) -> Any:
        """Convert results in the dtype to which the operands were cast back to the operands' own dtype."""
        own_dtype = next((self.inner.dtype_of(x) for x in _flat(args) if self._eligible(x)), dtype)
        if own_dtype == dtype:
            return results
        if isinstance(results, list | tuple):
            return type(results)([self._as_before(x, args, dtype) for x in results])
        is_of_cast = self.inner.is_array(results) and self.inner.dtype_of(results) == dtype
        return self.inner.astype(results, own_dtype) if is_of_cast else results

    def _eligible(self, x: Any) -> bool:
        if not self.inner.is_array(x):
            return False
        dtype = self.inner.dtype_of(x)
        return dtypes.is_floating(dtype) and dtype != dtypes.float64

    def _cast(self, x: Any, dtype: np.dtype) -> Any:
        if isinstance(x, list | tuple):
            return type(x)(self._cast(item, dtype) for item in x) if any(map(self._eligible, x)) else x
        return self.inner.astype(x, dtype) if self._eligible(x) else x

    def _widest(self, args: Sequence[Any]) -> np.dtype:
        dtypes_met = {self.inner.dtype_of(x) for x in _flat(args) if self._eligible(x)}
        if dtypes.float32 in dtypes_met:
            return dtypes.float32
        if dtypes_met - {self.low}:
            raise RuntimeError(UNEXPECTED)
        return self.low


def _flat(args: Sequence[Any]) -> Iterator[Any]:
    for a in args:
        if isinstance(a, list | tuple):
            yield from a
        else:
            yield a
