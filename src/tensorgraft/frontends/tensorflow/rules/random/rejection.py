"""Random operations that draw until a number is accepted: gamma, Poisson and binomial numbers.

Each number has a stretch of the counter of its own, from which it takes blocks as it needs them; all go on together, as
long as one of them is not accepted. Methods: Marsaglia and Tsang (gamma, 2000), Knuth's products and Hörmann's
transformed rejection (Poisson, binomial, 1993), sums of geometric numbers (binomial). Of a block the last number is
taken first, as TensorFlow's kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.frontends.tensorflow.rules.random import philox
from tensorgraft.frontends.tensorflow.rules.random.seeded import RESERVED, check_algorithm, reserve_numbers
from tensorgraft.frontends.tensorflow.values import VariableCell
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators

Shape = tuple[int, ...]
Draw = Callable[[Any], Any]


class Buffer(NamedTuple):
    """The current block of each number, and how many of its values are left."""

    values: Any  # (n, m)
    left: Any  # (n,) int32


class Streams:
    """A stretch of a counter for each of n numbers: `first` (n,) says where it begins."""

    def __init__(self, xp: Any, key: Any, counter: Any, first: Any, dtype: np.dtype) -> None:
        self.xp, self.key, self.counter, self.first, self.dtype = xp, key, counter, first, dtype
        self.each = 2 if dtype == dtypes.float64 else 4

    def _words(self, at: Any) -> Any:
        w = philox.words_at(self.xp, self.key, self.counter, self.xp.add(self.first, at))
        return philox.doubled(self.xp, w) if self.each == 2 else w

    def uniform(self, at: Any) -> Any:
        return philox.unit(self.xp, self._words(at), self.dtype)

    def normal(self, at: Any) -> Any:
        return philox.box_muller(self.xp, self._words(at), self.dtype)

    def start(self) -> Any:
        return self.xp.zeros(self.xp.shape(self.first), dtypes.uint64)

    def empty(self) -> Buffer:
        n = self.xp.shape(self.first)[0]
        return Buffer(self.xp.zeros((n, self.each), self.dtype), self.xp.zeros((n,), dtypes.int32))

    def take(self, draw: Draw, at: Any, buffer: Buffer, is_asking: Any) -> tuple[Any, Any, Buffer]:
        """Return (a number for each that asks, its position in the counter, the buffer after it)."""
        xp = self.xp
        is_refill = xp.logical_and(is_asking, xp.equal(buffer.left, 0))
        values = xp.where(xp.expand_dims(is_refill, 1), draw(at), buffer.values)
        left = xp.where(is_refill, xp.full_like(buffer.left, self.each), buffer.left)
        left = xp.subtract(left, xp.astype(is_asking, dtypes.int32))
        number = xp.squeeze(xp.take_along_axis(values, xp.expand_dims(xp.astype(left, dtypes.int64), 1), 1), 1)
        return number, xp.add(at, xp.astype(is_refill, dtypes.uint64)), Buffer(values, left)


def _until_done(xp: Any, step: Callable[[Any], Any], init: tuple[Any, ...]) -> Any:
    """Run `step` until all of the state's first part, which says who is done, is true."""
    return xp.while_loop(lambda s: xp.logical_not(xp.all(s[0])), step, init)


def _repeated(xp: Any, x: AnyArray, group_size: int) -> AnyArray:
    """Return a parameter for each number: `group_size` numbers in a row have the same."""
    n = xp.size(x)
    return xp.reshape(xp.broadcast_to(xp.reshape(x, (n, 1)), (n, group_size)), (n * group_size,))


