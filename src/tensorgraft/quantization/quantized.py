"""`Quantized`: codes and scales as one array, with a geometry.

The codes have the shape of the base. A view (transposed, sliced, reshaped) has the same codes with other strides, so
that its dequantised numbers equal, bit for bit, the view of those of the base.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tensorgraft.hub.array import Array, NativeArray
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.operations.coded import spread_blocks
from tensorgraft.quantization.encodings import Encoding
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.storage import Geometry, contiguous_geometry, contiguous_strides, read, same_strides

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Quantized:
    """An array of quantised numbers.

    Arguments:
        codes: of the base's shape; packed, bytes (n,).
        scale: float32; its extents divide the base's, with one scale for each block; None for a weight in training,
            whose codes are its numbers.
        zero: float32 zero points of the scale's shape, in units of codes, or offsets, in units of the numbers; None for
            neither.
        base: the shape of the codes.
        geometry: the view of the base, with the logical dtype.
        scheme: the scheme by which it was quantised, and is quantised again when it is written.
        input_scale, input_zero: float32 scalars, of schemes with static activations: how the other operand of products
            is quantised.
    """

    codes: Array
    scale: Array | None
    zero: Array | None
    base: Shape
    geometry: Geometry
    scheme: Scheme
    input_scale: Array | None = None
    input_zero: Array | None = None

    @property
    def shape(self) -> Shape:
        return self.geometry.shape

    @property
    def dtype(self) -> np.dtype:
        return self.geometry.dtype

    @property
    def encoding(self) -> Encoding:
        return self.scheme.codes

    @property
    def parts(self) -> tuple[NativeArray, ...]:
        """The arrays that it is made of, those that `Scheme.parts` names."""
        return tuple([getattr(self, name) for name in self.scheme.parts])

    def with_parts(self, parts: Iterable[Array | None]) -> Quantized:
        named: dict[str, Any] = dict(zip(self.scheme.parts, parts, strict=True))
        return replace(self, **named)

    @classmethod
    def of(cls, parts: Iterable[Array | None], base: Shape, geometry: Geometry, scheme: Scheme) -> Quantized:
        """Make a quantised array of its parts, base, geometry and scheme."""
        no_codes: Any = None
        return cls(no_codes, None, None, base, geometry, scheme).with_parts(parts)

    @property
    def kind(self) -> tuple[Any, ...]:
        """All that is no array."""
        return self.base, self.geometry, self.scheme

    def with_geometry(self, geometry: Geometry) -> Quantized:
        return replace(self, geometry=geometry)

    def full(self) -> Quantized:
        """Return the whole base of a view."""
        return self.with_geometry(contiguous_geometry(self.base, self.dtype))

    @property
    def is_whole(self) -> bool:
        g = self.geometry
        return g.shape == self.base and not g.offset and same_strides(g.shape, g.strides, contiguous_strides(g.shape))


def check_numbers(parts: Mapping[str, np.ndarray], label: str) -> None:
    """Raises ValueError for scales that are 0, NaN or infinite, and zero points that are not finite. `parts`: arrays of
    the host by the names of `Scheme.parts`."""
    for name, x in parts.items():
        if name == "codes":
            continue
        is_invalid = ~np.isfinite(x) if "zero" in name else ~np.isfinite(x) | (x == 0)
        if name == "input_scale":
            is_invalid |= x < 0
        if count := int(np.count_nonzero(is_invalid)):
            raise ValueError(
                f"{label}: {count} of {x.size} numbers of {name}, of shape {x.shape}, are NaN or infinite"
                + ("" if "zero" in name else f" or not {'more than' if name == 'input_scale' else 'other than'} 0")
                + ": quantise the dense tensor again (tg.quantize), or set the scale of blocks of zeros to 1"
            )


def check_fit(parts: Mapping[str, np.ndarray], base: Shape, geometry: Geometry, scheme: Scheme, label: str) -> None:
    """Raise ValueError if arrays of the host are not those of a quantised array of that base, or a view exceeds it: for
    files, which cannot be trusted."""
    codes, scale = parts["codes"], parts["scale"]
    encoding, count = scheme.codes, math.prod(base)
    expected = (-(-count // encoding.packed),) if encoding.packed > 1 else base
    dtype = np.dtype(np.uint8) if encoding.packed > 1 else encoding.dtype
    if codes.dtype != dtype or codes.shape != expected:
        raise ValueError(f"{label}: codes are {codes.dtype}{list(codes.shape)}, not {dtype}{list(expected)}")
    if scale.ndim != len(base) or any(n % s if s else n for n, s in zip(base, scale.shape, strict=True)):
        raise ValueError(f"{label}: scales of shape {scale.shape} do not divide codes of shape {base}")
    for name, x in parts.items():
        shape = {"codes": expected, "input_scale": (), "input_zero": ()}.get(name, scale.shape)
        if x.shape != shape or (name != "codes" and x.dtype != np.float32):
            raise ValueError(f"{label}: {name} is {x.dtype}{list(x.shape)}, not float32{list(shape)}")
    if encoding.kind == "table" and codes.size and encoding.packed == 1 and int(codes.max()) >= len(encoding.table):
        raise ValueError(f"{label}: a code is {codes.max()}, of a table of {len(encoding.table)} numbers")
    numbers = [*geometry.shape, *geometry.strides, geometry.offset]
    if len(geometry.shape) != len(geometry.strides) or any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError(
            f"{label}: invalid shape, strides and offset: {geometry.shape}, {geometry.strides}, {geometry.offset}"
        )
    last = geometry.offset + sum((n - 1) * s for n, s in zip(geometry.shape, geometry.strides, strict=True))
    if (0 not in geometry.shape and last >= count) or geometry.offset > count:
        raise ValueError(f"{label}: a view of shape {geometry.shape} exceeds the {count} numbers of the storage")


class Axis(NamedTuple):
    """The place of an axis of a view in the base."""

    base: int | None  # the axis of the base; None: one along which the view does not move
    start: int
    step: int  # negative: backwards
    extent: int


def axes_of(q: Quantized) -> tuple[list[Axis], list[int]] | None:
    """Return (each axis of the view as a slice of one axis of the base, the index on each axis of the base that no axis
    of the view moves along); None where some axis moves along several."""
    g, strides = q.geometry, contiguous_strides(q.base)
    if 0 in g.shape or 0 in q.base:
        return None
    at, rest = [], g.offset
    for stride in strides:
        index, rest = divmod(rest, stride)
        at.append(index)
    axes, used = [], set()
    for n, stride in zip(g.shape, g.strides, strict=True):
        if n == 1 or not stride:
            axes.append(Axis(None, 0, 1, n))
            continue
        for axis, (extent, unit) in enumerate(zip(q.base, strides, strict=True)):
            step = stride // unit
            last = at[axis] + (n - 1) * step
            if extent > 1 and not stride % unit and 0 <= last < extent and axis not in used:
                used.add(axis)
                axes.append(Axis(axis, at[axis], step, n))
                break
        else:
            return None
    return axes, at


class CodesView(NamedTuple):
    """A view of codes as arrays: of its shape, and of scales that broadcast to it."""

    codes: Array
    scale: Array
    zero: Array | None


def view_codes(xp: Backend, q: Quantized) -> CodesView:
    """Return the codes that a view shows, not packed, and their scales; an extent of 1 where they are the same along an
    axis of the base."""
    codes = q.encoding.unpack(xp, q.codes, q.base)
    axes_seen = axes_of(q)
    if axes_seen is None:
        g = q.geometry
        full = [None if s is None else xp.broadcast_to(spread_blocks(xp, s, q.base), q.base) for s in (q.scale, q.zero)]
        arrays: Any = (None if a is None else read_of(xp, a, g) for a in (codes, *full))
        return CodesView(*arrays)
    axes, at = axes_seen
    codes = _take_axes(xp, codes, axes, at)
    scales: Any = (
        None if s is None else _take_axes(xp, spread_blocks(xp, s, q.base), axes, at) for s in (q.scale, q.zero)
    )
    return CodesView(codes, *scales)


def dense(xp: Backend, q: Quantized) -> Array:
    """Return the values: (decoded codes - zero point) * scale, or decoded codes * scale + offset, in float32, rounded
    to the logical dtype."""
    if q.encoding.kind == "trained":
        return q.scheme.numbers(xp, q)  # type: ignore[attr-defined]
    codes, scale, zero = view_codes(xp, q)
    if q.encoding.kind == "dense":
        values = codes
    else:
        values = q.encoding.decode(xp, codes)
        if zero is not None and not q.scheme.offset:
            values = xp.subtract(values, zero)
        values = xp.multiply(values, scale)
        if zero is not None and q.scheme.offset:
            values = xp.add(values, zero)
    if xp.shape(values) != q.shape:
        values = xp.broadcast_to(values, q.shape)
    return values if q.dtype == xp.dtype_of(values) else xp.astype(values, q.dtype)


def with_own_codes(xp: Backend, q: Quantized) -> Quantized:
    """Return the same numbers with codes of the view's own shape, each block of which has one scale."""
    if q.is_whole:
        return q
    codes, scale, zero = view_codes(xp, q)
    codes = xp.broadcast_to(codes, q.shape) if xp.shape(codes) != q.shape else codes
    return replace(
        q,
        codes=q.encoding.pack(xp, codes),
        scale=_gathered(xp, scale, q),
        zero=None if zero is None else _gathered(xp, zero, q),
        base=q.shape,
        geometry=contiguous_geometry(q.shape, q.dtype),
    )


