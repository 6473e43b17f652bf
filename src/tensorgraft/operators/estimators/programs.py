"""Steps of an estimator between products with the operator: each one compiled program, and a few words they share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.frontends.array_api.core import tracing
from tensorgraft.frontends.array_api.core.calls import backend_of
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Storage

F = TypeVar("F", bound=Callable[..., Any])


def program(kernel: F) -> F:
    """Return a function (arrays, keywords that are hashable) -> tuple of arrays, as one program where the backend
    compiles: eagerly, one call; in a trace, a part of it."""

    @functools.wraps(kernel)
    def run(*arrays: Array, **static: Any) -> Any:
        backend = backend_of(kernel.__name__, *arrays)
        if not backend.compiles or tracing.now.capture is not None:
            return kernel(*arrays, **static)
        with backend.scope():
            values = [x._value() for x in arrays]
            if any(map(backend.is_traced, values)):
                return kernel(*arrays, **static)
            outputs = _compiled(backend, kernel, tuple(sorted(static.items())))(*values)
        return tuple(_wrapped(v, backend) for v in outputs)

    return run  # type: ignore[return-value]


@functools.lru_cache(maxsize=1024)
def _compiled(backend: Backend, kernel: Callable[..., Any], static: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    def fn(*values: Any) -> tuple[Any, ...]:
        return tuple(x._value() for x in kernel(*(_wrapped(v, backend) for v in values), **dict(static)))

    return backend.compile(fn)


def _wrapped(value: Any, backend: Backend) -> Array:
    return Array(Storage(backend.ensure_owned(value) if backend.mutable else value, backend))


# ---- words -----------------------------------------------------------------------------------------------------------


def conj(x: Array) -> Array:
    return xp.conj(x) if dtypes.is_complex(x.dtype) else x


def adjoint(x: Array) -> Array:
    return conj(x.mT)


def real(x: Array) -> Array:
    return xp.real(x) if dtypes.is_complex(x.dtype) else x


def dots(a: Array, b: Array) -> Array:
    """Compute a_i* b_i for each column."""
    return xp.sum(conj(a) * b, axis=0)


def squares(a: Array) -> Array:
    """|a_i|^2 of columns, real."""
    if dtypes.is_complex(a.dtype):
        return xp.sum(xp.real(a) ** 2 + xp.imag(a) ** 2, axis=0)
    return xp.sum(a * a, axis=0)


def triangular_solve(a: Array, b: Array, *, lower: bool, left: bool = True, adjoint: bool = False) -> Array:
    """Solve op(a) x = b, or x op(a) = b where not `left`."""
    backend = backend_of("triangular_solve", a, b)
    with backend.scope():
        value = backend.triangular_solve(a._value(), b._value(), lower=lower, left=left, adjoint=adjoint)
        return _wrapped(value, backend)


def inner(a: Array, b: Array) -> Array:
    """Return the sum of a_i* b_i over all columns: in one sum, which backends take pairwise, so that it is good to the
    last digits."""
    return xp.sum(conj(a) * b)


def mean_and_error(t: Array) -> tuple[Array, Array]:
    """Return the mean of estimates, and their standard deviation over the square root of their number; NaN for one."""
    m = t.shape[0]
    first = t[0]
    d = t - first  # small, so that the difference of the squares is exact enough
    sums = xp.sum(xp.stack([d, xp.astype(real(d * conj(d)), t.dtype)]), axis=1)
    mean = sums[0] / m
    value = first + mean
    if m < 2:
        return value, xp.full_like(real(value), xp.nan)
    variance = real(sums[1]) / m - real(mean * conj(mean))
    return value, xp.sqrt(xp.maximum(variance, xp.zeros_like(variance)) / m)