def _parameters_last(xp: Any, samples: AnyArray, count: int, shape: Shape) -> AnyArray:
    """Numbers, drawn parameter by parameter, with parameters last."""
    rows = xp.reshape(samples, (count, xp.size(samples) // count))
    return xp.reshape(xp.permute_dims(rows, (1, 0)), shape)


def _firsts(xp: Any, n: int, spacing: int = RESERVED) -> Any:
    return xp.multiply(xp.iota(n, dtypes.uint64), xp.full((), spacing, dtypes.uint64))


def _accepts(xp: Any, is_done: AnyArray, accepts: AnyArray, old: AnyArray, new: AnyArray) -> tuple[AnyArray, AnyArray]:
    return xp.logical_or(is_done, accepts), xp.where(accepts, new, old)


# ---- gamma -----------------------------------------------------------------------------------------------------------


@with_operators
def gamma(xp: ValueBackend, key: Value, counter: Value, shape: Shape, alpha: Value) -> Value:
    count, dtype = xp.size(alpha), alpha.dtype
    n = math.prod(shape)
    if not n:
        return xp.zeros(shape, dtype)
    a = _repeated(xp, xp.astype(alpha, dtypes.float64), n // count)
    s = Streams(xp, key, counter, _firsts(xp, n), dtypes.float64)
    small, is_exponential = a < 1.0, a == 1.0
    d = a + xp.where(small, xp.full_like(a, 2 / 3), xp.full_like(a, -1 / 3))
    c = xp.full_like(d, 1 / 3) / xp.sqrt(d)
    simple = -xp.log1p(-xp.squeeze(xp.take_slice(s.uniform(s.start()), 1, 1, 2), 1))

    def step(state: Any) -> Any:
        is_done, result, at, normals, uniforms = state
        normals, uniforms = Buffer(*normals), Buffer(*uniforms)
        asking = ~is_done
        x, at, normals = s.take(s.normal, at, normals, asking)
        v = c * x + 1.0
        asking = asking & (v > 0.0)
        v = v * v * v
        u, at, uniforms = s.take(s.uniform, at, uniforms, asking)
        square = x * x
        accepts_early = u < 1.0 - square * 0.0331 * square
        safe = xp.where(asking, v, xp.ones_like(v))
        bound = square * 0.5 + d * (1.0 - safe + xp.log(safe))
        accepts_now = asking & (accepts_early | (xp.log(u) < bound))
        b, at, uniforms = s.take(s.uniform, at, uniforms, accepts_now & small)
        value = d * v
        value = xp.where(small, value * b ** (xp.ones_like(a) / a), value)
        return *_accepts(xp, is_done, accepts_now, result, value), at, tuple(normals), tuple(uniforms)

    init = (is_exponential | xp.isnan(a), xp.where(is_exponential, simple, xp.full_like(a, math.nan)), s.start())
    result = _until_done(xp, step, (*init, tuple(s.empty()), tuple(s.empty())))[1]
    return _parameters_last(xp, xp.astype(result, dtype), count, shape)


@rule("RandomGamma", known=("shape",), writes=True)
def random_gamma(xp: Backend, shape: np.ndarray, alpha: Array, cell: VariableCell) -> Array:
    extents = (*ints(shape), *xp.shape(alpha))
    return gamma(xp, *reserve_numbers(xp, cell, math.prod(extents) * RESERVED), extents, alpha)


@rule("StatelessRandomGammaV2", known=("shape",), folds=False)
def stateless_gamma(xp: Backend, shape: np.ndarray, seed: Array, alpha: Array) -> Array:
    return gamma(xp, *philox.key_and_counter(xp, seed), ints(shape), alpha)


@rule("StatelessRandomGammaV3", known=("shape", "algorithm"), folds=False)
def stateless_gamma_v3(
    xp: Backend, shape: np.ndarray, key: Array, counter: Array, algorithm: np.ndarray, alpha: Array
) -> Array:
    check_algorithm(algorithm)
    return gamma(xp, key, counter, ints(shape), alpha)


# ---- Poisson ---------------------------------------------------------------------------------------------------------


@with_operators
def poisson(xp: ValueBackend, key: Value, counter: Value, shape: Shape, rate: Value, dtype: np.dtype) -> Value:
    count, n = xp.size(rate), math.prod(shape)
    if not n:
        return xp.zeros(shape, dtype)
    wide = dtypes.float64
    r = _repeated(xp, xp.astype(rate, wide), n // count)
    s = Streams(xp, key, counter, _firsts(xp, n), wide)
    is_finite = xp.isfinite(r) & (r >= 0.0)
    r = xp.where(is_finite, r, xp.ones_like(r))
    small = r < 10.0
    least = xp.exp(-r)
    large = xp.where(small, xp.full_like(r, 10.0), r)
    log_rate = xp.log(large)
    b = xp.sqrt(large) * 2.53 + 0.931
    a = b * 0.02483 + -0.059
    inverse = xp.full_like(b, 1.1328) / (b - 3.4) + 1.1239
    box = 0.9277 - xp.full_like(b, 3.6224) / (b - 2.0)

    def step(state: Any) -> Any:
        is_done, result, product, arrivals, at, buffer = state
        asking = ~is_done
        u, at, buffer = s.take(s.uniform, at, Buffer(*buffer), asking)
        product = xp.where(asking & small, product * u, product)
        ends = small & (product <= least)
        asking = asking & ~small
        v, at, buffer = s.take(s.uniform, at, buffer, asking)
        u = u - 0.5
        shifted = 0.5 - abs(u)
        k = (a * 2.0 / shifted + b) * u
        k = xp.floor(k + large + 0.43)
        accepts_early = (shifted >= 0.07) & (v <= box)
        rejects_early = (shifted < 0.013) & (v > shifted)
        rejects_early = (k < 0.0) | rejects_early
        ratio = a / (shifted * shifted) + b
        left = xp.log(v * inverse / ratio)
        k1 = xp.maximum(k, xp.zeros_like(k)) + 1.0
        right = -large + k * log_rate - xp.lgamma(k1)
        accepted = accepts_early | (~rejects_early & (left <= right))
        value = xp.where(small, arrivals, k)
        accepts_now = ~is_done & xp.where(small, ends, accepted)
        arrivals = arrivals + 1.0
        return *_accepts(xp, is_done, accepts_now, result, value), product, arrivals, at, tuple(buffer)

    is_done, nan = ~is_finite, xp.full_like(r, math.nan)
    init = (is_done, nan, xp.ones_like(r), xp.zeros_like(r), s.start(), tuple(s.empty()))
    return _parameters_last(xp, xp.astype(_until_done(xp, step, init)[1], dtype), count, shape)


@rule("RandomPoissonV2", "RandomPoisson", known=("shape",), writes=True)
def random_poisson(
    xp: Backend, shape: np.ndarray, rate: Array, cell: VariableCell, *, dtype: np.dtype = dtypes.int64
) -> Array:
    extents = (*ints(shape), *xp.shape(rate))
    return poisson(xp, *reserve_numbers(xp, cell, math.prod(extents) * RESERVED), extents, rate, dtype)


@rule("StatelessRandomPoisson", known=("shape",), folds=False)
def stateless_poisson(xp: Backend, shape: np.ndarray, seed: Array, rate: Array, *, dtype: np.dtype) -> Array:
    return poisson(xp, *philox.key_and_counter(xp, seed), ints(shape), rate, dtype)


# ---- binomial --------------------------------------------------------------------------------------------------------

# the error of Stirling's formula for log(k!), k from 0 to 9
_TAILS = (
    0.0810614667953272, 0.0413406959554092, 0.0276779256849983, 0.02079067210376509, 0.0166446911898211,
    0.0138761288230707, 0.0118967099458917, 0.0104112652619720, 0.00925546218271273, 0.00833056343336287,
)  # fmt: skip


def _tail(xp: ValueBackend, k: Value) -> Value:
    square = xp.square(k + 1.0)
    series = (1 / 360 - xp.full_like(k, 1 / 1260) / square) / square
    far = (1 / 12 - series) / (k + 1.0)
    near = xp.take(xp.asarray(np.asarray(_TAILS)), xp.astype(xp.clip(k, 0.0, 9.0), dtypes.int64), 0)
    return xp.where(k <= 9.0, near, far)


def _transformed_rejection(xp: ValueBackend, m: Value, q: Value) -> Callable[[Value, Value], tuple[Value, Value]]:
    """Return a function of two uniform numbers that gives (a number of successes among `m`, whether it is accepted), by
    transformed rejection with squeeze (Hoermann 1993), for `m * q` of 10 and more."""
    r = q / (1.0 - q)
    deviation = xp.sqrt(m * q * (1.0 - q))
    b = deviation * 2.53 + 1.15
    a = b * 0.0248 + -0.0873 + q * 0.01
    c = m * q + 0.5
    box = 0.92 - xp.full_like(b, 4.2) / b
    alpha = (xp.full_like(b, 5.1) / b + 2.83) * deviation
    mode = xp.floor((m + 1.0) * q)

    def accept(u: Value, v: Value) -> tuple[Value, Value]:
        u = u - 0.5
        shifted = 0.5 - abs(u)
        k = xp.floor((a * 2.0 / shifted + b) * u + c)
        accepts_early = (shifted >= 0.07) & (v <= box)
        in_range = (k >= 0.0) & (k <= m)
        k = xp.where(in_range, k, xp.zeros_like(k))
        ratio = a / (shifted * shifted) + b
        left = xp.log(v * alpha / ratio)
        up, rest = m - mode + 1.0, m - k + 1.0
        terms = [
            (mode + 0.5) * xp.log((mode + 1.0) / (r * up)),
            (m + 1.0) * xp.log(up / rest),
            (k + 0.5) * xp.log(r * rest / (k + 1.0)),
            _tail(xp, mode),
            _tail(xp, m - mode),
            -_tail(xp, k),
            -_tail(xp, m - k),
        ]
        right = terms[0]
        for term in terms[1:]:
            right = right + term
        return k, accepts_early | (in_range & (left <= right))

    return accept


@with_operators
def binomial(
    xp: ValueBackend, key: Value, counter: Value, shape: Shape, counts: Value, probability: Value, dtype: np.dtype
) -> Value:
    batch_shape = np.broadcast_shapes(counts.shape, probability.shape)
    count, n = math.prod(batch_shape), math.prod(shape)
    if not n:
        return xp.zeros(shape, dtype)
    counts, probability = (_repeated(xp, xp.broadcast_to(x, batch_shape), n // count) for x in (counts, probability))
    flipped = probability > 0.5
    p = xp.where(flipped, 1.0 - probability, probability)
    by_rejection = counts * p >= 10.0  # in the dtype that is given
    m, p, wide = xp.astype(counts, dtypes.float64), xp.astype(p, dtypes.float64), xp.astype(probability, dtypes.float64)
    is_zero = (m <= 0.0) | (wide <= 0.0)
    is_all = ~is_zero & (wide >= 1.0)
    fixed = is_zero | is_all | xp.isnan(wide)
    number = xp.iota(n, dtypes.uint64)
    spacing = xp.where(by_rejection, xp.full_like(number, RESERVED), xp.full_like(number, 42))
    s = Streams(xp, key, counter, number * spacing, dtypes.float64)
    q = xp.where(fixed, xp.full_like(p, 0.5), p)
    step_of = xp.log1p(-q)
    accept = _transformed_rejection(xp, m, q)

    def step(state: Any) -> Any:
        is_done, result, total, successes, at, buffer = state
        asking = ~is_done
        u, at, buffer = s.take(s.uniform, at, Buffer(*buffer), asking)
        total = total + xp.ceil(xp.log(u) / step_of)
        ends = total > m
        v, at, buffer = s.take(s.uniform, at, buffer, asking & by_rejection)
        k, accepted = accept(u, v)
        accepts_now = ~is_done & xp.where(by_rejection, accepted, ends)
        value = xp.where(by_rejection, k, successes)
        successes = successes + 1.0
        return *_accepts(xp, is_done, accepts_now, result, value), total, successes, at, tuple(buffer)

    zeros = xp.zeros_like(m)
    init = (fixed, zeros, zeros, zeros, s.start(), tuple(s.empty()))
    samples = _until_done(xp, step, init)[1]
    samples = xp.where(flipped, m - samples, samples)
    samples = xp.where(is_zero, zeros, xp.where(is_all, m, samples))
    samples = xp.where(xp.isnan(wide), xp.full_like(m, math.nan), samples)
    return _parameters_last(xp, xp.astype(samples, dtype), count, shape)


@rule("StatelessRandomBinomial", known=("shape",), folds=False)
def stateless_binomial(
    xp: Backend, shape: np.ndarray, seed: Array, counts: Array, probability: Array, *, dtype: np.dtype = dtypes.int64
) -> Array:
    return binomial(xp, *philox.key_and_counter(xp, seed), ints(shape), counts, probability, dtype)


@rule("StatefulRandomBinomial", known=("shape", "algorithm"), writes=True)
def stateful_binomial(
    xp: Backend,
    cell: VariableCell,
    algorithm: np.ndarray,
    shape: np.ndarray,
    counts: Array,
    probability: Array,
    *,
    dtype: np.dtype = dtypes.int64,
) -> Array:
    check_algorithm(algorithm)
    extents = ints(shape)
    batches = math.prod(np.broadcast_shapes(xp.shape(counts), xp.shape(probability)))
    row_size = math.prod(extents) // max(batches, 1)
    key, counter = reserve_numbers(xp, cell, batches * 2 * 100 * (row_size + 3) // 4 * RESERVED)
    return binomial(xp, key, counter, extents, counts, probability, dtype)


# ---- categories ------------------------------------------------------------------------------------------------------


def _categories(xp: Backend, key: Array, counter: Array, logits: Array, samples: int, dtype: np.dtype) -> Array:
    """Draw categories as one thread of TensorFlow's does, row by row."""
    batch, classes = xp.shape(logits)
    if not samples * batch:
        return xp.zeros((batch, samples), dtype)
    wide = xp.astype(logits, dtypes.float64)
    finite = xp.isfinite(wide)
    lowest = xp.full_like(wide, -math.inf)
    most = xp.max(xp.where(finite, wide, lowest), axis=1, keepdims=True)
    heights = xp.where(finite, xp.exp(xp.subtract(wide, most)), xp.zeros_like(wide))
    total = xp.cumsum(heights, axis=1)
    u = philox.uniform(xp, key, counter, (batch, samples), dtypes.float64)
    targets = xp.multiply(u, xp.take_slice(total, 1, classes - 1, classes))
    return xp.astype(xp.searchsorted(total, targets, right=True), dtype)


@rule("Multinomial", known=("samples",), writes=True)
def multinomial(
    xp: Backend, logits: Array, samples: np.ndarray, cell: VariableCell, *, output_dtype: np.dtype = dtypes.int64
) -> Array:
    n, batch = int(samples), xp.shape(logits)[0]
    key, counter = reserve_numbers(xp, cell, batch * (-(-n // 4) * 8) * RESERVED)
    return _categories(xp, key, counter, logits, n, output_dtype)


@rule("StatelessMultinomial", known=("samples",), folds=False)
def stateless_multinomial(
    xp: Backend, logits: Array, samples: np.ndarray, seed: Array, *, output_dtype: np.dtype = dtypes.int64
) -> Array:
    return _categories(xp, *philox.key_and_counter(xp, seed), logits, int(samples), output_dtype)