def blocks(xp: Backend, scale: Any, shape: Shape) -> tuple[int, ...]:
    """Return the extents of the blocks that share a scale."""
    return tuple(max(n, 1) // max(s, 1) for n, s in zip(shape, xp.shape(scale), strict=True))


def _take_axes(xp: Backend, x: Array, axes: list[Axis], at: list[int]) -> Array:
    """Return a view, axis by axis, of an array whose extents are those of the base, or 1."""
    x_shape = xp.shape(x)
    moving = {a.base: a for a in axes if a.base is not None}
    spans = []  # start, stop and step on each axis
    for axis, n in enumerate(x_shape):
        a = moving.get(axis)
        if n == 1:
            spans.append((0, 1, 1))
        elif a is None:
            spans.append((at[axis], at[axis] + 1, 1))
        else:
            last = a.start + (a.extent - 1) * a.step
            spans.append((min(a.start, last), max(a.start, last) + 1, abs(a.step)))
    if spans != [(0, n, 1) for n in x_shape]:
        start, stop, step = (tuple(s[k] for s in spans) for k in range(3))
        x = xp.slice(x, start, stop, step)
    backward = tuple(axis for axis, a in moving.items() if a.step < 0 and x_shape[axis] != 1)
    if backward:
        x = xp.flip(x, backward)
    order = [a.base for a in axes if a.base is not None]
    rest = [axis for axis in range(len(x_shape)) if axis not in order]
    if order + rest != list(range(len(x_shape))):
        x = xp.permute_dims(x, (*order, *rest))
    remaining = iter(xp.shape(x))
    expected_shape = tuple(1 if a.base is None else next(remaining) for a in axes)
    if xp.shape(x) != expected_shape:
        x = xp.reshape(x, expected_shape)
    return x


def _gathered(xp: Backend, scale: Array, q: Quantized) -> Array:
    """Scales of a view with as few of them as its geometry plainly allows: blocks that it keeps whole."""
    axes = axes_of(q)
    if axes is None:
        return scale
    base_blocks = blocks(xp, q.scale, q.base)
    for axis, a in enumerate(axes[0]):
        n = xp.shape(scale)[axis]
        block = 1 if a.base is None else base_blocks[a.base]
        if n > 1 and block > 1 and abs(a.step) == 1:
            first = min(a.start, a.start + (a.extent - 1) * a.step)
            n_scales = math.gcd(first, a.extent, block)
            shape = xp.shape(scale)
            scale = xp.slice(
                scale, (0,) * len(shape), shape, tuple(n_scales if i == axis else 1 for i in range(len(shape)))
            )
    return scale


def read_of(xp: Backend, array: Array, geometry: Geometry) -> Array:
    """Return an array of the base's shape through a geometry, whatever its dtype."""
    x_geometry = geometry._replace(dtype=xp.dtype_of(array))
    if not xp.mutable:
        return read(xp, array, x_geometry)
    return read(xp, xp.ensure_owned(array), x_geometry)
