"""`QuantizedArray`: codes, scales and zero points, each an array of its own, as one array.

It is a pytree of these arrays, which transforms compile, differentiate and batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import optree

from tensorgraft.frontends.array_api.core.array import Array, kinds
from tensorgraft.frontends.array_api.core.exchange import moved_to, movers
from tensorgraft.frontends.array_api.core.tracing import creation_backend
from tensorgraft.frontends.array_api.transforms.custom import custom_vjp
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization import policy
from tensorgraft.quantization.backend import QuantizingBackend, quantizing
from tensorgraft.quantization.encode import encode, encode_like
from tensorgraft.quantization.quantized import Quantized, check_numbers, dense, with_own_codes
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.quantization.trained import Training
from tensorgraft.storage import Geometry, Storage, write


class QuantizedArray(Array):
    """A quantised array, made by `tg.quantize`. Shapes, views and rules are those of any array; views share its codes,
    and values written into them are quantised by the same scheme."""

    __slots__ = ("base", "codes", "input_scale", "input_zero", "scale", "scheme", "zero_point")

    def __init__(
        self,
        codes: Array,
        scale: Array,
        zero_point: Array | None,
        base: tuple[int, ...],
        geometry: Geometry,
        scheme: Scheme,
        input_scale: Array | None = None,
        input_zero: Array | None = None,
    ) -> None:
        """Raises ValueError for scales that are 0, and numbers that are not finite."""
        self._set((codes, scale, zero_point, input_scale, input_zero), base, geometry, scheme)
        known = {name: x._host() for name, x in zip(scheme.parts, self._parts(), strict=True) if not _is_traced(x)}
        check_numbers(known, "a QuantizedArray")

    def _set(self, children: Sequence[Any], base: tuple[int, ...], geometry: Geometry, scheme: Scheme) -> None:
        self.codes, self.scale, self.zero_point, self.input_scale, self.input_zero = children
        self.base, self._geometry, self.scheme = base, geometry, scheme

    # ---- as any array ------------------------------------------------------------------------------------------------

    @property
    def _cell(self) -> Storage:  # type: ignore[override]
        return Storage(self._quantized(), quantizing(self.codes._cell.backend))

    def _cells(self) -> tuple[Storage, ...]:
        return tuple(x._cell for x in self._parts())

    def _view(self, geometry: Geometry) -> QuantizedArray:
        return _unflatten((self.base, geometry, self.scheme), self._children())

    def _value(self) -> Quantized:
        return self._quantized()

    def _dense(self) -> Any:
        return dense(self.codes._cell.backend, self._quantized())

    def _write(self, value: Any, geometry: Geometry | None = None) -> None:
        g = self._full_geometry() if geometry is None else geometry
        xp: Backend = self.codes._cell.backend
        if isinstance(self.scheme, Training):  # the weight itself, which is dense
            self.codes._write(dense(xp, value) if isinstance(value, Quantized) else value, g)
            return
        base = self._quantized().full()
        values = dense(xp, base)
        if isinstance(value, Quantized):
            value = dense(xp, value)
        new = encode_like(xp, write(xp, xp.ensure_owned(xp.copy(values)) if xp.mutable else values, g, value), base)
        for x, part in zip(self._parts(), new.parts, strict=True):
            x._write(part)

    # ---- what it is made of ------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """The bytes of codes, scales and zero points, of the whole that this is a view of."""
        return sum(x.nbytes for x in self._parts())

    def _parts(self) -> tuple[Array, ...]:
        return tuple([x for x in self._children() if x is not None])

    def _children(self) -> tuple[Array | None, ...]:
        return self.codes, self.scale, self.zero_point, self.input_scale, self.input_zero

    def _quantized(self) -> Quantized:
        return Quantized.of([x._value() for x in self._parts()], self.base, self._full_geometry(), self.scheme)

    def dequantize(self) -> Array:
        """Return the dense array of the numbers."""
        xp = self.codes._cell.backend
        with xp.scope(), policy.allowed():
            value = dense(xp, self._quantized())
            return Array(Storage(xp.ensure_owned(value) if xp.mutable else value, xp))

    def _host(self, conversion: str = "values") -> np.ndarray:
        return self.dequantize()._host(conversion)

    def __repr__(self) -> str:
        values = repr(self.dequantize())
        return f"Quantized{values[:-1]}, scheme={str(self.scheme)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        codes, scale, zero, *inputs = self._children()
        return QuantizedArray, (codes, scale, zero, self.base, self._geometry, self.scheme, *inputs)

    def __copy__(self) -> QuantizedArray:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantizedArray:
        xp = self.codes._cell.backend
        with xp.scope():
            copied = with_own_codes(xp, self._quantized())
            return of_parts(xp, copied.with_parts(tuple(map(xp.copy, copied.parts))))


def made_of(array: Any, xp: Any, *sources: Array) -> Array:
    """Return a new array of the result of an operation on quantised operands. Operations that move codes keep the
    arrays of scales, so that writes into either change both."""
    inner: Backend = xp.inner  # xp is a `QuantizingBackend`
    if isinstance(array, Quantized):
        if inner.mutable:
            source_arrays = [part._cell.array for x in sources if isinstance(x, QuantizedArray) for part in x._parts()]
            codes, *scales = array.parts
            if any(codes is x for x in source_arrays):
                codes = inner.copy(codes)
            array = array.with_parts((codes, *map(inner.copy, scales)))
        return of_parts(inner, array)
    return Array(Storage(inner.ensure_owned(array) if inner.mutable else array, inner))


kinds[QuantizingBackend] = made_of


def _moved_to(x: QuantizedArray, target: Backend) -> QuantizedArray:
    """Return codes and scales on another backend, or the same if they are there already."""
    xp = x.codes._cell.backend
    if target is xp or creation_backend(target) is xp:
        return x
    with xp.scope():
        q = with_own_codes(xp, x._quantized())
    parts = iter([moved_to(Array(Storage(part, xp)), target) for part in q.parts])
    children = [None if a is None else next(parts) for a in x._children()]
    return _unflatten((q.base, q.geometry, q.scheme), children)


movers[QuantizingBackend] = _moved_to


def of_parts(xp: Backend, q: Quantized) -> QuantizedArray:
    arrays = (q.codes, q.scale, q.zero, q.input_scale, q.input_zero)
    parts = [None if a is None else Array(Storage(xp.ensure_owned(a) if xp.mutable else a, xp)) for a in arrays]
    return _unflatten((q.base, q.geometry, q.scheme), parts)


def _flatten(q: Any) -> tuple[tuple[Any, ...], Any, None]:
    return q._children(), (q.base, q._geometry, q.scheme), None


def _unflatten(aux: Any, children: Any) -> Any:
    instance = QuantizedArray.__new__(QuantizedArray)
    instance._set(children, *aux)  # without checks: children may be stand-ins in a trace, or batches of scales
    return instance


def _is_traced(x: Array) -> bool:
    return x._cell.backend.is_traced(x._value())


_node: Any = QuantizedArray  # optree's types ask for a collection
optree.register_pytree_node(_node, _flatten, _unflatten, namespace=optree.registry.__GLOBAL_NAMESPACE)


def quantize(x: Array, scheme: Scheme, observer: str = "minmax", inputs: Sequence[np.ndarray] = ()) -> QuantizedArray:
    if isinstance(x, QuantizedArray):
        x = x.dequantize()
    xp = x._cell.backend
    with xp.scope():
        return of_parts(xp, encode(xp, x._value(), scheme, observer=observer, inputs=inputs))


def host(x: Array) -> np.ndarray:
    """Return the numbers of an array."""
    return x._host()


def placed_like(q: Quantized, like: Array) -> QuantizedArray:
    """Codes and scales of the host where another array is."""
    cell: Any = (like.codes if isinstance(like, QuantizedArray) else like)._cell
    with cell.backend.scope():
        return of_parts(cell.backend, q.with_parts(tuple(map(cell.backend.asarray, q.parts))))


def dequantize(q: QuantizedArray) -> Array:
    return q.dequantize()


def fake_quantize(x: Array, scheme: Scheme) -> Array:
    """See `tg.quantization.fake_quantize`."""

    def rounded(x: Array) -> Array:
        xp = x._cell.backend
        with xp.scope():
            value = dense(xp, encode(xp, x._value(), scheme, "fake_quantize"))
            return Array(Storage(xp.ensure_owned(value) if xp.mutable else value, xp))

    x = x.dequantize() if isinstance(x, QuantizedArray) else x
    return custom_vjp("fake_quantize", rounded, (x,), lambda args, out, g: (g,), lambda args, out, ts, _: ts[0])


def is_quantized(x: Any) -> bool:
    return isinstance(x, QuantizedArray)
