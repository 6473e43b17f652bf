"""Set functions of the standard. Values are in ascending order; each NaN is a distinct value."""

from __future__ import annotations

from typing import Any, NamedTuple

from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.calls import backend_of, converted, dtype_of_call, of_python, operand
from tensorgraft.frontends.array_api.core.indexing import true_positions
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend


class UniqueAllResult(NamedTuple):
    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCountsResult(NamedTuple):
    values: Array
    counts: Array


class UniqueInverseResult(NamedTuple):
    values: Array
    inverse_indices: Array


def _ordered(xp: Backend, flat: Any) -> tuple[Any, Any]:
    """Return (the values ascending, where they were): complex numbers by their real part, then by the imaginary one."""
    at = xp.iota(xp.size(flat), dtypes.int64)
    dtype = xp.dtype_of(flat)
    if dtypes.is_complex(dtype):
        _, _, order = xp.sort((xp.real(flat), xp.imag(flat), at), axis=0, num_keys=2)
    else:
        key = xp.astype(flat, dtypes.uint8) if dtypes.is_bool(dtype) else flat
        _, order = xp.sort((key, at), axis=0)
    return xp.take(flat, order, 0), order


def unique_all(x: Array, /) -> UniqueAllResult:
    """Return (the values, the position of the first occurrence of each, the number of the value that each element has,
    in the shape of `x`, and the count of each value)."""
    xp = operand("unique_all", x)
    n = x.size
    with xp.scope():
        ordered, order = _ordered(xp, xp.reshape(x._value(), (n,)))
        differs = xp.not_equal(xp.take_slice(ordered, 0, 1, n), xp.take_slice(ordered, 0, 0, max(n - 1, 0)))
        new = xp.concat([xp.full((min(n, 1),), True, dtypes.bool_), differs], axis=0)
        (first,) = true_positions(x, new)
        number = xp.subtract(xp.cumsum(xp.astype(new, dtypes.int64), axis=0), 1)
        inverse = xp.scatter(xp.zeros((n,), dtypes.int64), (order,), number)
        ends = xp.concat([xp.take_slice(first, 0, 1, xp.size(first)), xp.full((min(n, 1),), n, dtypes.int64)], axis=0)
        return UniqueAllResult(
            new_array(xp.take(ordered, first, 0), xp),
            new_array(xp.take(order, first, 0), xp),
            new_array(xp.reshape(inverse, x.shape), xp),
            new_array(xp.subtract(ends, first), xp),
        )


def unique_counts(x: Array, /) -> UniqueCountsResult:
    """Return (the values, the count of each)."""
    unique = unique_all(x)
    return UniqueCountsResult(unique.values, unique.counts)


def unique_inverse(x: Array, /) -> UniqueInverseResult:
    """Return the values, and which of them each element is (of the shape of `x`)."""
    unique = unique_all(x)
    return UniqueInverseResult(unique.values, unique.inverse_indices)


def unique_values(x: Array, /) -> Array:
    """Return each value once."""
    return unique_all(x).values


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """Return for each element of `x1` whether it is in `x2` (is not, if `invert`); NaN is in nothing."""
    x1, x2 = of_python(x1), of_python(x2)
    xp = backend_of("isin", x1, x2)
    dtype = dtype_of_call("isin", (x1, x2))
    with xp.scope():
        elements, pool = (converted(xp, x, dtype) for x in (x1, x2))
        shape, n = xp.shape(elements), xp.size(pool)
        flat, pool = xp.reshape(elements, (xp.size(elements),)), xp.reshape(pool, (n,))
        if not n:
            member = xp.full(xp.shape(flat), False, dtypes.bool_)
        elif dtypes.is_complex(dtype):
            member = xp.any(xp.equal(xp.reshape(flat, (xp.size(flat), 1)), pool), axis=1)
        else:
            if dtypes.is_bool(dtype):
                flat, pool = xp.astype(flat, dtypes.uint8), xp.astype(pool, dtypes.uint8)
            (ordered,) = xp.sort((pool,), axis=0)
            at = xp.minimum(xp.searchsorted(ordered, flat), n - 1)
            member = xp.equal(xp.take(ordered, at, 0), flat)
        return new_array(xp.reshape(xp.logical_not(member) if invert else member, shape), xp)


__all__ = ["isin", "unique_all", "unique_counts", "unique_inverse", "unique_values"]
