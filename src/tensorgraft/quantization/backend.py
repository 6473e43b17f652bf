"""`QuantizingBackend`: another backend's operations on arrays of which some are `Quantized`.

Operations that only move elements, products and rows that are looked up have rules. Composites come down to them; any
other operation computes on dequantised operands, which is counted (`policy.py`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.placement import Placement
from tensorgraft.hub.tape import ByTape
from tensorgraft.hub.wrapper import Wrapper
from tensorgraft.quantization import convolutions, policy, products, trained, views
from tensorgraft.quantization.encode import encode_like
from tensorgraft.quantization.quantized import Quantized, dense, with_own_codes
from tensorgraft.quantization.recorded_weight import Watching
from tensorgraft.storage import Geometry, read, write

_QUIET = frozenset({"zeros_like", "ones_like", "full_like"})  # ask for shape and dtype only


def _holds(x: Any) -> bool:
    return isinstance(x, Quantized) or (isinstance(x, list | tuple) and any(map(_holds, x)))


def _dense(xp: Backend, x: Any) -> Any:
    if isinstance(x, Quantized):
        return dense(xp, x)
    return type(x)(_dense(xp, y) for y in x) if type(x) in (list, tuple) else x


_RULES: dict[str, Callable[..., Any]] = {
    **views.RULES,
    "dot_general": products.dot_general,
    "convolution": functools.partial(convolutions.convolved, "convolution"),
}


def _primitive(name: str) -> Callable[..., Any]:
    rule = _RULES.get(name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(map(_holds, args)) and not any(map(_holds, kwargs.values())):
            return getattr(self.inner, name)(*args, **kwargs)
        if trained.holds(args) or any(map(trained.holds, kwargs.values())):
            return trained.applied(self.inner, quantizing, name, rule, args, kwargs)
        if rule is not None:
            result = rule(self.inner, *args, **kwargs)
            if result is not None:
                policy.served(name)
                return result
        policy.missing(name, _shapes((*args, *kwargs.values())))
        args = _dense(self.inner, args)
        return getattr(self.inner, name)(*args, **{k: _dense(self.inner, v) for k, v in kwargs.items()})

    return method


def _composite(name: str, composite: Callable[..., Any]) -> Callable[..., Any]:
    """Make the method of a composite: the hub's own if an operand is quantised, otherwise the inner backend's."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(map(_holds, args)) or any(map(_holds, kwargs.values())):
            return composite(self, *args, **kwargs)
        return getattr(self.inner, name)(*args, **kwargs)

    return method


def _shapes(args: Sequence[Any]) -> str:
    return ", ".join(f"{x.scheme.encoding}{list(x.shape)}" for x in _quantized(args)) or "arrays"


def _quantized(x: Any) -> list[Quantized]:
    if isinstance(x, list | tuple):
        return [q for y in x for q in _quantized(y)]
    return [x] if isinstance(x, Quantized) else []


def _operation(name: str, declared: Callable[..., Any]) -> Callable[..., Any] | None:
    if getattr(declared, "is_primitive", False):
        return _primitive(name)
    return None if name in _QUIET else _composite(name, declared)


class _Operations(ByTape, Wrapper, operation=_operation):
    pass


