"""The extension `fft` of the standard."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from tensorgraft.frontends.array_api.core import tracing
from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.calls import accepted, axes_of, axis_of, fail, operand, shape_of
from tensorgraft.frontends.array_api.core.devices import resolve
from tensorgraft.frontends.array_api.core.promotion import checked, kind
from tensorgraft.frontends.array_api.standard.manipulation import roll
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array as Value
from tensorgraft.hub.backend import Backend

# norm -> the power of the length that a transform forwards, and one backwards, is divided by
_FORWARD = {"backward": 0.0, "ortho": 0.5, "forward": 1.0}


def _checked(name: str, x: Array, kinds: str, norm: str) -> tuple[Backend, Array]:
    (x,) = accepted(kinds, x)
    xp = operand(name, x, kinds)
    if norm not in _FORWARD:
        raise ValueError(f"{name}: expected norm 'backward', 'ortho' or 'forward', got {norm!r}")
    if not x.ndim:
        fail(name, (x,), "an array of at least one dimension")
    return xp, x


def _length(name: str, n: int) -> int:
    n = operator.index(n)
    if n < 1:
        raise ValueError(f"{name}: expected at least one point to transform, got {n}")
    return n


def _fitted(xp: Backend, value: Value, axis: int, n: int) -> Value:
    """Cut off or filled with zeros to `n` points."""
    length = xp.shape(value)[axis]
    if n < length:
        return xp.take_slice(value, axis, 0, n)
    if n == length:
        return value
    return xp.pad(value, 0, [(0, n - length if a == axis else 0, 0) for a in range(xp.ndim(value))])


def _scaled(xp: Backend, value: Value, factor: float) -> Value:
    return value if factor == 1 else xp.multiply(value, factor)


def _as_complex(xp: Backend, value: Value) -> Value:
    return xp.astype(value, dtypes.complex_dtype(xp.dtype_of(value)))


def _as_wide(xp: Backend, value: Value) -> Value:
    return xp.astype(value, dtypes.accumulator(xp.dtype_of(value)))


def _fft(xp: Backend, value: Value, n: int, axis: int, norm: str) -> Value:
    out = xp.fft(_fitted(xp, _as_complex(xp, value), axis, n), axis)
    return _scaled(xp, out, n ** -_FORWARD[norm])


def _ifft(xp: Backend, value: Value, n: int, axis: int, norm: str) -> Value:
    out = xp.ifft(_fitted(xp, _as_complex(xp, value), axis, n), axis)  # ifft divides by n
    return _scaled(xp, out, n ** _FORWARD[norm])


def _rfft(xp: Backend, value: Value, n: int, axis: int, norm: str) -> Value:
    return _scaled(xp, xp.rfft(_fitted(xp, _as_wide(xp, value), axis, n), axis), n ** -_FORWARD[norm])


def _irfft(xp: Backend, value: Value, n: int, axis: int, norm: str) -> Value:
    half = _fitted(xp, _as_complex(xp, value), axis, n // 2 + 1)
    return _scaled(xp, xp.irfft(half, n, axis), n ** _FORWARD[norm])


# ---- one axis --------------------------------------------------------------------------------------------------------


def fft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the discrete Fourier transform along `axis`, of `n` points."""
    xp, x = _checked("fft", x, "fc", norm)
    at = axis_of("fft", x, axis)
    with xp.scope():
        return new_array(_fft(xp, x._value(), _length("fft", x.shape[at] if n is None else n), at, norm), xp)


def ifft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the inverse of `fft`."""
    xp, x = _checked("ifft", x, "fc", norm)
    at = axis_of("ifft", x, axis)
    with xp.scope():
        return new_array(_ifft(xp, x._value(), _length("ifft", x.shape[at] if n is None else n), at, norm), xp)


def rfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the transform of real numbers, without the half that follows from the other."""
    xp, x = _checked("rfft", x, "f", norm)
    at = axis_of("rfft", x, axis)
    with xp.scope():
        return new_array(_rfft(xp, x._value(), _length("rfft", x.shape[at] if n is None else n), at, norm), xp)


def irfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the inverse of `rfft`: `n` real numbers, 2 (extent - 1) by default."""
    xp, x = _checked("irfft", x, "fc", norm)
    at = axis_of("irfft", x, axis)
    with xp.scope():
        return new_array(
            _irfft(xp, x._value(), _length("irfft", 2 * (x.shape[at] - 1) if n is None else n), at, norm), xp
        )


# The signal is Hermitian, its spectrum real: forwards is what backwards is for `irfft`.
_OTHER_WAY = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def hfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the transform, real, of a Hermitian signal given by its first half."""
    xp, x = _checked("hfft", x, "fc", norm)
    at = axis_of("hfft", x, axis)
    points = _length("hfft", 2 * (x.shape[at] - 1) if n is None else n)
    with xp.scope():
        return new_array(_irfft(xp, xp.conj(_as_complex(xp, x._value())), points, at, _OTHER_WAY[norm]), xp)


def ihfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the inverse of `hfft`."""
    xp, x = _checked("ihfft", x, "f", norm)
    at = axis_of("ihfft", x, axis)
    points = _length("ihfft", x.shape[at] if n is None else n)
    with xp.scope():
        return new_array(xp.conj(_rfft(xp, x._value(), points, at, _OTHER_WAY[norm])), xp)


# ---- several axes ----------------------------------------------------------------------------------------------------


def _grid(
    name: str, x: Array, s: Sequence[int] | None, axes: Sequence[int] | None, half: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (points, axes) of a transform; `half`: the last axis has a half spectrum."""
    if axes is not None:
        over = axes_of(name, x, tuple(axes))
    else:
        over = tuple(range(0 if s is None else max(x.ndim - len(s), 0), x.ndim))
    if s is None:
        points = tuple(x.shape[a] for a in over)
        if half and points:
            points = (*points[:-1], 2 * (points[-1] - 1))
    else:
        points = tuple(x.shape[a] if n == -1 else n for n, a in zip(s, over, strict=False))
    if len(points) != len(over) or (s is not None and len(s) != len(over)):
        fail(name, (x,), f"one number of points for each axis, got s={s}, axes={axes}")
    for n in points:
        _length(name, n)
    return points, over


def _each_axis(xp: Backend, transform: Any, value: Value, points: Any, axes: Any, norm: str) -> Value:
    for n, a in zip(points, axes, strict=True):
        value = transform(xp, value, n, a, norm)
    return value


def fftn(x: Array, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Array:
    """Return the transform along several axes."""
    xp, x = _checked("fftn", x, "fc", norm)
    points, over = _grid("fftn", x, s, axes)
    with xp.scope():
        return new_array(_each_axis(xp, _fft, _as_complex(xp, x._value()), points, over, norm), xp, x)


def ifftn(x: Array, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Array:
    """Return the inverse of `fftn`."""
    xp, x = _checked("ifftn", x, "fc", norm)
    points, over = _grid("ifftn", x, s, axes)
    with xp.scope():
        return new_array(_each_axis(xp, _ifft, _as_complex(xp, x._value()), points, over, norm), xp, x)


def rfftn(x: Array, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Array:
    """Return the transform of real numbers along several axes, of which the last is halved."""
    xp, x = _checked("rfftn", x, "f", norm)
    points, over = _grid("rfftn", x, s, axes)
    if not over:
        fail("rfftn", (x,), "at least one axis")
    with xp.scope():
        half = _rfft(xp, x._value(), points[-1], over[-1], norm)
        return new_array(_each_axis(xp, _fft, half, points[:-1], over[:-1], norm), xp)


def irfftn(x: Array, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Array:
    """Return the inverse of `rfftn`."""
    xp, x = _checked("irfftn", x, "fc", norm)
    points, over = _grid("irfftn", x, s, axes, half=True)
    if not over:
        fail("irfftn", (x,), "at least one axis")
    with xp.scope():
        half = _each_axis(xp, _ifft, x._value(), points[:-1], over[:-1], norm)
        return new_array(_irfft(xp, half, points[-1], over[-1], norm), xp)


# ---- frequencies -----------------------------------------------------------------------------------------------------


def _frequencies(name: str, n: int, d: float, dtype: Any, device: Any, half: bool) -> Array:
    (n,) = shape_of(name, _length(name, n))
    resolved = dtypes.float64 if dtype is None else checked(dtype)
    if kind(resolved) != "f":
        raise TypeError(f"{name}: expected a real floating-point dtype, got {resolved}")
    xp = tracing.creation_backend(resolve(device).backend)
    with xp.scope():
        at = xp.iota(n // 2 + 1 if half else n, dtypes.int64)
        if not half:  # 0, 1, ..., then the negative ones
            at = xp.where(xp.less(at, (n + 1) // 2), at, xp.subtract(at, n))
        return new_array(xp.astype(xp.divide(xp.astype(at, dtypes.float64), n * d), resolved), xp)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Array:
    """Return the frequencies of `fft` of `n` points at distances `d`."""
    return _frequencies("fftfreq", n, d, dtype, device, False)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Array:
    """Return the frequencies of `rfft` of `n` points at distances `d`."""
    return _frequencies("rfftfreq", n, d, dtype, device, True)


def fftshift(x: Array, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """Frequency 0 in the middle."""
    operand("fftshift", x)
    shifted_axes = axes_of("fftshift", x, axes)
    return roll(x, tuple(x.shape[a] // 2 for a in shifted_axes), axis=shifted_axes)


def ifftshift(x: Array, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """Return the inverse of `fftshift`."""
    operand("ifftshift", x)
    shifted_axes = axes_of("ifftshift", x, axes)
    return roll(x, tuple(-(x.shape[a] // 2) for a in shifted_axes), axis=shifted_axes)


__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]
