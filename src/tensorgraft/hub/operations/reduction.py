"""Reductions and scans along axes.

`axis` is None (all axes), an int or a tuple of ints, negative ones counted from the end. The result has the operand's
dtype; floating sums and products accumulate in at least float32. Over nothing, a reduction gives its identity.
"""

from __future__ import annotations

import math

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.primitive import primitive, shape_query

Axis = int | tuple[int, ...] | None


class Reduction:
    @primitive
    def sum(self, x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
        raise NotImplementedError

    @primitive
    def prod(self, x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
        raise NotImplementedError

    @primitive
    def max(self, x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
        """Return the greatest value; NaN wins; over nothing `dtypes.lowest`. bool, integer, floating."""
        raise NotImplementedError

    @primitive
    def min(self, x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
        """Return the least value; NaN wins; over nothing `dtypes.highest`. bool, integer, floating."""
        raise NotImplementedError

    @primitive
    def any(self, x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
        """bool -> bool."""
        raise NotImplementedError

    @primitive
    def all(self, x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
        """bool -> bool."""
        raise NotImplementedError

    @primitive
    def argmax(self, x: Array, /, axis: int, keepdims: bool = False) -> Array:
        """Return int64 position of the first greatest value, or of the first NaN. The axis is not empty."""
        raise NotImplementedError

    @primitive
    def argmin(self, x: Array, /, axis: int, keepdims: bool = False) -> Array:
        raise NotImplementedError

    @primitive
    def cumsum(self, x: Array, /, axis: int) -> Array:
        """Inclusive; for `x` of at least one dimension, like all scans."""
        raise NotImplementedError

    @primitive
    def cumprod(self, x: Array, /, axis: int) -> Array:
        raise NotImplementedError

    @primitive
    def cummax(self, x: Array, /, axis: int) -> Array:
        """NaN wins from where it occurs."""
        raise NotImplementedError

    @primitive
    def cummin(self, x: Array, /, axis: int) -> Array:
        raise NotImplementedError

    # ---- composites ------------------------------------------------------------------------------------------------

    @shape_query
    def count(self, x: Array, axis: Axis = None) -> int:
        """Return the number of elements that one result of a reduction of `x` over `axis` sees."""
        shape = self.shape(x)
        if axis is None:
            return math.prod(shape)
        return math.prod([shape[a] for a in ((axis,) if isinstance(axis, int) else axis)])

    def mean(self, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        """Floating or complex; NaN over nothing. Accumulated in at least float32."""
        dtype = self.dtype_of(x)
        wide = self.astype(x, dtypes.accumulator(dtype))
        total = self.sum(wide, axis=axis, keepdims=keepdims)
        n = self.count(x, axis)
        return self.astype(self.divide(total, n) if n else self.divide(total, self.zeros_like(total)), dtype)

    def var(self, x: Array, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Array:
        """Floating or complex (then real); NaN where there are no more elements than `correction`."""
        dtype = dtypes.real_dtype(self.dtype_of(x))
        wide = self.astype(x, dtypes.accumulator(self.dtype_of(x)))
        centred = self.subtract(wide, self.mean(wide, axis=axis, keepdims=True))
        if dtypes.is_complex(self.dtype_of(x)):
            squares = self.add(self.square(self.real(centred)), self.square(self.imag(centred)))
        else:
            squares = self.square(centred)
        total = self.sum(squares, axis=axis, keepdims=keepdims)
        n = max(self.count(x, axis) - correction, 0)
        return self.astype(self.divide(total, n if n else self.zeros_like(total)), dtype)

    def logsumexp(self, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        high = self.max(x, axis=axis, keepdims=True)
        high = self.where(self.isfinite(high), high, self.zeros_like(high))
        total = self.log(self.sum(self.exp(self.subtract(x, high)), axis=axis, keepdims=True))
        out = self.add(total, high)
        if keepdims:
            return out
        axes = range(self.ndim(x)) if axis is None else (axis,) if isinstance(axis, int) else axis
        return self.squeeze(out, tuple(axes))

    def softmax(self, x: Array, axis: int) -> Array:
        exps = self.exp(self.subtract(x, self.max(x, axis=axis, keepdims=True)))
        return self.divide(exps, self.sum(exps, axis=axis, keepdims=True))

    def log_softmax(self, x: Array, axis: int) -> Array:
        shifted = self.subtract(x, self.max(x, axis=axis, keepdims=True))
        return self.subtract(shifted, self.log(self.sum(self.exp(shifted), axis=axis, keepdims=True)))

    def running_extreme(self, x: Array, axis: int, largest: bool = True) -> tuple[Array, Array]:
        """Return (`cummax` or `cummin`, the int64 position of each: of equal ones the last, and of NaN)."""
        extreme = self.cummax(x, axis=axis) if largest else self.cummin(x, axis=axis)
        is_extreme = self.equal(x, extreme)
        if dtypes.is_floating(self.dtype_of(x)):
            is_extreme = self.logical_or(is_extreme, self.isnan(x))
        shape = self.shape(x)
        narrow = dtypes.int32 if shape[axis] < 2**31 else dtypes.int64  # half as much to pass over
        along = tuple(n if a == axis % len(shape) else 1 for a, n in enumerate(shape))
        positions = self.reshape(self.iota(shape[axis], narrow), along)
        last = self.cummax(self.where(is_extreme, positions, self.zeros_like(positions)), axis=axis)
        return extreme, self.astype(last, dtypes.int64)

    def cumlogsumexp(self, x: Array, axis: int) -> Array:
        """Compute log(cumsum(exp(x))), stabilised by the running maximum (an associative scan of logaddexp)."""
        join = self._complex_logaddexp if dtypes.is_complex(self.dtype_of(x)) else self.logaddexp
        n = self.shape(x)[axis]
        step = 1
        while step < n:  # Hillis and Steele 1986: log2(n) rounds
            front = self.take_slice(x, axis, 0, step)
            rest = join(self.take_slice(x, axis, step, n), self.take_slice(x, axis, 0, n - step))
            x = self.concat([front, rest], axis=axis)
            step *= 2
        return x

    def _complex_logaddexp(self, x: Array, y: Array) -> Array:
        """Compute log(exp(x) + exp(y)), with an imaginary part near that of the operand with the greater real part."""
        a, b = self.real(x), self.real(y)
        first = self.logical_or(
            self.greater(a, b), self.logical_and(self.equal(a, b), self.greater(self.imag(x), self.imag(y)))
        )
        high, low = self.where(first, x, y), self.where(first, y, x)
        return self.add(high, self.log1p(self.exp(self.subtract(low, high))))
