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
from tensorgraft.frontends.tensorflow.rules.random.seeded import RESERVED, check_algorithm, taken
from tensorgraft.frontends.tensorflow.values import VariableCell
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

Shape = tuple[int, ...]
Draw = Callable[[Array], Array]


class Buffer(NamedTuple):
    """The current block of each number, and how many of its values are left."""

    values: Array  # (n, m)
    left: Array  # (n,) int32


class Streams:
    """A stretch of a counter for each of n numbers: `first` (n,) says where it begins."""

    def __init__(self, xp: Backend, key: Array, counter: Array, first: Array, dtype: np.dtype) -> None:
        self.xp, self.key, self.counter, self.first, self.dtype = xp, key, counter, first, dtype
        self.each = 2 if dtype == dtypes.float64 else 4

    def _words(self, at: Array) -> Array:
        w = philox.words_at(self.xp, self.key, self.counter, self.xp.add(self.first, at))
        return philox.doubled(self.xp, w) if self.each == 2 else w

    def uniform(self, at: Array) -> Array:
        return philox.unit(self.xp, self._words(at), self.dtype)

    def normal(self, at: Array) -> Array:
        return philox.box_muller(self.xp, self._words(at), self.dtype)

    def start(self) -> Array:
        return self.xp.zeros(self.xp.shape(self.first), dtypes.uint64)

    def empty(self) -> Buffer:
        n = self.xp.shape(self.first)[0]
        return Buffer(self.xp.zeros((n, self.each), self.dtype), self.xp.zeros((n,), dtypes.int32))

    def take(self, draw: Draw, at: Array, buffer: Buffer, asked: Array) -> tuple[Array, Array, Buffer]:
        """Return (a number for each that asks, its position in the counter, the buffer after it)."""
        xp = self.xp
        fresh = xp.logical_and(asked, xp.equal(buffer.left, 0))
        values = xp.where(xp.expand_dims(fresh, 1), draw(at), buffer.values)
        left = xp.where(fresh, xp.full_like(buffer.left, self.each), buffer.left)
        left = xp.subtract(left, xp.astype(asked, dtypes.int32))
        number = xp.squeeze(xp.take_along_axis(values, xp.expand_dims(xp.astype(left, dtypes.int64), 1), 1), 1)
        return number, xp.add(at, xp.astype(fresh, dtypes.uint64)), Buffer(values, left)


def _until_done(xp: Backend, step: Callable[[Any], Any], init: tuple[Any, ...]) -> Any:
    """Run `step` until all of the state's first part, which says who is done, is true."""
    return xp.while_loop(lambda s: xp.logical_not(xp.all(s[0])), step, init)


def _spread(xp: Backend, x: Array, each: int) -> Array:
    """A parameter for each number: `each` numbers in a row have the same."""
    n = xp.size(x)
    return xp.reshape(xp.broadcast_to(xp.reshape(x, (n, 1)), (n, each)), (n * each,))


