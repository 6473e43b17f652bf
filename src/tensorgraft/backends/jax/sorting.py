"""Sorting and searching."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorgraft.backends.jax import cpu_kernels
from tensorgraft.backends.jax.compilation import effort
from tensorgraft.backends.jax.operation import operation
from tensorgraft.backends.jax.running import is_large, running
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.sorting import Sorting


def _searchsorted(boundaries: Array, values: Array, right: bool) -> Array:
    def search(a: Array, v: Array) -> Array:
        return jnp.searchsorted(a, v, side="right" if right else "left").astype(np.int64)

    if boundaries.ndim == 1:
        return search(boundaries, values)
    rows = math.prod(boundaries.shape[:-1])
    flat = jax.vmap(search)(boundaries.reshape(rows, boundaries.shape[-1]), values.reshape(rows, values.shape[-1]))
    return flat.reshape(values.shape)


def _sort(operands: tuple[Array, ...], axis: int, num_keys: int) -> tuple[Array, ...]:
    plain = len(operands) == 1 and operands[0].dtype.kind in "biu"  # equal elements are indistinguishable
    if not plain and _is_packed(operands[:num_keys], axis):
        order = _order(operands[:num_keys], axis)
        return tuple([_along(x, order, axis) for x in operands])
    if plain and _is_sorted_by_digits(operands[0], axis):
        return (_sorted_by_digits(operands[0], axis),)
    # on a CPU a stable sort, by merging, takes three quarters of the time
    return lax.sort(operands, axis, is_stable=effort.is_cpu_only() or not plain, num_keys=num_keys)


_by_digits = cpu_kernels.kernel("sort", lambda x: lax.sort((x,), 1))
_MANY = 1024  # integers of a row, from which on they are sorted by digits


def _is_sorted_by_digits(x: Array, axis: int) -> bool:
    """Return True for integers that the kernel sorts, which compares none: a third of the time of XLA's at least."""
    return effort.is_cpu_only() and x.dtype in (np.int64, np.uint64) and is_large(x) and x.shape[axis] >= _MANY


def _sorted_by_digits(x: Array, axis: int) -> Array:
    rows = jnp.moveaxis(x, axis, -1)
    return jnp.moveaxis(_by_digits(rows.reshape(-1, rows.shape[-1]))[0].reshape(rows.shape), -1, axis)


_WORD = 32  # bits of a key that are sorted at a time
_MOST_WORDS = 3


