"""Number theory, and the bits of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorgraft.frontends.torch.core.promotion import PROMOTION
from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.common import axes_of
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import Value, with_operators


@kernel("gcd", promotion=PROMOTION.DEFAULT)
def _gcd(xp: Any, x: Array, y: Array) -> Array:
    """Euclid's algorithm, everywhere at once."""
    if not dtypes.is_integer(xp.dtype_of(x)):
        raise NotImplementedError("gcd of what is no integer")
    shape = xp.shape(xp.add(x, y))
    x, y = xp.broadcast_to(x, shape), xp.broadcast_to(y, shape)

    def not_done(pair: tuple[Array, Array]) -> Array:
        return xp.any(xp.not_equal(pair[1], 0))

    def step(pair: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = pair
        is_done = xp.equal(b, 0)
        rest = xp.fmod(a, xp.where(is_done, xp.ones_like(b), b))
        return xp.where(is_done, a, b), xp.where(is_done, b, rest)

    divisor = xp.while_loop(not_done, step, (x, y))[0]
    return xp.abs(divisor) if xp.dtype_of(divisor).kind == "i" else divisor


# dtype -> (integers of its size, bits of the mantissa, of the exponent, a power of two that makes subnormals normal)
_LAYOUT = {dtypes.float32: (dtypes.int32, 23, 8, 32), dtypes.float64: (dtypes.int64, 52, 11, 64)}


@kernel("frexp.Tensor")
@with_operators
def _frexp(xp: Any, x: Value) -> tuple[Value, Value]:
    """Return (mantissa in [0.5, 1), int32 exponent) with x = mantissa * 2 ** exponent."""
    shape, dtype = x.shape, x.dtype
    if not dtypes.is_floating(dtype):
        raise NotImplementedError("frexp of what is no float")
    x = xp.astype(xp.reshape(x, (xp.size(x),)), dtypes.accumulator(dtype))
    integer, mantissa_bits, exponent_bits, lift = _LAYOUT[x.dtype]
    tiny = abs(x) < float(dtypes.finfo(x.dtype).tiny)
    normal = xp.where(tiny, x * 2.0**lift, x)
    bits = xp.bitcast(normal, integer)
    mask = xp.full((), ((1 << exponent_bits) - 1) << mantissa_bits, integer)
    bias = (1 << (exponent_bits - 1)) - 2
    exponent = (bits & mask) >> xp.full((), mantissa_bits, integer)
    exponent = exponent - bias - xp.where(tiny, *(xp.full((), n, integer) for n in (lift, 0)))
    half = xp.full((), bias << mantissa_bits, integer)
    mantissa = xp.bitcast((bits & ~mask) | half, x.dtype)
    plain = (x == 0) | ~xp.isfinite(x)
    mantissa = xp.where(plain, x, mantissa)
    exponent = xp.where(plain, xp.zeros_like(exponent), exponent)
    return xp.reshape(mantissa, shape), xp.astype(xp.reshape(exponent, shape), dtypes.int32)


@kernel("hash_tensor")
def _hash_tensor(xp: Any, x: Array, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> Array:
    """Return the exclusive or, uint64, of the bits that numbers have in 64 bits (floats in double precision)."""
    dtype, shape = xp.dtype_of(x), xp.shape(x)
    if dtypes.is_complex(dtype):
        raise NotImplementedError("hash_tensor of complex numbers")
    if mode:
        raise RuntimeError(f"Unknown hash_tensor mode: {mode}")
    axes = axes_of(dim, len(shape))
    kept_axes = tuple(a for a in range(len(shape)) if a not in axes)
    wide = dtypes.float64 if dtypes.is_floating(dtype) else dtypes.uint64
    x = xp.permute_dims(x, (*axes, *kept_axes)) if shape else x
    bits = xp.bitcast(xp.astype(xp.reshape(x, (xp.size(x),)), wide), dtypes.uint64)
    rest = tuple(shape[a] for a in kept_axes)
    bits = xp.reshape(bits, (math.prod(shape[a] for a in axes), math.prod(rest)))
    while (n := xp.shape(bits)[0]) != 1:
        half = (n + 1) // 2
        other = xp.pad(xp.take_slice(bits, 0, half, n), 0, [(0, max(2 * half - n, 1 - half), 0), (0, 0, 0)])
        bits = xp.bitwise_xor(xp.take_slice(bits, 0, 0, half), other) if n else other
    return xp.reshape(bits, tuple(1 if a in axes else s for a, s in enumerate(shape)) if keepdim else rest)
