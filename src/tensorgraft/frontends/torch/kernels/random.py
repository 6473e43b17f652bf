"""Random numbers. Bounds and parameters are inputs of the compiled program: another value does not compile again."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.dispatch.checks import require
from tensorgraft.frontends.torch.kernels.common import scalar_name
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray, Value, with_operators


def _inner(dtype: np.dtype) -> np.dtype:
    """Return the real dtype in which numbers for a tensor of `dtype` are drawn."""
    real = dtypes.real_dtype(dtype)
    return dtypes.accumulator(real) if dtypes.is_floating(real) else dtypes.float64


def _number(xp: Any, value: Any, dtype: np.dtype) -> Any:
    """Return a Python number, or the traced tensor that represents one, as a 0-d array."""
    if isinstance(value, bool | int | float):
        return xp.asarray(np.asarray(value).astype(dtype))
    return xp.astype(value, dtype)


def _normals(xp: Any, key: AnyArray, shape: tuple[int, ...], dtype: np.dtype) -> AnyArray:
    """Standard normal; complex numbers have a variance of 1 in all."""
    if dtypes.is_complex(dtype):
        parts = xp.normal(key, (2, *shape), dtypes.real_dtype(dtype))
        parts = xp.multiply(parts, math.sqrt(0.5))
        return xp.complex(*(xp.squeeze(part, 0) for part in xp.split(parts, [1, 1], 0)))
    return xp.normal(key, shape, _inner(dtype))


def _is(value: Any, number: int) -> bool:
    """Return True for a Python number that is `number`."""
    return value.__class__ in (int, float) and value == number


def _scaled(xp: Any, x: Array, scale: Any, offset: Any) -> Array:
    dtype = xp.dtype_of(x)
    return xp.add(xp.multiply(x, _number(xp, scale, dtype)), _number(xp, offset, dtype))


# ---- what PyTorch refuses --------------------------------------------------------------------------------------------


def _refuse(condition: bool, message: str) -> None:
    if condition:
        raise RuntimeError(message)


_modes = torch._C._len_torch_dispatch_stack
_MOST_ACCEPTED = 1024


def _as_cpu(name: str) -> Callable[..., None]:
    """Return a check that raises and warns like the CPU, which checks its parameters even if nothing is drawn."""

    accepted: set[Any] = set()

    def check(x: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("generator", None)
        key = x.dtype, args, tuple(kwargs.items())
        if key in accepted:
            return
        with disable_current_modes() if _modes() else contextlib.nullcontext():  # a trace watches the CPU
            getattr(torch.empty(0, dtype=x.dtype, device="cpu"), name)(*args, **kwargs)
        # `random_` of floats gives a warning at each call
        if all(a.__class__ in (int, float) for a in (*args, *kwargs.values())) and name != "random_":
            if len(accepted) >= _MOST_ACCEPTED:
                accepted.clear()
            accepted.add(key)

    return check


def _check_multinomial(weights: Any, num_samples: int, replacement: bool = False, out: Any = None, **_: Any) -> None:
    is_wrong = out is not None and out.dtype != torch.int64
    _refuse(is_wrong, f"multinomial expects Long tensor out, got: {out is not None and scalar_name(out.dtype)}")
    _refuse(not 1 <= weights.dim() <= 2, "prob_dist must be 1 or 2 dim")
    is_wrong = not weights.dtype.is_floating_point
    _refuse(is_wrong, f"multinomial only supports floating-point dtypes for input, got: {weights.dtype}")
    _refuse(num_samples <= 0, "cannot sample n_sample <= 0 samples")
    _refuse(weights.shape[-1] > 1 << 24, "number of categories cannot exceed 2^24")
    too_many = not replacement and num_samples > weights.shape[-1]
    _refuse(too_many, "cannot sample n_sample > prob_dist.size(-1) samples without replacement")


# ---- in place: each writes `self` ------------------------------------------------------------------------------------


@kernel("normal_", random=True, check=_as_cpu("normal_"), dynamic=("mean", "std"))
def _normal(xp: Any, x: Array, mean: Any = 0.0, std: Any = 1.0, *, key: Array) -> Array:
    z = _normals(xp, key, xp.shape(x), xp.dtype_of(x))
    return z if _is(std, 1) and _is(mean, 0) else _scaled(xp, z, std, mean)


@kernel("uniform_", random=True, check=_as_cpu("uniform_"), dynamic=("from", "to"))
def _uniform(xp: Any, x: Array, low: Any = 0.0, high: Any = 1.0, *, key: Array) -> Array:
    shape, dtype = xp.shape(x), xp.dtype_of(x)
    if dtypes.is_complex(dtype):  # both parts
        parts = xp.zeros((2, *shape), dtypes.real_dtype(dtype))
        parts = xp.split(_uniform(xp, parts, low, high, key=key), [1, 1], 0)
        return xp.complex(*(xp.squeeze(part, 0) for part in parts))
    inner = _inner(dtype)
    u = xp.astype(xp.uniform(key, shape, dtype), inner)
    if _is(low, 0) and _is(high, 1):
        return u
    low, high = _number(xp, low, inner), _number(xp, high, inner)
    return _scaled(xp, u, xp.subtract(high, low), low)


@kernel("exponential_", random=True, check=_as_cpu("exponential_"), dynamic=("lambd",))
def _exponential(xp: Any, x: Array, rate: Any = 1.0, *, key: Array) -> Array:
    inner = _inner(xp.dtype_of(x))
    return xp.divide(xp.exponential(key, xp.shape(x), inner), _number(xp, rate, inner))


@kernel("log_normal_", random=True, check=_as_cpu("log_normal_"), dynamic=("mean", "std"))
def _log_normal(xp: Any, x: Array, mean: Any = 1.0, std: Any = 2.0, *, key: Array) -> Array:
    return xp.exp(_normal(xp, x, mean, std, key=key))


@kernel("cauchy_", random=True, check=_as_cpu("cauchy_"), dynamic=("median", "sigma"))
@with_operators
def _cauchy(xp: Any, x: Value, median: Any = 0.0, sigma: Any = 1.0, *, key: Value) -> Value:
    inner = _inner(x.dtype)
    angle = (xp.uniform(key, x.shape, inner) - 0.5) * math.pi
    return xp.tan(angle) * _number(xp, sigma, inner) + _number(xp, median, inner)


@kernel("geometric_", random=True, check=_as_cpu("geometric_"), dynamic=("p",))
def _geometric(xp: Any, x: Array, p: Any, *, key: Array) -> Array:
    """Return the number of trials until the first success: at least 1."""
    inner = _inner(xp.dtype_of(x))
    spent = xp.negative(xp.exponential(key, xp.shape(x), inner))
    return xp.maximum(xp.ceil(xp.divide(spent, xp.log1p(xp.negative(_number(xp, p, inner))))), 1)


@kernel("bernoulli_.float", random=True, check=_as_cpu("bernoulli_"), dynamic=("p",))
def _bernoulli(xp: Any, x: Array, p: Any = 0.5, *, key: Array) -> Array:
    return xp.less(xp.uniform(key, xp.shape(x), dtypes.float64), _number(xp, p, dtypes.float64))


@kernel("bernoulli_.Tensor", random=True)
@with_operators
def _bernoulli_each(xp: Any, x: Value, p: Value, *, key: Value) -> Value:
    p = xp.astype(p, dtypes.float64 if p.dtype == dtypes.float64 else dtypes.float32)
    require(
        xp,
        (
            (p >= 0) & (p <= 1),
            "Expected p_in >= 0 && p_in <= 1 to be true, but got false.  (Could this error message be improved?  If so,"
            " please report an enhancement request to PyTorch.)",
        ),
    )
    return xp.uniform(key, x.shape, p.dtype) < p


# ---- integers --------------------------------------------------------------------------------------------------------


def _last_random(dtype: np.dtype) -> int:
    """Return the greatest number of `random_()`: that up to which a dtype holds every integer."""
    if dtypes.is_bool(dtype):
        return 1
    if dtypes.is_integer(dtype):
        return int(min(dtypes.iinfo(dtype).max, dtypes.iinfo(dtypes.int64).max))
    return 2 ** (dtypes.finfo(dtype).nmant + 1)


def _integers(xp: Any, key: AnyArray, x: AnyArray, low: Any, span: AnyArray) -> AnyArray:
    """Return `low` + 64 random bits modulo `span` (uint64). The sum wraps, so that every range of 64-bit integers is
    covered."""
    at = xp.fmod(xp.random_uint64(key, xp.shape(x)), span)
    values = xp.add(xp.astype(at, dtypes.int64), _number(xp, low, dtypes.int64))
    return xp.astype(values, xp.dtype_of(x))


def _unsigned(xp: Any, value: Any) -> Any:
    return xp.astype(_number(xp, value, dtypes.int64), dtypes.uint64)


@with_operators
def _inner_bound(xp: Any, x: Value, bound: Any, inward: int) -> Value:
    """Return a bound of `random_` that is in range in the dtype of `x`: if rounding moves the integer beside it
    (`inward`: 1, or -1 for the upper bound, which is not drawn) out of the range, the bound is moved by the distance of
    neighbouring numbers of that dtype."""
    bound = _number(xp, bound, dtypes.int64)
    dtype = x.dtype
    if not dtypes.is_floating(dtype):
        return bound
    neighbour = bound + xp.full((), inward, dtypes.int64)
    rounded = xp.astype(xp.astype(neighbour, dtype), dtypes.int64)
    out = rounded < bound if inward > 0 else rounded >= bound
    nmant = dtypes.finfo(dtype).nmant
    powers = 2 ** np.arange(nmant, 63)
    is_reached = abs(neighbour) >= xp.asarray(powers)
    distance = xp.max(xp.where(is_reached, xp.asarray(powers >> nmant), xp.full((), 1, dtypes.int64)), axis=0)
    return xp.where(out, bound + distance * xp.full((), inward, dtypes.int64), bound)


@kernel("random_", random=True)
def _random(xp: Any, x: Array, *, key: Array) -> Array:
    return _integers(xp, key, x, 0, xp.full((), _last_random(xp.dtype_of(x)) + 1, dtypes.uint64))


@kernel("random_.to", random=True, check=_as_cpu("random_"), dynamic=("to",))
def _random_to(xp: Any, x: Array, high: Any, *, key: Array) -> Array:
    return _integers(xp, key, x, 0, _unsigned(xp, _inner_bound(xp, x, high, -1)))


@kernel("random_.from", random=True, check=_as_cpu("random_"), dynamic=("from", "to"))
def _random_from(xp: Any, x: Array, low: Any, high: Any = None, *, key: Array) -> Array:
    if low.__class__ is high.__class__ is int and dtypes.is_integer(xp.dtype_of(x)):
        return _integers(xp, key, x, low, xp.full((), high - low, dtypes.uint64))
    return _random_between(xp, x, low, high, key)


@with_operators
def _random_between(xp: Any, x: Value, low: Any, high: Any, key: Value) -> Value:
    low = _inner_bound(xp, x, low, 1)
    if high is not None:
        high = _inner_bound(xp, x, high, -1)
        return _integers(xp, key, x, low, _unsigned(xp, high) - _unsigned(xp, low))
    last = xp.full((), _last_random(x.dtype), dtypes.uint64)
    span = last - _unsigned(xp, low) + xp.full((), 1, dtypes.uint64)
    is_full_range = span == xp.zeros_like(span)  # 2^64 of them: any bits
    bits = xp.random_uint64(key, x.shape)
    at = xp.where(is_full_range, bits, xp.fmod(bits, xp.where(is_full_range, xp.ones_like(span), span)))
    values = xp.astype(at, dtypes.int64) + _number(xp, low, dtypes.int64)
    return xp.astype(values, x.dtype)


@kernel("randperm", "randperm.generator", random=True)
def _randperm(xp: Any, n: int, dtype: np.dtype | None = None, *, key: Array) -> Array:
    return xp.astype(xp.permutation(key, n), dtype or dtypes.int64)


# ---- new tensors -----------------------------------------------------------------------------------------------------


@kernel("normal.Tensor_float", random=True, dynamic=("std",))
def _normal_about(xp: Any, mean: Array, std: Any = 1.0, *, key: Array) -> Array:
    return _shifted(xp, mean, std, xp.shape(mean), key)


@kernel("normal.float_Tensor", random=True, dynamic=("mean",))
def _normal_scaled(xp: Any, mean: Any, std: Array, *, key: Array) -> Array:
    _check_deviations(xp, std)
    return _shifted(xp, mean, std, xp.shape(std), key)


@kernel("normal.Tensor_Tensor", random=True)
def _normal_both(xp: Any, mean: Array, std: Array, *, key: Array) -> Array:
    _check_deviations(xp, std)
    return _shifted(xp, mean, std, tuple(np.broadcast_shapes(xp.shape(mean), xp.shape(std))), key)


def _check_deviations(xp: Any, std: Array) -> None:
    require(xp, (xp.greater_equal(std, 0), "normal expects all elements of std >= 0.0"))


@with_operators
def _shifted(xp: Any, mean: Any, std: Any, shape: tuple[int, ...], key: Value) -> Value:
    dtype = next(v.dtype for v in (mean, std) if xp.is_array(v) and (v.shape or shape == ()))
    z = _normals(xp, key, shape, dtype)
    inner = z.dtype
    return z * _number(xp, std, inner) + _number(xp, mean, inner)


def _check_weights(xp: Any, p: Array, replacement: bool) -> None:
    positive, finite = xp.greater_equal(p, 0), xp.isfinite(p)
    positive_sum = xp.not_equal(xp.sum(p, axis=-1), 0), "invalid multinomial distribution (sum of probabilities <= 0)"
    if replacement:
        words = "invalid multinomial distribution (encountering probability entry "
        require(xp, (positive, f"{words}< 0)"), (finite, f"{words}= infinity or NaN)"), positive_sum)
    else:
        valid = xp.logical_and(positive, finite)
        require(xp, (valid, "probability tensor contains either `inf`, `nan` or element < 0"), positive_sum)


@kernel("multinomial", random=True, check=_check_multinomial)
def _multinomial(xp: Any, weights: Array, num_samples: int, replacement: bool = False, *, key: Array) -> Array:
    """Sample without replacement by exponential races (Efraimidis and Spirakis 2006), with it by the inverse of the
    distribution function."""
    p = xp.astype(weights, _inner(xp.dtype_of(weights)))
    _check_weights(xp, p, replacement and num_samples > 1)
    if not replacement or num_samples == 1:
        races = xp.divide(p, xp.exponential(key, xp.shape(p), xp.dtype_of(p)))
        races = xp.where(xp.equal(p, 0), xp.full_like(p, -1.0), races)
        return xp.top_k(races, num_samples, -1)[1]
    total = xp.cumsum(p, xp.ndim(p) - 1)
    last = xp.take_slice(total, -1, xp.shape(p)[-1] - 1, xp.shape(p)[-1])
    u = xp.multiply(xp.uniform(key, (*xp.shape(p)[:-1], num_samples), xp.dtype_of(p)), last)
    return xp.clip(xp.searchsorted(total, u, right=True), 0, xp.shape(p)[-1] - 1)
