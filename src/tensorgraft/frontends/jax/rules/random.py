"""Random bits, equal to JAX's. Keys of Threefry (the default) are encrypted by the hub's cipher; those of other
implementations by their own code, in JAX's primitives."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from tensorgraft.frontends.jax.evaluate import evaluate
from tensorgraft.frontends.jax.keys import Keys
from tensorgraft.frontends.jax.rule import rule
from tensorgraft.frontends.jax.rules import generators  # noqa: F401  (it registers rules)
from tensorgraft.frontends.jax.settings import settings
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

Shape = Sequence[int]


def _cipher(xp: Backend, k0: Array, k1: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Threefry-2x32 of arrays that broadcast."""
    key_shape = np.broadcast_shapes(xp.shape(k0), xp.shape(k1))
    shape = np.broadcast_shapes(key_shape, xp.shape(x0), xp.shape(x1))
    key = xp.stack([xp.broadcast_to(k, key_shape) for k in (k0, k1)], axis=0)
    return xp.threefry2x32(key, xp.broadcast_to(x0, shape), xp.broadcast_to(x1, shape))


@rule("threefry2x32")
def threefry2x32(xp: Backend, k0: Array, k1: Array, x0: Array, x1: Array, **_: Any) -> tuple[Array, Array]:
    return _cipher(xp, k0, k1, x0, x1)


@rule("iota_2x32_shape")
def iota_2x32_shape(xp: Backend, *, shape: Shape, **_: Any) -> tuple[Array, Array]:
    """Return the high and the low halves of 0, 1, 2, ... as 64-bit numbers."""
    shape, u32 = tuple(shape), dtypes.uint32
    n = math.prod(shape)
    if n <= 2**32:
        return xp.zeros(shape, u32), xp.reshape(xp.iota(n, u32), shape)
    at = xp.reshape(xp.iota(n, dtypes.int64), shape)
    high = xp.bitwise_right_shift(at, xp.full((), 32, dtypes.int64))
    return xp.astype(high, u32), xp.astype(xp.bitwise_and(at, 0xFFFFFFFF), u32)


# ---- keys ------------------------------------------------------------------------------------------------------------


@rule("random_wrap")
def random_wrap(xp: Backend, data: Array, **_: Any) -> Keys:
    return Keys.of(xp, data)


@rule("random_unwrap")
def random_unwrap(xp: Backend, keys: Keys, **_: Any) -> Array:
    return keys.data(xp)


@rule("random_clone")
def random_clone(xp: Backend, keys: Keys, **_: Any) -> Keys:
    return keys


def _is_threefry(aval: Any) -> bool:
    return aval.dtype._impl.name == "threefry2x32" and jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]


@rule("random_seed")
def random_seed(xp: Backend, seeds: Array, *, impl: Any, out: Any, **_: Any) -> Keys:
    if not _is_threefry(out[0]):
        return Keys.of(xp, _on_data(xp, _seeded, seeds, impl=impl))
    u32, dtype = dtypes.uint32, xp.dtype_of(seeds)
    if dtype.itemsize < 8:
        low = xp.astype(xp.astype(seeds, dtypes.int64), u32)
        return Keys((xp.zeros_like(low), low))
    bits = xp.astype(seeds, dtypes.uint64)
    high = xp.bitwise_right_shift(bits, xp.full((), 32, dtypes.uint64))
    return Keys((xp.astype(high, u32), xp.astype(bits, u32)))


def _counted(xp: Backend, keys: Keys, shape: Shape) -> tuple[Array, Array]:
    """Return the cipher of 0, 1, 2, ... in `shape`, for each key."""
    shape = tuple(shape)
    keys_shape = xp.shape(keys.words[0])
    k0, k1 = (xp.reshape(k, (*keys_shape, *[1] * len(shape))) for k in keys.words)
    return _cipher(xp, k0, k1, *iota_2x32_shape(xp, shape=shape))


@rule("random_split")
def random_split(xp: Backend, keys: Keys, *, shape: Shape, given: Any, **_: Any) -> Keys:
    if _is_threefry(given[0]):
        return Keys(_counted(xp, keys, shape))
    return Keys.of(xp, _on_data(xp, _split, keys.data(xp), impl=given[0].dtype._impl, shape=tuple(shape)))


@rule("random_bits")
def random_bits(xp: Backend, keys: Keys, *, bit_width: int, shape: Shape, given: Any, **_: Any) -> Array:
    if not _is_threefry(given[0]):
        impl = given[0].dtype._impl
        return _on_data(xp, _bits, keys.data(xp), impl=impl, bit_width=bit_width, shape=tuple(shape))
    high, low = _counted(xp, keys, shape)
    if bit_width == 64:
        high, low = (xp.astype(x, dtypes.uint64) for x in (high, low))
        return xp.bitwise_or(xp.bitwise_left_shift(high, xp.full((), 32, dtypes.uint64)), low)
    return xp.astype(xp.bitwise_xor(high, low), np.dtype(f"uint{bit_width}"))


@rule("random_fold_in")
def random_fold_in(xp: Backend, keys: Keys, data: Array, *, given: Any, **_: Any) -> Keys:
    """Return a key or an array of them, with a number or an array of those."""
    data = xp.astype(data, dtypes.uint32)
    if _is_threefry(given[0]):
        k0, k1 = keys.words
        return Keys(_cipher(xp, k0, k1, xp.zeros_like(data), data))
    shape = np.broadcast_shapes(xp.shape(data), xp.shape(keys.words[0]))
    data, *words = (xp.broadcast_to(x, shape) for x in (data, *keys.words))
    return Keys.of(xp, _on_data(xp, _folded, Keys(tuple(words)).data(xp), data, impl=given[0].dtype._impl))


# ---- other implementations of keys -----------------------------------------------------------------------------------


def _over_keys(axes: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of one key, of an array of them."""
    for _ in range(axes):
        function = jax.vmap(function)
    return function


def _seeded(seeds: Any, impl: Any) -> Any:
    return _over_keys(seeds.ndim, impl.seed)(seeds)


def _split(data: Any, impl: Any, shape: Shape) -> Any:
    return _over_keys(data.ndim - 1, lambda key: impl.split(key, shape))(data)


def _bits(data: Any, impl: Any, bit_width: int, shape: Shape) -> Any:
    return _over_keys(data.ndim - 1, lambda key: impl.random_bits(key, bit_width, shape))(data)


def _folded(data: Any, number: Any, impl: Any) -> Any:
    fold = impl.fold_in
    for _ in number.shape:
        fold = jax.vmap(fold)
    return fold(data, number)


def _on_data(xp: Backend, function: Callable[..., Any], *operands: Array, **params: Any) -> Array:
    """Return a function of JAX of the data of keys."""
    specs = tuple((xp.shape(x), xp.dtype_of(x)) for x in operands)
    return evaluate(xp, _traced(function, tuple(params.items()), specs, settings()), *operands)[0]


@functools.lru_cache(maxsize=1024)
def _traced(
    function: Callable[..., Any], params: tuple[Any, ...], specs: tuple[Any, ...], settings: Any
) -> core.ClosedJaxpr:
    wide = dict(params).get("bit_width") == 64 or any(dtype.itemsize == 8 for _, dtype in specs)
    with jax.enable_x64(wide or jax.config.jax_enable_x64):  # type: ignore[attr-defined]
        return jax.make_jaxpr(functools.partial(function, **dict(params)))(*(jax.ShapeDtypeStruct(*s) for s in specs))
