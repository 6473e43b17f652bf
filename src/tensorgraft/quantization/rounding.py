"""GPTQ: rounding column by column, each error being compensated in the columns that follow (Frantar et al., arXiv
2210.17323). Computed once, on the host in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.hub import registry
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization.observers import observed
from tensorgraft.quantization.quantized import Quantized
from tensorgraft.quantization.recorded_weight import Product
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.storage import contiguous_geometry

_TOGETHER = 128  # columns whose errors are applied to later columns in one product


def check_damping(name: str, damping: float) -> None:
    if not 0 < damping < np.inf:
        raise ValueError(f"{name}: expected damping greater than 0, got {damping}")


class Moments:
    """The sum of the second moments of a weight's inputs: x.T @ x in float64."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.axis: int | None = None  # the contracted axis of the weight
        self.total = np.zeros((0, 0))

    def update(self, product: Product) -> str | None:
        """Add the inputs of a product. Return an error message if GPTQ cannot use them, else None."""
        at = product.columns
        if len(self.shape) != 2 or product.axis is None or at is None:
            return f"GPTQ rounds weights of two axes, one of which products add up along; this one is {self.shape}"
        if self.axis is None:
            self.axis = product.axis
            self.total = np.zeros((self.shape[self.axis],) * 2)
        if product.axis != self.axis:
            return "products add up along the one and along the other axis of the weight, and GPTQ rounds along one"
        x = product.inputs.astype(np.float64)
        moments = x.T @ x
        if len(at) == len(self.total) and (at[1:] > at[:-1]).all():
            self.total += moments
        else:
            np.add.at(self.total, np.ix_(at, at), moments)
        return None


def rounded(w: np.ndarray, moments: Moments, scheme: Scheme, damping: float, observer: str) -> Quantized:
    """Round a weight by GPTQ, to arrays of NumPy's backend. Raises ValueError for values that are not finite."""
    xp = registry.get("numpy")
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(w.astype(np.float32)).all()
    if not is_finite:
        raise ValueError(
            f"the {w.dtype} weight of shape {w.shape} has NaN or infinite values, or values out of range of float32"
        )
    block, dtype = scheme.blocks(w.shape), w.dtype
    if moments.axis == 0:
        w, block = w.T, block[::-1]
    codes, scale, zero = _rounded(xp, w, moments.total, scheme, block, damping, observer)
    if moments.axis == 0:
        codes, scale, zero = (None if a is None else np.ascontiguousarray(a.T) for a in (codes, scale, zero))
    shape = codes.shape
    return Quantized(scheme.codes.pack(xp, codes), scale, zero, shape, contiguous_geometry(shape, dtype), scheme)


def _rounded(
    xp: Backend,
    w: np.ndarray,
    moments: np.ndarray,
    scheme: Scheme,
    block: tuple[int, ...],
    damping: float,
    observer: str,
) -> tuple[Any, Any, Any]:
    """Return (codes (N, K), scales and zero points of every block)."""
    (n, k), codes = w.shape, scheme.codes
    rows, columns = block
    left = w.astype(np.float64)
    upper = _inverse_root(moments, damping)
    levels = np.zeros((n, k), codes.dtype)
    scales: list[Any] = []
    zeros: list[Any] = []
    for start in range(0, k, _TOGETHER):
        stop = min(start + _TOGETHER, k)
        errors = np.zeros((n, stop - start))
        for i in range(start, stop):
            if i % columns == 0:  # a group begins: its range is that of its compensated values
                columns_ahead = slice(i, i + columns)
                pending = errors[:, : i - start] @ upper[start:i, columns_ahead]
                pending[:, : max(stop - i, 0)] = 0  # applied to these columns already
                corrected = (left[:, columns_ahead] - pending).astype(np.float32)
                ranges: Any = observed(xp, corrected, scheme, (rows, columns), observer)
                scale, zero = ranges
                scales.append(scale)
                zeros.append(zero)
                wide = np.repeat(scale[:, 0], rows)
                middle = 0.0 if zero is None else np.repeat(zero[:, 0], rows) * (-1.0 / wide if scheme.offset else 1.0)
            code: Any = codes.encode(xp, (left[:, i] / wide + middle).astype(np.float32))
            levels[:, i] = code
            level: Any = codes.decode(xp, code)
            value = (level.astype(np.float64) - middle) * wide
            errors[:, i - start] = (left[:, i] - value) / upper[i, i]
            left[:, i:stop] -= errors[:, i - start, None] * upper[i, i:stop]
        left[:, stop:] -= errors @ upper[start:stop, stop:]
    return levels, np.concatenate(scales, 1), None if zeros[0] is None else np.concatenate(zeros, 1)


def _inverse_root(moments: np.ndarray, damping: float) -> np.ndarray:
    """Upper triangular U with U.T @ U the inverse of the damped moments; an input that is always 0 counts as 1."""
    h = moments.copy()
    diagonal = np.einsum("ii->i", h)
    diagonal[diagonal == 0] = 1.0
    diagonal += damping * diagonal.mean()
    return np.linalg.cholesky(np.linalg.inv(h)).T