class QuantizingBackend(_Operations):
    mutable = False  # a write quantises again
    compound = True

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.compiles = inner.compiles

    @property
    def traces(self) -> bool:
        return self.inner.traces

    # ---- arrays ------------------------------------------------------------------------------------------------------

    def is_array(self, x: Any, /) -> bool:
        return isinstance(x, Quantized) or self.inner.is_array(x)

    def is_traced(self, x: Array, /) -> bool:
        return any(map(self.inner.is_traced, x.parts)) if isinstance(x, Quantized) else self.inner.is_traced(x)

    def shape(self, x: Array, /) -> tuple[int, ...]:
        return x.shape if isinstance(x, Quantized) else self.inner.shape(x)

    def dtype_of(self, *operands: Any) -> np.dtype:
        for x in operands:
            if isinstance(x, Quantized):
                return x.dtype
        return self.inner.dtype_of(*operands)

    def asarray(self, x: np.ndarray, /) -> Array:
        return self.inner.asarray(x)

    def is_differentiated(self, x: Array, /) -> bool:
        return any(map(self.inner.is_differentiated, x.parts if isinstance(x, Quantized) else (x,)))

    def to_numpy(self, x: Array, /) -> np.ndarray:
        return self.inner.to_numpy(dense(self.inner, x) if isinstance(x, Quantized) else x)

    def from_dlpack(self, x: Any, /) -> Array:
        return self.inner.from_dlpack(x)

    def astype(self, x: Array, dtype: np.dtype, /) -> Array:
        """Convert: to another floating dtype by changing that to which numbers are dequantised; to any other dtype as a
        dense array."""
        if not isinstance(x, Quantized):
            return self.inner.astype(x, dtype)
        if dtypes.is_floating(dtype) and x.dtype == dtypes.float32:
            return x.with_geometry(x.geometry._replace(dtype=dtype))
        if dtype == x.dtype:
            return x
        policy.missing("astype", _shapes((x,)))
        return self.inner.astype(dense(self.inner, x), dtype)

    def dense(self, x: Array, /) -> Array:
        """Return the numbers, as an array of the backend inside."""
        return dense(self.inner, x) if isinstance(x, Quantized) else x

    def ensure_owned(self, x: Array, /) -> Array:
        return x if isinstance(x, Quantized) else self.inner.ensure_owned(x)

    def transposed_convolution(self, x: Array, w: Array, /, *args: Any, **kwargs: Any) -> Array:
        """Compute it by the inner backend with dequantised weights, since that may be faster than the hub's
        composite."""
        result = convolutions.convolved("transposed_convolution", self.inner, x, w, *args, **kwargs)
        if result is None:
            return super().transposed_convolution(x, w, *args, **kwargs)
        policy.served("transposed_convolution")
        return result

    # ---- storages ----------------------------------------------------------------------------------------------------

    def read_view(self, array: Array, geometry: Geometry) -> Array:
        """`storage.read`: of a storage that is quantised, another view of its codes."""
        if not isinstance(array, Quantized):
            return read(self.inner, array, geometry)
        if geometry.dtype != array.dtype:
            policy.missing("view as another dtype", _shapes((array,)))
            return read(self.inner, self.inner.ensure_owned(dense(self.inner, array)), geometry)
        return (array if array.is_whole else with_own_codes(self.inner, array)).with_geometry(geometry)

    def put(self, array: Array, geometry: Geometry, value: Array) -> Array:
        """`storage.write`: a storage that is quantised is so afterwards, by the same scheme."""
        xp = self.inner
        value = _dense(xp, value)
        if not isinstance(array, Quantized):
            return write(xp, array, geometry, value)
        values = dense(xp, array)
        return encode_like(
            xp, write(xp, xp.ensure_owned(xp.copy(values)) if xp.mutable else values, geometry, value), array
        )

    def stand_in(self, x: Array, /) -> Array:
        if isinstance(x, Quantized):
            return x.with_parts(tuple(map(self.inner.stand_in, x.parts)))
        return self.inner.stand_in(x)

    def as_traced(self, x: Array, /) -> Array:
        if isinstance(x, Quantized):
            return x.with_parts(tuple(map(self.inner.as_traced, x.parts)))
        return self.inner.as_traced(x)

    def eagerly(self) -> contextlib.AbstractContextManager[None]:
        return self.inner.eagerly()

    # ---- programs ----------------------------------------------------------------------------------------------------

    def compile(self, fn: Callable[..., Any], /, donate: Sequence[int] = ()) -> Callable[..., Any]:
        """Compile with codes and scales as separate arguments."""
        known: dict[Any, _Compiled] = {}

        def run(*args: Any) -> tuple[Any, ...]:
            if any(isinstance(x, Quantized) and isinstance(x.scheme, Watching) for x in args):
                return tuple(fn(*args))
            key = tuple([x.kind if isinstance(x, Quantized) else None for x in args])
            program = known.get(key)
            if program is None:
                program = known[key] = _Compiled(self.inner, fn, key)
            return program(args)

        return run

    def constrain(self, x: Array, placement: Placement, /) -> Array:
        if not isinstance(x, Quantized):
            return self.inner.constrain(x, placement)
        parts = [self.inner.constrain(a, placement.fitted(self.inner.shape(a))) for a in x.parts]
        return x.with_parts(parts)

    def placement(self, x: Array, /) -> Placement | None:
        return self.inner.placement(x.codes if isinstance(x, Quantized) else x)

    def bytes_by_device(self, x: Array, /) -> dict[int, int]:
        total: dict[int, int] = {}
        for part in x.parts if isinstance(x, Quantized) else (x,):
            for device, n in self.inner.bytes_by_device(part).items():
                total[device] = total.get(device, 0) + n
        return total

    def assembled(self, part: Array, placement: Placement, /) -> Array:
        return self.inner.assembled(part, placement)

    def same_everywhere(self, what: str, arrays: Mapping[str, Array], /) -> None:
        named = {name: x.parts if isinstance(x, Quantized) else (x,) for name, x in arrays.items()}
        parts = {name if not i else f"{name} ({i})": p for name, ps in named.items() for i, p in enumerate(ps)}
        self.inner.same_everywhere(what, parts)

    def cond(self, *args: Any) -> Any:
        return self.inner.cond(*args)

    def while_loop(self, *args: Any) -> Any:
        return self.inner.while_loop(*args)

    def scan(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner.scan(*args, **kwargs)


class _Compiled:
    """A function for quantised arguments of certain kinds."""

    def __init__(self, inner: Backend, fn: Callable[..., Any], kinds: tuple[Any, ...]) -> None:
        self.kinds = kinds
        self.result_kinds: list[tuple[Any, ...] | None] = []  # the kinds of the results
        self.notes: policy.Notes | None = None  # notes of a program that is compiled once

        def flat(*leaves: Any) -> tuple[Any, ...]:
            if inner.compiles:
                with policy.counting_later() as self.notes:
                    results = fn(*joined(kinds, leaves))
            else:
                results = fn(*joined(kinds, leaves))
            self.result_kinds = [x.kind if isinstance(x, Quantized) else None for x in results]
            return tuple(_flat(results))

        self.run = inner.compile(flat)

    def __call__(self, args: Sequence[Any]) -> tuple[Any, ...]:
        before = self.notes
        if before:
            policy.counted(before)
        leaves = self.run(*_flat(args))
        if self.notes and before is None:  # it may be traced again, and is the same
            policy.counted(self.notes)
        return tuple(joined(self.result_kinds, leaves))


def _flat(xs: Sequence[Any]) -> list[Any]:
    leaves: list[Any] = []
    for x in xs:
        leaves.extend(x.parts) if isinstance(x, Quantized) else leaves.append(x)
    return leaves


def joined(kinds: Sequence[tuple[Any, ...] | None], leaves: Sequence[Any]) -> list[Any]:
    """Return arrays of these kinds (`Quantized.kind`; None: as it is) out of the first of the leaves."""
    rest = iter(leaves)
    arrays = []
    for kind in kinds:
        if kind is None:
            arrays.append(next(rest))
        else:
            arrays.append(Quantized.of([next(rest) for _ in kind[-1].parts], *kind))
    return arrays


def quantizing(xp: Backend) -> QuantizingBackend:
    """Return the one wrapper of a backend, which lives as long as that."""
    if isinstance(xp, QuantizingBackend):
        return xp
    wrapper = xp.__dict__.get("_quantizing")
    if wrapper is None or wrapper.inner is not xp:  # a copy of a backend has its attributes
        wrapper = xp.__dict__["_quantizing"] = QuantizingBackend(xp)
    return wrapper


def common(a: Backend, b: Backend) -> Backend | None:
    """Return the backend for operands of two backends: that with quantised arrays, if the other one is its inner
    backend."""
    if a is b:
        return a
    for first, other in ((a, b), (b, a)):
        if isinstance(first, QuantizingBackend) and first.inner is other:
            return first
    return None


__all__ = ["QuantizingBackend", "common", "joined", "quantizing"]