def _is_packed(keys: Sequence[Array], axis: int) -> bool:
    """Return True if sorting keys with their positions, packed into one integer each, is faster than `lax.sort`. XLA
    calls a comparison of all operands on a CPU, except for single integers, which take a sixth of the time."""
    words = sum(-(-8 * x.dtype.itemsize // _WORD) for x in keys)
    kinds = not any(dtypes.is_complex(x.dtype) or x.dtype in dtypes.FLOAT8 for x in keys)
    n = keys[0].shape[axis]
    has_64_bits = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    return effort.is_cpu_only() and has_64_bits and kinds and words <= _MOST_WORDS and n < 1 << _WORD


def _order(keys: Sequence[Array], axis: int, descending: bool = False) -> Array:
    """Return the positions in the order of a stable sort by `keys`: by the last word of the last key first."""
    order = None
    for key in reversed(keys):
        bits = _ordered_bits(key)
        bits = lax.convert_element_type(~bits if descending else bits, np.uint64)
        for shift in range(0, 8 * key.dtype.itemsize, _WORD):
            word = (bits >> np.uint64(shift)) & np.uint64(0xFFFFFFFF)
            at = _packed_order(word if order is None else _along(word, order, axis), axis)
            order = at if order is None else _along(order, at, axis)
    assert order is not None
    return order


def _packed_order(words: Array, axis: int) -> Array:
    positions = lax.broadcasted_iota(np.uint64, words.shape, axis)
    packed = _sort(((words << np.uint64(_WORD)) | positions,), axis, 1)[0]
    return lax.convert_element_type(packed & np.uint64(0xFFFFFFFF), np.int64)


def _along(x: Array, at: Array, axis: int) -> Array:
    return jnp.take_along_axis(x, at, axis, mode="promise_in_bounds")


def _sort_with_indices(x: Array, axis: int, descending: bool) -> tuple[Array, Array]:
    order = _order((x,), axis, descending)
    return _along(x, order, axis), order


_sorted_with_indices = operation(_sort_with_indices, ("axis", "descending"))
_sorted = operation(_sort, ("axis", "num_keys"))


def _top_k(x: Array, k: int, axis: int) -> tuple[Array, Array]:
    # lax.top_k orders all floats: it distinguishes zeros and NaN by their sign
    keys = lax.convert_element_type(x, np.float32)
    keys = jnp.where(keys == 0, 0, jnp.where(jnp.isnan(keys), jnp.nan, keys))
    at = lax.top_k(keys, k, axis=axis)[1].astype(np.int64)
    return jnp.take_along_axis(x, at, axis, mode="promise_in_bounds"), at


_greatest = operation(_top_k, ("k", "axis"))


def _ordered_bits(x: Array) -> Array:
    """Return unsigned integers in the order of a sort: zeros are equal, and NaNs are equal and greatest."""
    if x.dtype == np.bool_:
        return lax.convert_element_type(x, np.uint8)
    bits = np.dtype(f"uint{8 * x.dtype.itemsize}")
    sign = bits.type(1 << (8 * x.dtype.itemsize - 1))
    if x.dtype.kind == "u":
        return x
    if x.dtype.kind == "i":
        return lax.bitcast_convert_type(x, bits) ^ sign
    numbers = lax.bitcast_convert_type(jnp.where(x == 0, 0, jnp.where(jnp.isnan(x), jnp.nan, x)), bits)
    return jnp.where(numbers >= sign, ~numbers, numbers | sign)


def _selected(x: Array, k: Array, axis: int) -> tuple[Array, Array]:
    """Find the bits of the k-th value from the highest bit on, by counting smaller values: one pass over `x` for each
    bit."""
    keys = _ordered_bits(x)
    bits, unsigned = 8 * keys.dtype.itemsize, keys.dtype.type

    def less(bound: Array) -> Array:
        return jnp.sum(keys < bound, axis, keepdims=True, dtype=np.int64)

    def next_bit(i: Array, prefix: Array) -> Array:
        candidate = prefix | (unsigned(1) << (unsigned(bits - 1) - lax.convert_element_type(i, keys.dtype)))
        return jnp.where(less(candidate) <= k, candidate, prefix)

    value = lax.fori_loop(0, bits, next_bit, jnp.zeros(k.shape, keys.dtype))
    equal, rank = keys == value, k - less(value)  # it is the one of this rank among equals
    at = lax.cond(
        jnp.any(rank > 0),
        lambda: jnp.argmax(_CUMSUM(lax.convert_element_type(equal, np.int64), axis) == rank + 1, axis, keepdims=True),
        lambda: jnp.argmax(equal, axis, keepdims=True),
    ).astype(np.int64)
    return jnp.take_along_axis(x, at, axis, mode="promise_in_bounds"), at


_kth = operation(_selected, ("axis",))
_CUMSUM = running(lax.cumsum, lax.add, lambda dtype: 0, kernel="cumsum")


class JaxSorting(Sorting):
    _search = operation(_searchsorted, ("right",))

    def searchsorted(self, boundaries: Array, values: Array, /, right: bool = False) -> Array:
        return self._search(boundaries, values, right=right)

    def sort(self, operands: Sequence[Array], /, axis: int = -1, num_keys: int = 1) -> tuple[Array, ...]:
        return _sorted(self, tuple(operands), axis=axis % len(operands[0].shape), num_keys=num_keys)

    def sort_with_indices(self, x: Array, axis: int = -1, descending: bool = False) -> tuple[Array, Array]:
        axis %= len(x.shape)
        if not _is_packed((x,), axis):
            return super().sort_with_indices(x, axis, descending)
        return _sorted_with_indices(self, x, axis=axis, descending=descending)

    def kth_value(self, x: Array, k: int | Array, axis: int = -1) -> tuple[Array, Array]:
        if x.dtype in dtypes.FLOAT8 or not x.shape[axis]:
            return super().kth_value(x, k, axis)
        return _kth(self, x, self._rank(x, k, axis), axis=axis % len(x.shape))

    def top_k(self, x: Array, k: int, axis: int = -1, largest: bool = True) -> tuple[Array, Array]:
        # XLA has something quicker than a sort for float32 only, and only for the largest
        if not largest or not x.shape or dtypes.accumulator(x.dtype) != np.float32:
            return super().top_k(x, k, axis, largest)
        return _greatest(self, x, k=k, axis=axis % len(x.shape))
