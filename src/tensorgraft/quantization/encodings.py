"""Encodings: the number that a code represents before it is scaled, and the layout of codes in memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

# NormalFloat4: quantiles of the normal distribution (Dettmers et al., "QLoRA", arXiv 2305.14314, appendix E)
NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)


@dataclass(frozen=True)
class Encoding:
    """Codes of `bits` bits. A value is (decoded code - zero point) * scale."""

    name: str
    bits: int
    kind: str  # "integer", "float", "table"
    signed: bool = True
    table: tuple[float, ...] = ()  # the number of each code

    @property
    def low(self) -> int:
        return -(1 << self.bits - 1) if self.signed else 0

    @property
    def high(self) -> int:
        return (1 << self.bits - 1) - 1 if self.signed else (1 << self.bits) - 1

    @property
    def dtype(self) -> np.dtype:
        """The dtype of codes that are not packed."""
        if self.kind == "float":
            return np.dtype(getattr(dtypes, self.name))
        return dtypes.int8 if self.kind == "integer" and self.signed else dtypes.uint8

    @property
    def largest(self) -> float:
        """The greatest magnitude before scaling."""
        if self.kind == "table":
            return max(map(abs, self.table))
        return _largest(self.name) if self.kind == "float" else float(self.high)

    @property
    def packed(self) -> int:
        """The number of codes that share a byte."""
        return 8 // self.bits if self.kind != "float" and self.bits in (1, 2, 4) else 1

    def encode(self, xp: Backend, x: Array) -> Array:
        """Return the codes nearest to `x`: float32 values divided by the scale, with the zero point added."""
        if self.kind == "integer":
            return xp.astype(xp.clip(xp.round(x), float(self.low), float(self.high)), self.dtype)
        if self.kind == "float":
            return xp.astype(xp.clip(x, -self.largest, self.largest), self.dtype)
        middles, codes = _ascending(self.table, self.name.startswith("float"))
        rank = xp.astype(xp.searchsorted(xp.asarray(middles), x), dtypes.int32)
        if codes is None:
            return xp.astype(rank, self.dtype)
        return xp.gather(xp.asarray(codes), (rank,))

    def decode(self, xp: Backend, codes: Array) -> Array:
        """Return the float32 values of codes, before they are scaled."""
        if self.kind == "table":
            return xp.gather(xp.asarray(np.array(self.table, np.float32)), (xp.astype(codes, dtypes.int32),))
        return xp.astype(codes, dtypes.float32)

    def all_codes(self) -> np.ndarray:
        """Return every code, in `dtype`, in the order of their bytes."""
        count = len(self.table) if self.kind == "table" else 1 << self.bits
        return np.arange(count, dtype=np.uint8).view(self.dtype)

    # ---- memory ------------------------------------------------------------------------------------------------------

    def pack(self, xp: Backend, codes: Array) -> Array:
        """Return codes of any shape as bytes (n,), with the first code of a byte in its lowest bits; codes of 8 bits
        are returned unchanged."""
        if self.packed == 1:
            return codes
        n = xp.size(codes)
        flat = xp.reshape(xp.astype(codes, dtypes.uint8), (n,))
        rest = -n % self.packed
        if rest:
            flat = xp.pad(flat, 0, [(0, rest, 0)])
        lanes = xp.reshape(flat, ((n + rest) // self.packed, self.packed))
        mask = (1 << self.bits) - 1
        packed: Any = None
        for lane in range(self.packed):
            part = xp.bitwise_and(xp.squeeze(xp.take_slice(lanes, 1, lane, lane + 1), 1), mask)
            part = part if not lane else xp.bitwise_left_shift(part, xp.full((), lane * self.bits, dtypes.uint8))
            packed = part if packed is None else xp.bitwise_or(packed, part)
        return packed

    def unpack(self, xp: Backend, packed: Array, shape: tuple[int, ...]) -> Array:
        """Return the codes in packed bytes, as an array of `shape` and `dtype`."""
        if self.packed == 1:
            return packed
        n = 1
        for extent in shape:
            n *= extent
        mask = (1 << self.bits) - 1
        lanes = [
            xp.bitwise_and(
                packed if not lane else xp.bitwise_right_shift(packed, xp.full((), lane * self.bits, dtypes.uint8)),
                mask,
            )
            for lane in range(self.packed)
        ]
        flat = xp.reshape(xp.stack(lanes, axis=1), (xp.size(packed) * self.packed,))
        if xp.size(flat) != n:
            flat = xp.slice(flat, (0,), (n,), (1,))
        codes = xp.reshape(flat, shape)
        if self.dtype == dtypes.uint8:
            return codes
        sign = 1 << self.bits - 1
        wide = xp.astype(codes, dtypes.int8)
        return xp.subtract(xp.bitwise_xor(wide, sign), sign)


@functools.cache
def _largest(name: str) -> float:
    return float(ml_dtypes.finfo(getattr(ml_dtypes, name)).max)


@functools.cache
def _ascending(table: tuple[float, ...], to_even: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """Return (float32 midpoints between the entries of a table in ascending order, the uint8 code of each position, or
    None if it equals the position). A midpoint is rounded to the lower number, or for floats to the even code."""
    values = np.array(table, np.float32)
    known = {float(v): code for code, v in reversed(list(enumerate(values.tolist())))}  # 0.0, not -0.0
    codes = np.array([known[v] for v in sorted(known)], np.uint8)
    middles = (values[codes[1:]] + values[codes[:-1]]) / 2
    if to_even:
        middles = np.where(codes[1:] % 2 < codes[:-1] % 2, np.nextafter(middles, np.float32(-np.inf)), middles)
    return middles, None if np.array_equal(codes, np.arange(len(table))) else codes


def _small_float(name: str, bits: int) -> Encoding:
    """Return a float encoding of the OCP Microscaling Formats Specification 1.0 that no backend has as a dtype, as a
    table of its codes; the highest bit is the sign."""
    codes = np.arange(1 << bits, dtype=np.uint8).view(np.dtype(getattr(ml_dtypes, f"{name}fn")))
    return Encoding(name, bits, "table", table=tuple(codes.astype(np.float32).tolist()))


def is_table(table: tuple[float, ...]) -> bool:
    return 2 <= len(table) <= 256 and bool(np.isfinite(table).all()) and any(table)


@functools.cache
def table_encoding(table: tuple[float, ...]) -> Encoding:
    """Return the encoding whose codes are positions in a table of at most 256 numbers."""
    return Encoding("table", max(1, (len(table) - 1).bit_length()), "table", table=table)


ENCODINGS: dict[str, Encoding] = {
    **{f"int{n}": Encoding(f"int{n}", n, "integer") for n in range(1, 9)},
    **{f"uint{n}": Encoding(f"uint{n}", n, "integer", signed=False) for n in range(1, 9)},
    "float8_e4m3": Encoding("float8_e4m3fn", 8, "float"),
    "float8_e5m2": Encoding("float8_e5m2", 8, "float"),
    **{name: _small_float(name, bits) for name, bits in (("float6_e3m2", 6), ("float6_e2m3", 6), ("float4_e2m1", 4))},
    "nf4": Encoding("nf4", 4, "table", table=NF4),
}
