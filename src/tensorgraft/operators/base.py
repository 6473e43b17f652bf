"""`LinearOperator`: a linear function of a vector, which is a pytree of arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import optree

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.frontends.array_api.core.devices import Device
from tensorgraft.frontends.array_api.core.promotion import promote
from tensorgraft.hub import dtypes
from tensorgraft.operators import tags as tags_
from tensorgraft.operators.pytrees import register
from tensorgraft.operators.structures import Structure
from tensorgraft.transforms import gradients

_COLUMNS = 512  # the number of columns that are computed at once, if only some elements of each are needed


class LinearOperator(ABC):
    """A linear map from pytrees of arrays to pytrees of arrays, on one device.

    It is a pytree itself: an argument and a result of `tg.jit`, and `tg.grad` differentiates in its arrays. A subclass
    names its attributes in `_fields`; those in `_static` are not arrays, and hashable. It writes `mv`, `_in`, `_out`
    and `device`; whatever else it can do better than by `mv`, it overrides.
    """

    _fields: ClassVar[tuple[str, ...]] = ()
    _static: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register(cls, _flatten, _unflatten)

    if TYPE_CHECKING:  # `arithmetic` gives it these

        @property
        def T(self) -> LinearOperator: ...
        @property
        def H(self) -> LinearOperator: ...
        def __add__(self, other: Any) -> LinearOperator: ...
        def __sub__(self, other: Any) -> LinearOperator: ...
        def __neg__(self) -> LinearOperator: ...
        def __mul__(self, scalar: Any) -> LinearOperator: ...
        def __rmul__(self, scalar: Any) -> LinearOperator: ...
        def __truediv__(self, scalar: Any) -> LinearOperator: ...
        def __matmul__(self, other: Any) -> Any: ...

    # ---- what it is --------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _in(self) -> Structure: ...

    @property
    @abstractmethod
    def _out(self) -> Structure: ...

    @property
    @abstractmethod
    def device(self) -> Device: ...

    @property
    def _tags(self) -> Iterable[str]:
        return ()

    @property
    def inverse_of(self) -> LinearOperator | None:
        """The operator whose inverse this one is, where that is how it was made: a product with it solves."""
        return None

    @property
    def in_structure(self) -> Any:
        """The structure of vectors that `mv` takes: a pytree of `ShapeDtype`."""
        return self._in.spec

    @property
    def out_structure(self) -> Any:
        """The structure of vectors that `mv` gives: a pytree of `ShapeDtype`."""
        return self._out.spec

    @property
    def in_size(self) -> int:
        return self._in.size

    @property
    def out_size(self) -> int:
        return self._out.size

    @property
    def shape(self) -> tuple[int, int]:
        """Return (out_size, in_size), the shape of the matrix that the operator represents."""
        return self.out_size, self.in_size

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the matrix: all dtypes of vectors promoted."""
        return promote(self._in.dtype, self._out.dtype)

    @property
    def tags(self) -> tags_.Tags:
        """The known tags of the operator, and those that follow from them."""
        return tags_.closed(self._tags, self.dtype, name=type(self).__name__)

    @property
    def is_vector_operator(self) -> bool:
        """Return whether it maps arrays (n,) to arrays (m,)."""
        return self._in.is_vector and self._out.is_vector

    def __repr__(self) -> str:
        known = f", tags={{{', '.join(sorted(self.tags))}}}" if self.tags else ""
        return f"{type(self).__name__}({self._in} -> {self._out}, device={str(self.device)!r}{known})"

    # ---- what it does ------------------------------------------------------------------------------------------------

    @abstractmethod
    def mv(self, x: Any, /) -> Any:
        """Return the operator applied to a vector of `in_structure`. Raises ValueError, TypeError for another
        structure."""

    def mm(self, x: Any, /) -> Any:
        """Applied to several vectors at once: every leaf has a trailing axis of extent k, (n, k) of plain vectors."""
        leaves = self._in.checked(f"{type(self).__name__}.mm", x, columns=True)
        k = leaves[0].shape[-1]
        if k == 0:
            return self._out.zeros(self.device, (0,))
        return gradients.vmap(self.mv, in_axes=-1, out_axes=-1)(x)

    def mm_flat(self, x: Array, /) -> Array:
        """Return the matrix of the operator times a matrix (in_size, k), whatever the structures: (out_size, k).

        Complex columns are taken by operators of real vectors, too (their real and imaginary parts).
        """
        name = f"{type(self).__name__}.mm_flat"
        if not isinstance(x, Array):
            raise TypeError(f"{name}: expected an array of tensorgraft.array_api, got a {type(x).__qualname__}")
        if x.ndim != 2 or x.shape[0] != self.in_size:
            raise ValueError(f"{name}: expected an array of shape ({self.in_size}, k), got one of shape {x.shape}")
        if not dtypes.is_inexact(x.dtype):
            x = xp.astype(x, self._in.dtype)
        k = x.shape[1]
        if dtypes.is_complex(x.dtype) and not all(dtypes.is_complex(s.dtype) for s in self._in.leaves):
            parts = self._flat(xp.concat([xp.real(x), xp.imag(x)], axis=1))
            real, imag = parts[:, :k], parts[:, k:]
            if dtypes.is_complex(parts.dtype):
                return real + imag * 1j
            dtype = dtypes.complex_dtype(parts.dtype)
            return xp.astype(real, dtype) + xp.astype(imag, dtype) * 1j
        return self._flat(x)

    def _flat(self, x: Array) -> Array:
        out = self.mm(self._in.unravel(x))
        return self._out.ravel(optree.tree_leaves(out), x.shape[1])

    def as_matrix(self) -> Array:
        """Return (out_size, in_size), vectors ravelled leaf by leaf in row-major order."""
        return self.mm_flat(xp.eye(self.in_size, dtype=self._in.dtype, device=self.device))

    def diagonal(self) -> Array:
        """Return (n,): the diagonal of the matrix, of which some columns at a time are computed."""
        n = min(self.shape)
        pieces = []
        for at in range(0, n, _COLUMNS):
            k = min(_COLUMNS, n - at)
            columns = xp.eye(self.in_size, k, k=-at, dtype=self._in.dtype, device=self.device)
            pieces.append(xp.linalg.diagonal(self.mm_flat(columns)[at : at + k, :]))
        if not pieces:
            return xp.zeros((0,), dtype=self.dtype, device=self.device)
        return pieces[0] if len(pieces) == 1 else xp.concat(pieces)


def _flatten(operator: LinearOperator) -> tuple[list[Any], Any, tuple[str, ...]]:
    children, names, rest = [], [], []
    for name in operator._fields:
        value = getattr(operator, name)
        if name in operator._static or (callable(value) and optree.tree_is_leaf(value)):
            rest.append((name, value))
        else:
            names.append(name)
            children.append(value)
    return children, (tuple(names), tuple(rest)), tuple(names)


def _unflatten(cls: type[LinearOperator], static_data: Any, children: Iterable[Any]) -> LinearOperator:
    names, rest = static_data
    instance = object.__new__(cls)
    for name, value in (*zip(names, children, strict=True), *rest):
        setattr(instance, name, value)
    return instance
