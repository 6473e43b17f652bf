"""Adam with moments of one byte for each number, in operations of the hub; the optimizers of all front ends use it.

A moment is a float of 8 bits times a scale that a block of numbers shares (block-wise, as in Dettmers et al., "8-bit
Optimizers via Block-wise Quantization", arXiv 2110.02861). Averages move by less than half a code a step, and rounding
to the nearest would lose that, always. Here a dither is added before the lower bits are dropped, so that the mean of
the stored values is exact. The dither of an element is a Kronecker sequence, multiples of the golden ratio modulo 1:
over any few steps its values are spread evenly, so that errors cancel sooner than those of random numbers do.

Built on the hub; used by the optimizers alone, nothing of the core imports it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators

BLOCK = 256
SMALLEST = 4096  # smaller tensors keep float32, as in the paper
# 2^32 times the inverses of the ratios, modulo 2^32: of steps, of elements
_GOLDEN, _PLASTIC = -0x61C88647, -0x3EC05657


class MomentFormat(NamedTuple):
    """A float of 8 bits, for signed numbers, or for magnitudes, with one more bit of precision. It has 16 octaves, of
    which those from 2^-7 to 2^-3 have 2^`mantissa` codes each, those above twice and those below half as many.

    Signed numbers include zero (code 0). Magnitudes do not, because they are divisors.
    """

    signed: bool
    mantissa: int

    @property
    def top(self) -> float:
        """The greatest number."""
        return 2 - 2.0 ** -(self.mantissa + 1)

    @property
    def cut(self) -> int:
        """The number of bits of a float32 that are dropped."""
        return 23 - self.mantissa

    @property
    def first(self) -> float:
        """The number that code 1 represents."""
        return _LEAST * (1 + 2.0 ** -(self.mantissa - 1))


_LEAST = 2.0**-15
_BITS_OF_LEAST, _OCTAVE = 112 << 23, 1 << 23
FIRST, ROOT = MomentFormat(True, 3), MomentFormat(False, 4)


class Settings(NamedTuple):
    """The numbers of Adam that are constants of a program. `decoupled`: weights decay as in AdamW."""

    b1: float
    b2: float
    eps: float
    weight_decay: float = 0.0
    decoupled: bool = True


def empty(xp: Backend, shape: tuple[int, ...], dtype: Any, smallest: int) -> tuple[Array, ...]:
    """Return the moments of a parameter before the first step: (first, second), or in bytes (codes, scales, codes,
    scales) of the first moment and of the root of the second. Codes are uint8 (blocks, BLOCK), scales float32
    (blocks, 1)."""
    size = 1
    for n in shape:
        size *= n
    if size < smallest:
        return tuple(xp.zeros(shape, wide(dtype)) for _ in range(2))
    blocks = -(-size // BLOCK)
    return tuple(
        array
        for _ in range(2)
        for array in (xp.zeros((blocks, BLOCK), dtypes.uint8), xp.zeros((blocks, 1), dtypes.float32))
    )


def wide(dtype: Any) -> Any:
    """Return the dtype that Adam computes in for parameters of a dtype."""
    return dtypes.float64 if dtype == dtypes.float64 else dtypes.float32


@with_operators
def step(
    xp: ValueBackend,
    grad: Value,
    weights: Any,
    state: Sequence[Value],
    count: Value,
    rate: Any,
    settings: Settings,
    phases: tuple[int, int],
) -> tuple[Value, tuple[Value, ...]]:
    """Compute one step of Adam for one parameter.

    Arguments:
        grad: the gradient; weights: the parameter, or None without weight decay.
        state: its moments, as `empty` returns them.
        count: () the number of this step, from 1.
        rate: the learning rate, a number or an array ().
        phases: the initial phases of the dithers of the two moments, see `phase`.

    Returns (the change to be added to the parameter, in its computation dtype; the new moments).
    """
    shape, dtype = grad.shape, wide(grad.dtype)
    g = xp.astype(grad, dtype)
    weights = None if weights is None else xp.astype(weights, dtype)
    b1, b2, decay = settings.b1, settings.b2, settings.weight_decay
    if decay and not settings.decoupled:
        g = g + weights * decay
    if len(state) == 2:
        first, second = state
    else:
        first = xp.astype(_decode(xp, state[0], state[1], FIRST, shape), dtype)
        root = xp.astype(_decode(xp, state[2], state[3], ROOT, shape), dtype)
        second = root * root
    first = first * b1 + g * (1 - b1)
    second = second * b2 + g * g * (1 - b2)
    root = xp.sqrt(second)
    denominator = root / xp.sqrt(_corrected(xp, b2, count, dtype)) + settings.eps
    direction = first / _corrected(xp, b1, count, dtype) / denominator
    if decay and settings.decoupled:
        direction = direction + weights * decay
    if not isinstance(rate, float | int):
        rate = xp.astype(rate, dtype)
    change = -(direction * rate)
    if len(state) == 2:
        return change, (first, second)
    return change, tuple(
        x
        for value, form, start in ((first, FIRST, phases[0]), (root, ROOT, phases[1]))
        for x in _encode(xp, value, form, count, start)
    )


def phase(seed: int, parameter: int, moment: int) -> int:
    """Return the initial phase of a dither, as int32. Those of different parameters are independent (SplitMix64; Steele
    et al. 2014)."""
    z = (seed * 0x9E3779B97F4A7C15 + 2 * parameter + moment + 1) * 0x9E3779B97F4A7C15 % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return ((z ^ z >> 31) & 0xFFFFFFFF) - 2**31


def phase_from(phase: int, element: int) -> int:
    """Return the phase at an element, as int32: the initial phase for the elements from this one on."""
    return (phase + element * _PLASTIC + 2**31) % 2**32 - 2**31


def _corrected(xp: Any, beta: float, count: AnyArray, dtype: Any) -> AnyArray:
    """Return 1 - beta^count, without cancellation if it is small."""
    if not beta:
        return xp.ones((), dtype)
    return xp.negative(xp.expm1(xp.multiply(xp.astype(count, dtype), math.log(beta))))


def _encode(xp: ValueBackend, values: Value, form: MomentFormat, count: Value, start: int) -> tuple[Value, Value]:
    """Return (codes, scales) of float values of any shape, block by block."""
    size = xp.size(values)
    flat = xp.reshape(xp.astype(values, dtypes.float32), (size,))
    rows = -(-size // BLOCK)
    if size % BLOCK:
        flat = xp.pad(flat, 0.0, [(0, rows * BLOCK - size, 0)])
    x = xp.reshape(flat, (rows, BLOCK))
    magnitudes = abs(x) if form.signed else x
    scale = xp.max(magnitudes, axis=(1,), keepdims=True) / form.top
    units = xp.minimum(magnitudes / xp.where(scale == 0.0, 1.0, scale), form.top)
    bits = _same_bits(xp, units, dtypes.int32) - _BITS_OF_LEAST
    # codes with the bits to be dropped: piecewise linear, with a piece for each density of codes
    bits = xp.maximum(xp.maximum(bits >> _int32(xp, 1), bits - 4 * _OCTAVE), bits * 2 - 16 * _OCTAVE)
    if form.signed:  # another linear piece between zero and the first code
        near_zero = xp.minimum(units, form.first) * (2.0**form.cut / form.first)
        bits = xp.where(units < form.first, xp.astype(near_zero, dtypes.int32), bits)
    else:
        bits = xp.maximum(bits, 0)
    codes = (bits + _dither(xp, rows, form.cut, count, start)) >> _int32(xp, form.cut)
    if form.signed:
        codes = codes + xp.astype(x < 0.0, dtypes.int32) * 128
    return xp.astype(codes, dtypes.uint8), scale


def _dither(xp: ValueBackend, rows: int, bits: int, count: Value, start: int) -> Value:
    """Return the dither of each element at step `count`: int32 (rows, BLOCK), from 0 to 2^bits - 1."""
    # integers wrap here by intention: NumPy warns of that for scalars, but not for arrays with an axis
    offset = xp.reshape(xp.astype(count, dtypes.int32), (1,)) * _int32(xp, _GOLDEN)
    offset = offset + _int32(xp, start)
    of_elements = xp.iota(rows * BLOCK, dtypes.int32) * _int32(xp, _PLASTIC)
    words = (of_elements + offset) >> _int32(xp, 32 - bits)
    return xp.reshape(words & ((1 << bits) - 1), (rows, BLOCK))


def _same_bits(xp: Any, x: AnyArray, dtype: Any) -> AnyArray:
    shape = xp.shape(x)
    return xp.reshape(xp.bitcast(xp.reshape(x, (xp.size(x),)), dtype), shape)


def _int32(xp: Any, value: int) -> Any:
    return xp.full((1,), value, dtypes.int32)


def _decode(xp: ValueBackend, codes: Value, scale: Value, form: MomentFormat, shape: tuple[int, ...]) -> Value:
    """Return the float32 values of codes, in a shape."""
    codes_shape = codes.shape
    level = xp.astype(codes, dtypes.int32)
    codes = level & 127 if form.signed else level
    bits = codes << _int32(xp, form.cut)
    bits = xp.minimum(xp.minimum(bits * 2, bits + 4 * _OCTAVE), (bits >> _int32(xp, 1)) + 8 * _OCTAVE)
    x = _same_bits(xp, bits + _BITS_OF_LEAST, dtypes.float32) * scale
    if form.signed:
        x = xp.where(codes == 0, 0.0, xp.where(level > 127, -x, x))
    size, n = codes_shape[0] * codes_shape[1], 1
    for extent in shape:
        n *= extent
    flat = xp.reshape(x, (size,))
    return xp.reshape(flat if n == size else xp.slice(flat, (0,), (n,), (1,)), shape)
