"""Codes, scales and zero points of JAX as one object, which is a pytree of them.

The leaves are bits: none of them is a floating-point array, so that neither derivatives nor casts of a whole model take
scales for parameters. Shapes follow from the leaves, and are no part of the structure: a first axis that `jax.vmap` or
`jax.lax.scan` removes from the leaves or adds to them is an axis of the array.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optree
from jax import lax

from tensorgraft.hub import registry
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization.encodings import Encoding
from tensorgraft.quantization.quantized import Quantized, dense, with_own_codes
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.storage import Geometry, contiguous_geometry

Shape = tuple[int, ...]
Form = tuple[Shape, Geometry, Scheme]  # `Quantized.kind`


class KeptForm(NamedTuple):
    """The part of a form that no axis in front changes, which is the structure of the pytree."""

    last: int | None  # the extent of the last axis, where codes are packed; None: there are no axes
    dtype: np.dtype
    scheme: Scheme


class Codes:
    """The arrays of which a quantised array consists, and their form.

    Arguments:
        parts: the arrays that `Scheme.parts` names: codes, with as many axes as the base, of which the last is packed,
            row by row, and float32 numbers as uint32.
        form: (shape of the base, geometry of the view, scheme); for the whole base, the part of this that a pytree
            keeps.
    """

    __slots__ = ("_form", "_kept", "parts")

    def __init__(self, parts: tuple[Array, ...], form: Form | KeptForm) -> None:
        self.parts = parts
        self._form: Form | None = None if isinstance(form, KeptForm) else form
        self._kept: KeptForm | None = form if isinstance(form, KeptForm) else None

    @classmethod
    def of(cls, q: Quantized) -> Any:
        """Make `Codes` of a quantised array of JAX's backend."""
        codes, scale, *rest = q.parts
        base, encoding = q.base, q.encoding
        if encoding.kind == "float":
            codes = lax.bitcast_convert_type(codes, np.uint8)
        elif encoding.packed > 1:
            base = base or (1,)
            codes = _in_rows(codes, base, encoding)
        bits = [lax.bitcast_convert_type(x, np.uint32) for x in (scale, *rest)]
        of_blocks = 2 if q.scheme.has_zero_points else 1
        bits[:of_blocks] = [lax.reshape(x, x.shape or (1,) * len(base)) for x in bits[:of_blocks]]
        return cls((codes, *bits), (base, q.geometry, q.scheme))

    @property
    def form(self) -> Form:
        """The form with the axes that its codes have. Raises ValueError where there are no codes that could be those of
        an array."""
        if self._form is None:
            assert self._kept is not None
            self._form = _formed(self._kept, self.parts[0])
        return self._form

    @property
    def scheme(self) -> Scheme:
        return self._kept.scheme if self._kept is not None else self.form[2]

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the numbers."""
        return self._kept.dtype if self._kept is not None else self.form[1].dtype

    @property
    def label(self) -> str:
        """The encoding and shape, for messages."""
        return f"{self.scheme.encoding}{list(self.form[1].shape)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), _flat(self)


def quantized(q: Codes) -> Quantized:
    """Return the quantised array for the backend of JAX, in whose scope this is called."""
    base, geometry, scheme = q.form
    (codes, *bits), encoding = q.parts, scheme.codes
    if encoding.kind == "float":
        codes = lax.bitcast_convert_type(codes, encoding.dtype)
    elif encoding.packed > 1:
        codes = _in_a_row(codes, base, encoding)
    numbers = [lax.bitcast_convert_type(x, np.float32) for x in bits]
    of_blocks = 2 if scheme.has_zero_points else 1
    numbers[:of_blocks] = [lax.reshape(x, (1,) * (len(base) - x.ndim) + x.shape) for x in numbers[:of_blocks]]
    return Quantized.of((codes, *numbers), base, geometry, scheme)


def backend() -> Backend:
    return registry.get("jax")


@functools.lru_cache(maxsize=4096)
def _program(fn: Callable[[Backend, Quantized], Any], form: Form) -> Callable[..., Any]:
    def run(*parts: Array) -> Any:
        xp = backend()
        with xp.scope():
            out = fn(xp, quantized(Codes(parts, form)))
            return Codes.of(out).parts if isinstance(out, Quantized) else out

    return jax.jit(run, inline=True)


def dense_of(q: Codes) -> jax.Array:
    """Return the numbers."""
    return _program(dense, q.form)(*q.parts)


def as_own_codes(q: Codes) -> Any:
    """Return the same array with codes in its own shape, not a view of others."""
    base, geometry, scheme = q.form
    own_geometry = contiguous_geometry(geometry.shape, geometry.dtype)
    shape = geometry.shape or ((1,) if scheme.codes.packed > 1 else ())
    if (base, geometry) == (shape, own_geometry):
        return q
    return type(q)(_program(with_own_codes, q.form)(*q.parts), (shape, own_geometry, scheme))


# ---- shapes ----------------------------------------------------------------------------------------------------------


def _stored(base: Shape, encoding: Encoding) -> Shape:
    """Return the shape of the array of codes."""
    return base if encoding.packed == 1 else (*base[:-1], -(-base[-1] // encoding.packed))


def _in_rows(codes: Array, base: Shape, encoding: Encoding) -> Array:
    """Packed codes, of which each row of the last axis begins with a byte."""
    stored, rest = _stored(base, encoding), -base[-1] % encoding.packed
    if rest:
        xp = backend()
        rows: Array = encoding.unpack(xp, codes, base)
        codes = encoding.pack(xp, jax.numpy.pad(rows, [(0, 0)] * (len(base) - 1) + [(0, rest)]))
    return codes if codes.shape == stored else lax.reshape(codes, stored)


def _in_a_row(codes: Array, base: Shape, encoding: Encoding) -> Array:
    """Return codes as the hub has them: bytes (n,)."""
    row = lax.reshape(codes, (math.prod(codes.shape),))
    rest = -base[-1] % encoding.packed
    if not rest:
        return row
    xp = backend()
    rows: Array = encoding.unpack(xp, row, (*base[:-1], base[-1] + rest))
    return encoding.pack(xp, lax.slice_in_dim(rows, 0, base[-1], axis=len(base) - 1))


def _kept_form(form: Form) -> KeptForm:
    """Return the `KeptForm` of a form that is settled."""
    base, geometry, scheme = form
    last = base[-1] if scheme.codes.packed > 1 and geometry.shape else None
    return KeptForm(last, geometry.dtype, scheme)


def _formed(form: KeptForm, codes: Any) -> Form:
    """Return the form for the axes that codes have."""
    last, dtype, scheme = form
    shape = getattr(codes, "shape", None)
    if not isinstance(shape, tuple):
        raise ValueError(f"a quantised array ({scheme}) holds a {type(codes).__name__} instead of its codes")
    if scheme.codes.packed == 1:
        return shape, contiguous_geometry(shape, dtype), scheme
    if not shape or shape[-1] != _stored((1 if last is None else last,), scheme.codes)[0]:
        raise ValueError(
            f"codes of {scheme} are packed along the last axis, which has {last} elements, but got the shape"
            f" {shape}: jax.vmap and jax.lax.scan work along the other axes only"
        )
    if last is None:
        return shape, contiguous_geometry(shape[:-1], dtype), scheme
    base = (*shape[:-1], last)
    return base, contiguous_geometry(base, dtype), scheme


# ---- as a pytree -----------------------------------------------------------------------------------------------------


def _flat(q: Codes) -> tuple[tuple[Any, ...], KeptForm]:
    """Flatten, after copying views, so that the first axis of the codes is that of the array."""
    if q._kept is not None:
        return q.parts, q._kept
    q = as_own_codes(q)
    return q.parts, _kept_form(q.form)


def register(cls: type[Codes]) -> None:
    """Register a class as a pytree node of JAX and of optree."""

    def with_keys(q: Any) -> Any:
        parts, form = _flat(q)
        return [(jax.tree_util.GetAttrKey(n), x) for n, x in zip(form.scheme.parts, parts, strict=True)], form

    def unflatten(form: KeptForm, parts: Any) -> Any:
        return cls(tuple(parts), form)

    def named(q: Any) -> Any:
        parts, form = _flat(q)
        return parts, form, form.scheme.parts

    jax.tree_util.register_pytree_with_keys(cls, with_keys, unflatten, _flat)
    register_node: Any = optree.register_pytree_node  # its types ask for a collection
    register_node(cls, named, unflatten, namespace=getattr(optree.registry, "__GLOBAL_NAMESPACE"))
