"""Random numbers of explicit keys, the same on every backend, and those of `jax.random` for the same key."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.array_api.core import tracing
from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.calls import axis_of, backend_of, converted, fail, shape_of, show
from tensorgraft.frontends.array_api.core.devices import resolve
from tensorgraft.frontends.array_api.core.promotion import checked, kind
from tensorgraft.frontends.array_api.core.taking import take
from tensorgraft.frontends.array_api.core.traced_numbers import Number
from tensorgraft.hub import cold, dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.operations import samplers
from tensorgraft.storage import Storage

Shape = int | tuple[int, ...]
Sampler = Callable[..., Any]  # (the backend, its arrays, then static arguments) -> an array of it

_DEFAULT = dtypes.float64  # the Array API functions' default, and JAX's with 64-bit types


# ---- keys ------------------------------------------------------------------------------------------------------------


def key(seed: int | Array, device: Any = None) -> Array:
    """Return a key, uint32 (2,), of a seed: a Python int, taken as 64 bits, or a 0-d integer array.

    Raises TypeError for another seed, OverflowError for an int beyond 64 bits.

    >>> import tensorgraft as tg
    >>> tg.random.key(7, device="numpy").tolist()
    [0, 7]
    """
    if isinstance(seed, Array):
        if seed.ndim or seed.dtype.kind not in "iu":
            fail("key", (seed,), "a seed that is an integer without dimensions", TypeError)
        if device is not None:
            seed = seed.to_device(device)
        return _sample(seed._cell.backend, samplers.seeded, (seed,))
    xp = tracing.creation_backend(resolve(device).backend)
    if isinstance(traced_seed := _as_array(seed, xp), Array):
        return _sample(xp, samplers.seeded, (traced_seed,))
    try:
        number = operator.index(seed)
    except TypeError:
        raise TypeError(f"key: expected a seed that is an int, got {seed!r}") from None
    if not -(2**63) <= number < 2**64:
        raise OverflowError(f"key: the seed {number} has more than 64 bits")
    with xp.scope():
        return new_array(xp.asarray(samplers.words(number)), xp)


def split(key: Array, num: Shape = 2) -> Array:
    """Return `num` new keys of one, uint32 (num, 2); `num` may be a shape. Raises TypeError for an invalid key (not
    from `key`, `split` or `fold_in`) or an invalid shape, ValueError for a negative extent."""
    return _sample(_backend("split", key), samplers.split, (key,), shape_of("split", num))


def fold_in(key: Array, data: int | Array) -> Array:
    """Return a new key, uint32 (2,), of a key and a number, of which 32 bits are used: a Python int, or a 0-d integer
    array. Raises TypeError for an invalid key, and other numbers."""
    xp = _backend("fold_in", key)
    data = _as_array(data, xp)
    if not isinstance(data, Array):
        try:
            number = operator.index(data)
        except TypeError:
            raise TypeError(f"fold_in: expected an int, got {data!r}") from None
        with xp.scope():
            data = new_array(xp.full((), number & 0xFFFFFFFF, dtypes.uint32), xp)
    elif data.ndim or data.dtype.kind not in "iu":
        fail("fold_in", (key, data), "an integer without dimensions", TypeError)
    xp = backend_of("fold_in", key, data)
    return _sample(xp, _fold_in, (key, data))


def _fold_in(xp: Backend, key: Any, data: Any) -> Any:
    return samplers.fold_in(xp, key, xp.astype(data, dtypes.uint32))


# ---- integers --------------------------------------------------------------------------------------------------------


def bits(key: Array, shape: Shape = (), dtype: Any = None) -> Array:
    """Draw random bits as unsigned integers of `shape`, by default uint32. Raises TypeError for an invalid key, and
    a dtype of other numbers, ValueError for a negative extent."""
    checked_dtype = dtypes.uint32 if dtype is None else checked(dtype)
    if checked_dtype.kind != "u":
        raise TypeError(f"bits: expected a dtype of unsigned integers, got {checked_dtype}")
    return _sample(_backend("bits", key), samplers.bits, (key,), shape_of("bits", shape), 8 * checked_dtype.itemsize)


def randint(key: Array, shape: Shape, minval: Any, maxval: Any, dtype: Any = None) -> Array:
    """Draw integers of [minval, maxval), by default int64; minval if maxval <= minval. Bounds are ints or integer
    arrays that broadcast to `shape`, and are clipped to the range of the dtype. Raises TypeError for a key that is
    none, and bounds or a dtype that are no integers, ValueError for bounds that do not broadcast."""
    extents = shape_of("randint", shape)
    resolved = dtypes.int64 if dtype is None else checked(dtype)
    if resolved.kind not in "iu":
        raise TypeError(f"randint: expected a dtype of integers, got {resolved}")
    for bound in (minval, maxval):
        if isinstance(bound, Array):
            _check_fits("randint", bound, extents)
            if bound.dtype.kind not in "iu":
                fail("randint", (minval, maxval), "bounds that are integers", TypeError)
    xp = _backend("randint", key)
    minval, maxval = (_as_array(b, xp) for b in (minval, maxval))
    minval, maxval = (b if isinstance(b, Array) else operator.index(b) for b in (minval, maxval))
    xp = _backend("randint", key, minval, maxval)
    return _sample(xp, _randint, (key, *(b for b in (minval, maxval) if isinstance(b, Array))), extents, resolved,
                  *(None if isinstance(b, Array) else b for b in (minval, maxval)))  # fmt: skip


def _randint(xp: Backend, key: Any, *rest: Any) -> Any:
    *arrays, shape, dtype, low, high = rest
    bounds = iter(arrays)
    # like JAX, 32 bits are drawn for narrower dtypes, so that the remainder has nearly no bias
    wide = dtype if dtype.itemsize >= 4 else dtypes.int32
    most = int(np.iinfo(dtype).max) + (wide is not dtype)

    def bound(number: int | None, greatest: int) -> tuple[Any, Any]:
        """Return (the bound in `wide`, whether it is above that)"""
        least = int(np.iinfo(dtype).min)
        if number is not None:
            clamped = min(max(number, least), greatest)
            return xp.full((), clamped, wide), xp.full((), wide is dtype and number > greatest, dtypes.bool_)
        x = next(bounds)
        info = np.iinfo(xp.dtype_of(x))
        low, high = (xp.full((), n, info.dtype) for n in (max(least, info.min), min(greatest, info.max)))
        clipped = xp.astype(xp.minimum(xp.maximum(x, low), high), wide)
        return clipped, xp.greater(x, high) if wide is dtype else xp.full((), False, dtypes.bool_)

    (least, _), (most_array, above) = bound(low, int(np.iinfo(dtype).max)), bound(high, most)
    return xp.astype(samplers.randint(xp, key, least, most_array, above, shape, wide), dtype)


def rademacher(key: Array, shape: Shape = (), dtype: Any = None) -> Array:
    """-1 or 1, each with probability 1/2, of `shape`; int64 unless `dtype`, any of signed numbers, says otherwise.
    Raises TypeError for what is no key, and a dtype without -1, ValueError for a negative extent."""
    resolved = dtypes.int64 if dtype is None else checked(dtype)
    if resolved.kind == "b" or resolved.kind == "u":
        raise TypeError(f"rademacher: expected a signed dtype, got {resolved}")
    return _sample(_backend("rademacher", key), samplers.rademacher, (key,), shape_of("rademacher", shape), resolved)


def bernoulli(key: Array, p: Any = 0.5, shape: Shape | None = None) -> Array:
    """Booleans that are true with probability `p`, a Python number or a floating array, which broadcasts to `shape`
    (None: the shape of `p`). Raises TypeError for what is no key, and a `p` of other numbers, ValueError where it does
    not broadcast."""
    p = float(p) if isinstance(p, int) else p
    dtype = _real("bernoulli", p.dtype if isinstance(p, Array) else None)
    extents = shape_of("bernoulli", shape) if shape is not None else p.shape if isinstance(p, Array) else ()
    return _drawn_between("bernoulli", _bernoulli, key, (p,), extents, dtype)


def _bernoulli(xp: Backend, key: Any, p: Any, shape: Any, dtype: np.dtype) -> Any:
    return xp.less(samplers.unit(xp, key, shape, dtype), p)


def permutation(key: Array, x: int | Array, axis: int = 0, independent: bool = False) -> Array:
    """Return 0, ..., x - 1 in a random order (int64), or an array in a random order along an axis: the same order for
    every line, or with `independent` one for each. Raises TypeError for an invalid `key`, ValueError for a negative
    number, and AxisError (a ValueError) for an axis out of range."""
    xp = _backend("permutation", key)
    if not isinstance(x, Array) or not x.ndim:
        (n,) = shape_of("permutation", x)
        return _sample(xp, _order, (key,), n)
    at = axis_of("permutation", x, axis)
    if independent or x.ndim == 1:
        return _sample(_backend("permutation", key, x), samplers.shuffled, (key, x), at)
    return take(x, _sample(xp, _order, (key,), x.shape[at]), axis=at)


def _order(xp: Backend, key: Any, n: int) -> Any:
    return samplers.shuffled(xp, key, xp.iota(n, dtypes.int64), 0)


# ---- floating point --------------------------------------------------------------------------------------------------


def uniform(key: Array, shape: Shape = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0) -> Array:
    """Return uniform random numbers in [minval, maxval), whose bounds are Python numbers or arrays that broadcast to
    `shape`; float64 unless `dtype` says otherwise. Raises TypeError for what is no key, and a dtype that is not real
    floating-point, ValueError for bounds that do not broadcast."""
    extents, resolved = shape_of("uniform", shape), _real("uniform", dtype)
    if type(minval) in (int, float) and type(maxval) in (int, float) and (minval, maxval) == (0, 1):
        return _sample(_backend("uniform", key), samplers.unit, (key,), extents, resolved)
    return _drawn_between("uniform", samplers.uniform, key, (minval, maxval), extents, resolved)


def normal(key: Array, shape: Shape = (), dtype: Any = None) -> Array:
    """Return normal random numbers of mean 0 and variance 1, of `shape`; float64 unless `dtype` says otherwise, which
    may be complex (parts of variance 1/2).

    Raises TypeError for what is no key, and a dtype that is not floating-point, ValueError for a negative extent.

    >>> import tensorgraft as tg
    >>> numbers = tg.random.normal(tg.random.key(0, device="numpy"), (2, 3), "float32")
    >>> numbers.shape, str(numbers.dtype)
    ((2, 3), 'float32')
    """
    resolved = _DEFAULT if dtype is None else checked(dtype)
    if kind(resolved) not in "fc":
        raise TypeError(f"normal: expected a floating-point dtype, got {resolved}")
    return _sample(_backend("normal", key), samplers.normal, (key,), shape_of("normal", shape), resolved)


def truncated_normal(key: Array, lower: Any, upper: Any, shape: Shape | None = None, dtype: Any = None) -> Array:
    """Normal numbers of (lower, upper), whose bounds are Python numbers or arrays that broadcast to `shape` (None: to
    each other); float64 unless `dtype` says otherwise. Raises TypeError for what is no key, and a dtype that is not
    real floating-point, ValueError for bounds that do not broadcast."""
    if shape is None:
        extents = np.broadcast_shapes(*(b.shape for b in (lower, upper) if isinstance(b, Array)))
    else:
        extents = shape_of("truncated_normal", shape)
    resolved = _real("truncated_normal", dtype)
    return _drawn_between("truncated_normal", samplers.truncated_normal, key, (lower, upper), extents, resolved)


def exponential(key: Array, shape: Shape = (), dtype: Any = None) -> Array:
    """Return exponential random numbers of rate 1, of `shape`; float64 unless `dtype` says otherwise. Raises TypeError
    for what is no key, and a dtype that is not real floating-point, ValueError for a negative extent."""
    return _sample(
        _backend("exponential", key),
        samplers.exponential,
        (key,),
        shape_of("exponential", shape),
        _real("exponential", dtype),
    )


def gumbel(key: Array, shape: Shape = (), dtype: Any = None) -> Array:
    """Draw from the standard Gumbel distribution, by default float64. Raises TypeError for an invalid key, and a
    dtype that is not real floating-point, ValueError for a negative extent."""
    return _sample(_backend("gumbel", key), samplers.gumbel, (key,), shape_of("gumbel", shape), _real("gumbel", dtype))


def categorical(key: Array, logits: Array, axis: int = -1, shape: Shape | None = None) -> Array:
    """Draw positions along `axis` (int64), with replacement, with the probabilities `softmax(logits, axis)`. `shape`
    ends in the shape of `logits` without the axis, which is the default. Raises TypeError for an invalid `key` and
    logits that are not real floating-point, ValueError for another shape, and AxisError (a ValueError) for an axis out
    of range."""
    xp = _backend("categorical", key, logits)
    at = axis_of("categorical", logits, axis)
    _real("categorical", logits.dtype)
    rest = (*logits.shape[:at], *logits.shape[at + 1 :])
    extents = rest if shape is None else shape_of("categorical", shape)
    if extents[len(extents) - len(rest) :] != rest:
        fail("categorical", (key, logits), f"a shape that ends in {rest}, got {extents}")
    return _sample(xp, _categorical, (key, logits), extents[: len(extents) - len(rest)], at)


def _categorical(xp: Backend, key: Any, logits: Any, before: Any, axis: int) -> Any:
    noise = samplers.gumbel(xp, key, (*before, *xp.shape(logits)), xp.dtype_of(logits))
    return xp.argmax(xp.add(noise, logits), axis=len(before) + axis)


# ---- how samplers run ------------------------------------------------------------------------------------------------


def _backend(name: str, key: Any, *operands: Any) -> Backend:
    """Return the backend of a call. Raises TypeError for an invalid key."""
    if not isinstance(key, Array) or key.shape != (2,) or key.dtype != dtypes.uint32:
        text = show((key,)) if isinstance(key, Array) else f"a {type(key).__qualname__}"
        raise TypeError(f"{name}: expected a key, uint32[2], as random.key(seed) and random.split make, got {text}")
    return backend_of(name, key, *operands)


def _as_array(x: Any, xp: Backend) -> Any:
    """Return an int among the arguments of a compiled function as an input of the program; anything else as it is."""
    traced_value = x.traced(xp) if isinstance(x, Number) and isinstance(x, int) else None
    return x if traced_value is None else new_array(traced_value, xp)


def _real(name: str, dtype: Any) -> np.dtype:
    resolved = _DEFAULT if dtype is None else checked(dtype)
    if kind(resolved) != "f":
        raise TypeError(f"{name}: expected a real floating-point dtype, got {resolved}")
    return resolved


def _check_fits(name: str, x: Array, shape: tuple[int, ...]) -> None:
    try:
        is_broadcastable = np.broadcast_shapes(x.shape, shape) == shape
    except ValueError:
        is_broadcastable = False
    if not is_broadcastable:
        raise ValueError(f"{name}: an argument of shape {x.shape} does not broadcast to the shape {shape}")


def _drawn_between(
    name: str, sampler: Sampler, key: Array, bounds: tuple[Any, ...], shape: tuple[int, ...], dtype: np.dtype
) -> Array:
    """Return a sampler whose first arguments, numbers or arrays, are made arrays of its dtype."""
    for b in bounds:
        if isinstance(b, Array):
            _check_fits(name, b, shape)
    xp = _backend(name, key, *bounds)
    with xp.scope():
        arrays = tuple(
            new_array(xp.copy(a) if xp.mutable else a, xp) for a in (converted(xp, b, dtype) for b in bounds)
        )
    return _sample(xp, sampler, (key, *arrays), shape, dtype)


def _sample(xp: Backend, sampler: Sampler, arrays: tuple[Array, ...], *static: Any) -> Array:
    """Return the draws of a sampler, computed by one program if the backend compiles and the call is not traced."""
    with xp.scope():
        values = [x._value() for x in arrays]
        if xp.compiles and not any(map(xp.is_traced, values)):
            eager_result = cold.attempt(
                xp, (sampler, static), lambda host, *operands: sampler(host, *operands, *static), values
            )
            out = _program(xp, sampler, static)(*values)[0] if eager_result is None else eager_result[0]
        else:
            out = sampler(xp, *values, *static)
        return Array(Storage(xp.ensure_owned(out) if xp.mutable else out, xp))


@functools.lru_cache(maxsize=1024)
def _program(xp: Backend, sampler: Sampler, static: tuple[Any, ...]) -> Callable[..., tuple[Any, ...]]:
    return xp.compile(lambda *values: (sampler(xp, *values, *static),))
