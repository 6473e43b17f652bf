"""Ranges of the inputs that weights are multiplied with, for fixed scales; determined batch by batch on the host."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tensorgraft.quantization.activations import HIGH, LOW
from tensorgraft.quantization.observers import percentile_of
from tensorgraft.quantization.quantized import Quantized
from tensorgraft.quantization.scheme import Scheme

_BINS = 8192
_SHARES = np.geomspace(1.0, 0.01, 100)  # fractions of the whole range that "mse" tries
_LEAST = float(np.finfo(np.float32).tiny)  # scales below it have no reciprocal


class InputRange:
    """The range of the numbers of several batches.

    Arguments:
        observer: "minmax": all numbers. "percentile" (99.9) or, for example, "percentile_99.5": without the outermost
            magnitudes, or with a zero point without the outermost numbers on either side. "mse": the range with the
            least mean square error of rounding. The last two use a histogram of 8192 bins.
        with_zero: the range has a zero point, and need not be symmetric.
    """

    def __init__(self, observer: str, with_zero: bool) -> None:
        self.percent = percentile_of(observer, "activation_observer")
        self.observer, self.with_zero = observer, with_zero
        self.low = self.high = 0.0  # zero is always a code
        self.histogram = None if observer == "minmax" else _Histogram()

    def update(self, x: np.ndarray) -> None:
        """Extend the range by a batch of finite numbers, of any shape."""
        if x.size:
            self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))
            if self.histogram is not None:
                self.histogram.update(x)

    def scale_and_zero(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return float32 scalars: (scale, zero point or None)."""
        low, high = self.low, self.high
        if self.histogram is not None and self.percent is not None:
            below, above = self.histogram.outermost(self.percent / 100, self.with_zero)
            low, high = max(low, below), min(high, above)
        scale, zero = self._scale_and_zero_of(low, high)
        if self.histogram is not None and self.percent is None:
            errors = [self.histogram.error(scale * share, zero) for share in _SHARES]
            scale *= _SHARES[int(np.argmin(errors))]
        return np.asarray(max(scale, _LEAST), np.float32), np.asarray(zero, np.float32) if self.with_zero else None

    def _scale_and_zero_of(self, low: float, high: float) -> tuple[float, float]:
        if not self.with_zero:
            return (max(high, -low) / HIGH or 1.0), 0.0
        scale = (high - low) / (HIGH - LOW) or 1.0
        return scale, min(max(float(np.round(LOW - low / scale)), LOW), HIGH)


def range_of(scheme: Scheme, observer: str) -> InputRange | None:
    """Return an `InputRange` for the inputs of an array of a scheme, or None if the scheme has no fixed range."""
    return InputRange(observer, scheme.parts[-1] == "input_zero") if scheme.is_static else None


def with_range(q: Quantized, observed: InputRange | None) -> Quantized:
    """Return `q` with the scale (and zero point) of its inputs, as arrays of NumPy."""
    if observed is None:
        return q
    scale, zero = observed.scale_and_zero()
    return replace(q, input_scale=scale, input_zero=zero)


class _Histogram:
    """Counts of numbers in bins of equal width on both sides of zero; their width is doubled until all numbers are
    inside. Zeros, of which activations have many, are counted separately."""

    def __init__(self) -> None:
        self.counts = np.zeros(_BINS)
        self.zeros = 0
        self.reach = 0.0  # the bins divide (-reach, reach)

    def update(self, x: np.ndarray) -> None:
        values = x.reshape(-1).astype(np.float64)
        values = values[values != 0]
        self.zeros += x.size - values.size
        if not values.size:
            return
        most = float(np.abs(values).max())
        if not self.reach:
            self.reach = 2.0 ** math.ceil(math.log2(most))
        while self.reach < most:
            pairs = self.counts.reshape(-1, 2).sum(1)
            self.counts = np.pad(pairs, _BINS // 4)
            self.reach *= 2
        bins = np.floor((values / self.reach + 1) * (_BINS // 2)).astype(np.int64)
        self.counts += np.bincount(np.clip(bins, 0, _BINS - 1), minlength=_BINS)

    def outermost(self, part: float, with_zero: bool) -> tuple[float, float]:
        """Return (low, high) that contain a fraction `part` of the numbers, by the same definition of percentiles as
        `observers`."""
        half = _BINS // 2
        counts = self.counts.copy()
        counts[half] += self.zeros
        width = self.reach / half
        rank = math.ceil(part * (counts.sum() - 1))
        if not with_zero:
            magnitudes = counts[half:] + counts[:half][::-1]
            high = (int(np.searchsorted(np.cumsum(magnitudes), rank, "right")) + 1) * width
            return -high, high
        above = int(np.searchsorted(np.cumsum(counts), rank, "right")) + 1
        below = int(np.searchsorted(np.cumsum(counts[::-1]), rank, "right")) + 1
        return (half - below) * width, (above - half) * width

    def error(self, scale: float, zero: float) -> float:
        """Return the sum of squared errors of rounding to int8 codes."""
        middles = (np.arange(_BINS) + 0.5) * (2 * self.reach / _BINS) - self.reach
        rounded = (np.clip(np.round(middles / scale) + zero, LOW, HIGH) - zero) * scale
        return float((self.counts * (rounded - middles) ** 2).sum())