def _arranged(xp: Backend, drawn: Array, count: int, shape: Shape) -> Array:
    """Numbers, drawn parameter by parameter, with parameters last."""
    rows = xp.reshape(drawn, (count, xp.size(drawn) // count))
    return xp.reshape(xp.permute_dims(rows, (1, 0)), shape)


def _firsts(xp: Backend, n: int, apart: int = RESERVED) -> Array:
    return xp.multiply(xp.iota(n, dtypes.uint64), xp.full((), apart, dtypes.uint64))


def _accepts(xp: Backend, done: Array, now: Array, old: Array, new: Array) -> tuple[Array, Array]:
    return xp.logical_or(done, now), xp.where(now, new, old)


# ---- gamma -----------------------------------------------------------------------------------------------------------


def gamma(xp: Backend, key: Array, counter: Array, shape: Shape, alpha: Array) -> Array:
    count, dtype = xp.size(alpha), xp.dtype_of(alpha)
    n = math.prod(shape)
    if not n:
        return xp.zeros(shape, dtype)
    a = _spread(xp, xp.astype(alpha, dtypes.float64), n // count)
    s = Streams(xp, key, counter, _firsts(xp, n), dtypes.float64)
    small, one = xp.less(a, 1.0), xp.equal(a, 1.0)
    d = xp.add(a, xp.where(small, xp.full_like(a, 2 / 3), xp.full_like(a, -1 / 3)))
    c = xp.divide(xp.full_like(d, 1 / 3), xp.sqrt(d))
    simple = xp.negative(xp.log1p(xp.negative(xp.squeeze(xp.take_slice(s.uniform(s.start()), 1, 1, 2), 1))))

    def step(state: Any) -> Any:
        done, result, at, normals, uniforms = state
        normals, uniforms = Buffer(*normals), Buffer(*uniforms)
        asked = xp.logical_not(done)
        x, at, normals = s.take(s.normal, at, normals, asked)
        v = xp.add(xp.multiply(c, x), 1.0)
        asked = xp.logical_and(asked, xp.greater(v, 0.0))
        v = xp.multiply(xp.multiply(v, v), v)
        u, at, uniforms = s.take(s.uniform, at, uniforms, asked)
        square = xp.multiply(x, x)
        quick = xp.less(u, xp.subtract(1.0, xp.multiply(xp.multiply(square, 0.0331), square)))
        safe = xp.where(asked, v, xp.ones_like(v))
        bound = xp.add(xp.multiply(square, 0.5), xp.multiply(d, xp.add(xp.subtract(1.0, safe), xp.log(safe))))
        now = xp.logical_and(asked, xp.logical_or(quick, xp.less(xp.log(u), bound)))
        b, at, uniforms = s.take(s.uniform, at, uniforms, xp.logical_and(now, small))
        value = xp.multiply(d, v)
        value = xp.where(small, xp.multiply(value, xp.pow(b, xp.divide(xp.ones_like(a), a))), value)
        return *_accepts(xp, done, now, result, value), at, tuple(normals), tuple(uniforms)

    init = (xp.logical_or(one, xp.isnan(a)), xp.where(one, simple, xp.full_like(a, math.nan)), s.start())
    result = _until_done(xp, step, (*init, tuple(s.empty()), tuple(s.empty())))[1]
    return _arranged(xp, xp.astype(result, dtype), count, shape)


@rule("RandomGamma", known=("shape",), writes=True)
def random_gamma(xp: Backend, shape: np.ndarray, alpha: Array, cell: VariableCell) -> Array:
    extents = (*ints(shape), *xp.shape(alpha))
    return gamma(xp, *taken(xp, cell, math.prod(extents) * RESERVED), extents, alpha)


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


def poisson(xp: Backend, key: Array, counter: Array, shape: Shape, rate: Array, dtype: np.dtype) -> Array:
    count, n = xp.size(rate), math.prod(shape)
    if not n:
        return xp.zeros(shape, dtype)
    wide = dtypes.float64
    r = _spread(xp, xp.astype(rate, wide), n // count)
    s = Streams(xp, key, counter, _firsts(xp, n), wide)
    good = xp.logical_and(xp.isfinite(r), xp.greater_equal(r, 0.0))
    r = xp.where(good, r, xp.ones_like(r))
    small = xp.less(r, 10.0)
    least = xp.exp(xp.negative(r))
    large = xp.where(small, xp.full_like(r, 10.0), r)
    log_rate = xp.log(large)
    b = xp.add(xp.multiply(xp.sqrt(large), 2.53), 0.931)
    a = xp.add(xp.multiply(b, 0.02483), -0.059)
    inverse = xp.add(xp.divide(xp.full_like(b, 1.1328), xp.subtract(b, 3.4)), 1.1239)
    box = xp.subtract(0.9277, xp.divide(xp.full_like(b, 3.6224), xp.subtract(b, 2.0)))

    def step(state: Any) -> Any:
        done, result, product, found, at, buffer = state
        asked = xp.logical_not(done)
        u, at, buffer = s.take(s.uniform, at, Buffer(*buffer), asked)
        product = xp.where(xp.logical_and(asked, small), xp.multiply(product, u), product)
        ends = xp.logical_and(small, xp.less_equal(product, least))
        asked = xp.logical_and(asked, xp.logical_not(small))
        v, at, buffer = s.take(s.uniform, at, buffer, asked)
        u = xp.subtract(u, 0.5)
        shifted = xp.subtract(0.5, xp.abs(u))
        k = xp.multiply(xp.add(xp.divide(xp.multiply(a, 2.0), shifted), b), u)
        k = xp.floor(xp.add(xp.add(k, large), 0.43))
        quick = xp.logical_and(xp.greater_equal(shifted, 0.07), xp.less_equal(v, box))
        never = xp.logical_and(xp.less(shifted, 0.013), xp.greater(v, shifted))
        never = xp.logical_or(xp.less(k, 0.0), never)
        ratio = xp.add(xp.divide(a, xp.multiply(shifted, shifted)), b)
        left = xp.log(xp.divide(xp.multiply(v, inverse), ratio))
        k1 = xp.add(xp.maximum(k, xp.zeros_like(k)), 1.0)
        right = xp.subtract(xp.add(xp.negative(large), xp.multiply(k, log_rate)), xp.lgamma(k1))
        accepted = xp.logical_or(quick, xp.logical_and(xp.logical_not(never), xp.less_equal(left, right)))
        value = xp.where(small, found, k)
        now = xp.logical_and(xp.logical_not(done), xp.where(small, ends, accepted))
        found = xp.add(found, 1.0)
        return *_accepts(xp, done, now, result, value), product, found, at, tuple(buffer)

    done, nan = xp.logical_not(good), xp.full_like(r, math.nan)
    init = (done, nan, xp.ones_like(r), xp.zeros_like(r), s.start(), tuple(s.empty()))
    return _arranged(xp, xp.astype(_until_done(xp, step, init)[1], dtype), count, shape)


@rule("RandomPoissonV2", "RandomPoisson", known=("shape",), writes=True)
def random_poisson(
    xp: Backend, shape: np.ndarray, rate: Array, cell: VariableCell, *, dtype: np.dtype = dtypes.int64
) -> Array:
    extents = (*ints(shape), *xp.shape(rate))
    return poisson(xp, *taken(xp, cell, math.prod(extents) * RESERVED), extents, rate, dtype)


@rule("StatelessRandomPoisson", known=("shape",), folds=False)
def stateless_poisson(xp: Backend, shape: np.ndarray, seed: Array, rate: Array, *, dtype: np.dtype) -> Array:
    return poisson(xp, *philox.key_and_counter(xp, seed), ints(shape), rate, dtype)


# ---- binomial --------------------------------------------------------------------------------------------------------

# what Stirling's formula leaves of log(k!), for k up to 9
_TAILS = (
    0.0810614667953272, 0.0413406959554092, 0.0276779256849983, 0.02079067210376509, 0.0166446911898211,
    0.0138761288230707, 0.0118967099458917, 0.0104112652619720, 0.00925546218271273, 0.00833056343336287,
)  # fmt: skip


def _tail(xp: Backend, k: Array) -> Array:
    square = xp.square(xp.add(k, 1.0))
    series = xp.divide(xp.subtract(1 / 360, xp.divide(xp.full_like(k, 1 / 1260), square)), square)
    far = xp.divide(xp.subtract(1 / 12, series), xp.add(k, 1.0))
    near = xp.take(xp.asarray(np.asarray(_TAILS)), xp.astype(xp.clip(k, 0.0, 9.0), dtypes.int64), 0)
    return xp.where(xp.less_equal(k, 9.0), near, far)


def binomial(
    xp: Backend, key: Array, counter: Array, shape: Shape, counts: Array, odds: Array, dtype: np.dtype
) -> Array:
    lead = np.broadcast_shapes(xp.shape(counts), xp.shape(odds))
    count, n = math.prod(lead), math.prod(shape)
    if not n:
        return xp.zeros(shape, dtype)
    counts, odds = (_spread(xp, xp.broadcast_to(x, lead), n // count) for x in (counts, odds))
    flipped = xp.greater(odds, 0.5)
    p = xp.where(flipped, xp.subtract(1.0, odds), odds)
    many = xp.greater_equal(xp.multiply(counts, p), 10.0)  # in the dtype that is given
    m, p, wide = xp.astype(counts, dtypes.float64), xp.astype(p, dtypes.float64), xp.astype(odds, dtypes.float64)
    never = xp.logical_or(xp.less_equal(m, 0.0), xp.less_equal(wide, 0.0))
    always = xp.logical_and(xp.logical_not(never), xp.greater_equal(wide, 1.0))
    fixed = xp.logical_or(xp.logical_or(never, always), xp.isnan(wide))
    number = xp.iota(n, dtypes.uint64)
    apart = xp.where(many, xp.full_like(number, RESERVED), xp.full_like(number, 42))
    s = Streams(xp, key, counter, xp.multiply(number, apart), dtypes.float64)
    q = xp.where(fixed, xp.full_like(p, 0.5), p)
    step_of = xp.log1p(xp.negative(q))
    r = xp.divide(q, xp.subtract(1.0, q))
    deviation = xp.sqrt(xp.multiply(xp.multiply(m, q), xp.subtract(1.0, q)))
    b = xp.add(xp.multiply(deviation, 2.53), 1.15)
    a = xp.add(xp.add(xp.multiply(b, 0.0248), -0.0873), xp.multiply(q, 0.01))
    c = xp.add(xp.multiply(m, q), 0.5)
    box = xp.subtract(0.92, xp.divide(xp.full_like(b, 4.2), b))
    alpha = xp.multiply(xp.add(xp.divide(xp.full_like(b, 5.1), b), 2.83), deviation)
    mode = xp.floor(xp.multiply(xp.add(m, 1.0), q))

    def step(state: Any) -> Any:
        done, result, total, found, at, buffer = state
        asked = xp.logical_not(done)
        u, at, buffer = s.take(s.uniform, at, Buffer(*buffer), asked)
        total = xp.add(total, xp.ceil(xp.divide(xp.log(u), step_of)))
        ends = xp.greater(total, m)
        v, at, buffer = s.take(s.uniform, at, buffer, xp.logical_and(asked, many))
        u = xp.subtract(u, 0.5)
        shifted = xp.subtract(0.5, xp.abs(u))
        k = xp.floor(xp.add(xp.multiply(xp.add(xp.divide(xp.multiply(a, 2.0), shifted), b), u), c))
        quick = xp.logical_and(xp.greater_equal(shifted, 0.07), xp.less_equal(v, box))
        inside = xp.logical_and(xp.greater_equal(k, 0.0), xp.less_equal(k, m))
        k = xp.where(inside, k, xp.zeros_like(k))
        ratio = xp.add(xp.divide(a, xp.multiply(shifted, shifted)), b)
        left = xp.log(xp.divide(xp.multiply(v, alpha), ratio))
        up, rest = xp.add(xp.subtract(m, mode), 1.0), xp.add(xp.subtract(m, k), 1.0)
        terms = [
            xp.multiply(xp.add(mode, 0.5), xp.log(xp.divide(xp.add(mode, 1.0), xp.multiply(r, up)))),
            xp.multiply(xp.add(m, 1.0), xp.log(xp.divide(up, rest))),
            xp.multiply(xp.add(k, 0.5), xp.log(xp.divide(xp.multiply(r, rest), xp.add(k, 1.0)))),
            _tail(xp, mode),
            _tail(xp, xp.subtract(m, mode)),
            xp.negative(_tail(xp, k)),
            xp.negative(_tail(xp, xp.subtract(m, k))),
        ]
        right = terms[0]
        for term in terms[1:]:
            right = xp.add(right, term)
        accepted = xp.logical_or(quick, xp.logical_and(inside, xp.less_equal(left, right)))
        now = xp.logical_and(xp.logical_not(done), xp.where(many, accepted, ends))
        value = xp.where(many, k, found)
        found = xp.add(found, 1.0)
        return *_accepts(xp, done, now, result, value), total, found, at, tuple(buffer)

    zeros = xp.zeros_like(m)
    init = (fixed, zeros, zeros, zeros, s.start(), tuple(s.empty()))
    drawn = _until_done(xp, step, init)[1]
    drawn = xp.where(flipped, xp.subtract(m, drawn), drawn)
    drawn = xp.where(never, zeros, xp.where(always, m, drawn))
    drawn = xp.where(xp.isnan(wide), xp.full_like(m, math.nan), drawn)
    return _arranged(xp, xp.astype(drawn, dtype), count, shape)


@rule("StatelessRandomBinomial", known=("shape",), folds=False)
def stateless_binomial(
    xp: Backend, shape: np.ndarray, seed: Array, counts: Array, odds: Array, *, dtype: np.dtype = dtypes.int64
) -> Array:
    return binomial(xp, *philox.key_and_counter(xp, seed), ints(shape), counts, odds, dtype)


@rule("StatefulRandomBinomial", known=("shape", "algorithm"), writes=True)
def stateful_binomial(
    xp: Backend,
    cell: VariableCell,
    algorithm: np.ndarray,
    shape: np.ndarray,
    counts: Array,
    odds: Array,
    *,
    dtype: np.dtype = dtypes.int64,
) -> Array:
    check_algorithm(algorithm)
    extents = ints(shape)
    batches = math.prod(np.broadcast_shapes(xp.shape(counts), xp.shape(odds)))
    each = math.prod(extents) // max(batches, 1)
    key, counter = taken(xp, cell, batches * 2 * 100 * (each + 3) // 4 * RESERVED)
    return binomial(xp, key, counter, extents, counts, odds, dtype)


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
    wanted = xp.multiply(u, xp.take_slice(total, 1, classes - 1, classes))
    return xp.astype(xp.searchsorted(total, wanted, right=True), dtype)


@rule("Multinomial", known=("samples",), writes=True)
def multinomial(
    xp: Backend, logits: Array, samples: np.ndarray, cell: VariableCell, *, output_dtype: np.dtype = dtypes.int64
) -> Array:
    n, batch = int(samples), xp.shape(logits)[0]
    key, counter = taken(xp, cell, batch * (-(-n // 4) * 8) * RESERVED)
    return _categories(xp, key, counter, logits, n, output_dtype)


@rule("StatelessMultinomial", known=("samples",), folds=False)
def stateless_multinomial(
    xp: Backend, logits: Array, samples: np.ndarray, seed: Array, *, output_dtype: np.dtype = dtypes.int64
) -> Array:
    return _categories(xp, *philox.key_and_counter(xp, seed), logits, int(samples), output_dtype)
