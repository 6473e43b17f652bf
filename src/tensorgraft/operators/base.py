"""`LinearOperator`: what is applied to a vector, a pytree of arrays; the operators of a matrix and of a function."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np
import optree

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.frontends.array_api.devices import Device
from tensorgraft.frontends.array_api.promotion import promote
from tensorgraft.hub import dtypes
from tensorgraft.operators import structures
from tensorgraft.operators import tags as tags_
from tensorgraft.operators.pytrees import register
from tensorgraft.operators.structures import ShapeDtype, Structure
from tensorgraft.transforms import gradients

_COLUMNS = 512  # how many columns at once where only some numbers of each are wanted


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
    def in_structure(self) -> Any:
        """What `mv` takes: a pytree of `ShapeDtype`."""
        return self._in.spec

    @property
    def out_structure(self) -> Any:
        """What `mv` gives: a pytree of `ShapeDtype`."""
        return self._out.spec

    @property
    def in_size(self) -> int:
        return self._in.size

    @property
    def out_size(self) -> int:
        return self._out.size

    @property
    def shape(self) -> tuple[int, int]:
        """(out_size, in_size), of the matrix that it stands for."""
        return self.out_size, self.in_size

    @property
    def dtype(self) -> np.dtype:
        """That of the matrix: all dtypes of vectors promoted."""
        return promote(self._in.dtype, self._out.dtype)

    @property
    def tags(self) -> tags_.Tags:
        """What is known of it, with what follows from that."""
        return tags_.closed(self._tags, self.dtype, name=type(self).__name__)

    @property
    def is_vector_operator(self) -> bool:
        """It maps arrays (n,) to arrays (m,)."""
        return self._in.is_vector and self._out.is_vector

    def __repr__(self) -> str:
        known = f", tags={{{', '.join(sorted(self.tags))}}}" if self.tags else ""
        return f"{type(self).__name__}({self._in} -> {self._out}, device={str(self.device)!r}{known})"

    # ---- what it does ------------------------------------------------------------------------------------------------

    @abstractmethod
    def mv(self, x: Any, /) -> Any:
        """The operator applied to a vector of `in_structure`. Raises ValueError, TypeError for another structure."""

    def mm(self, x: Any, /) -> Any:
        """Applied to several vectors at once: every leaf has a trailing axis of extent k, (n, k) of plain vectors."""
        leaves = self._in.checked(f"{type(self).__name__}.mm", x, columns=True)
        k = leaves[0].shape[-1]
        if k == 0:
            return self._out.zeros(self.device, (0,))
        return gradients.vmap(self.mv, in_axes=-1, out_axes=-1)(x)

    def mm_flat(self, x: Array, /) -> Array:
        """The matrix of the operator times a matrix (in_size, k), whatever the structures: (out_size, k).

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

    @property
    def T(self) -> LinearOperator:
        """The transpose, not conjugated."""
        from tensorgraft.operators.composed import TransposeLinearOperator

        return self if "symmetric" in self.tags else TransposeLinearOperator(self)

    @property
    def H(self) -> LinearOperator:
        """The adjoint: the conjugate of the transpose."""
        from tensorgraft.operators.composed import ConjugateLinearOperator

        if "hermitian" in self.tags:
            return self
        transpose = self.T
        return ConjugateLinearOperator(transpose) if dtypes.is_complex(self.dtype) else transpose

    def as_matrix(self) -> Array:
        """(out_size, in_size), vectors ravelled leaf by leaf in row-major order."""
        return self.mm_flat(xp.eye(self.in_size, dtype=self._in.dtype, device=self.device))

    def diagonal(self) -> Array:
        """(n,): the diagonal of the matrix, of which some columns at a time are computed."""
        n = min(self.shape)
        found = []
        for at in range(0, n, _COLUMNS):
            k = min(_COLUMNS, n - at)
            columns = xp.eye(self.in_size, k, k=-at, dtype=self._in.dtype, device=self.device)
            found.append(xp.linalg.diagonal(self.mm_flat(columns)[at : at + k, :]))
        if not found:
            return xp.zeros((0,), dtype=self.dtype, device=self.device)
        return found[0] if len(found) == 1 else xp.concat(found)

    # ---- arithmetic --------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> LinearOperator:
        from tensorgraft.operators.composed import SumLinearOperator

        return SumLinearOperator([self, other]) if isinstance(other, LinearOperator) else NotImplemented

    def __sub__(self, other: Any) -> LinearOperator:
        return self + (-other) if isinstance(other, LinearOperator) else NotImplemented

    def __neg__(self) -> LinearOperator:
        return self * -1

    def __mul__(self, scalar: Any) -> LinearOperator:
        from tensorgraft.operators.composed import ScaledLinearOperator, is_scalar

        return ScaledLinearOperator(self, scalar) if is_scalar(scalar) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, scalar: Any) -> LinearOperator:
        from tensorgraft.operators.composed import is_scalar

        return self * (1 / scalar) if is_scalar(scalar) else NotImplemented

    def __matmul__(self, other: Any) -> Any:
        """Of another operator: the composition; of a vector: `mv`; of an array (n, k): `mm`."""
        from tensorgraft.operators.composed import ProductLinearOperator

        if isinstance(other, LinearOperator):
            return ProductLinearOperator([self, other])
        if isinstance(other, Array) and other.ndim == 2 and self.is_vector_operator:
            return self.mm(other)
        return self.mv(other)


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


def _unflatten(cls: type[LinearOperator], about: Any, children: Iterable[Any]) -> LinearOperator:
    names, rest = about
    made = object.__new__(cls)
    for name, value in (*zip(names, children, strict=True), *rest):
        setattr(made, name, value)
    return made


# ---- a matrix --------------------------------------------------------------------------------------------------------


class MatrixLinearOperator(LinearOperator):
    """The operator of a matrix (m, n), an array on any backend.

    Arguments:
        tags: what is known of the matrix. Nobody checks that it holds.
    """

    _fields = ("matrix", "_given")
    _static = ("_given",)

    def __init__(self, matrix: Array, tags: Iterable[str] = ()) -> None:
        if not isinstance(matrix, Array):
            raise TypeError(
                "MatrixLinearOperator: expected an array of tensorgraft.array_api, got a"
                f" {type(matrix).__module__}.{type(matrix).__qualname__}: asarray makes one of it"
            )
        if matrix.ndim != 2:
            raise ValueError(
                f"MatrixLinearOperator: expected a matrix, an array of two dimensions, got shape {matrix.shape}"
            )
        if not dtypes.is_inexact(matrix.dtype):
            raise TypeError(
                f"MatrixLinearOperator: expected floating-point or complex numbers, got {matrix.dtype}:"
                " astype(matrix, float64) makes them"
            )
        self.matrix = matrix
        self._given = tags_.closed(tags, matrix.dtype, self.shape, "MatrixLinearOperator")

    @property
    def _in(self) -> Structure:
        return _vector(self.matrix.shape[1], self.matrix.dtype)

    @property
    def _out(self) -> Structure:
        return _vector(self.matrix.shape[0], self.matrix.dtype)

    @property
    def device(self) -> Device:
        return self.matrix.device

    @property
    def tags(self) -> tags_.Tags:
        return self._given

    def mv(self, x: Any, /) -> Array:
        (v,) = self._in.checked("MatrixLinearOperator.mv", x)
        return xp.matmul(self.matrix, v)

    def mm(self, x: Any, /) -> Array:
        (v,) = self._in.checked("MatrixLinearOperator.mm", x, columns=True)
        return xp.matmul(self.matrix, v)

    def mm_flat(self, x: Array, /) -> Array:
        return self.mm(x)

    @property
    def T(self) -> LinearOperator:
        if "symmetric" in self.tags:
            return self
        return MatrixLinearOperator(self.matrix.mT, tags_.of_transpose(self.tags))

    @property
    def H(self) -> LinearOperator:
        if "hermitian" in self.tags:
            return self
        matrix = self.matrix.mT
        if dtypes.is_complex(self.dtype):
            matrix = xp.conj(matrix)
        return MatrixLinearOperator(matrix, tags_.of_transpose(self.tags))

    def as_matrix(self) -> Array:
        return self.matrix

    def diagonal(self) -> Array:
        return xp.linalg.diagonal(self.matrix)


@functools.lru_cache(maxsize=1024)
def _vector(n: int, dtype: np.dtype) -> Structure:
    return structures.given("vector", ((n,), dtype))


# ---- a function ------------------------------------------------------------------------------------------------------


class FunctionLinearOperator(LinearOperator):
    """The operator of a linear function of a pytree of arrays.

    The transpose comes by reverse differentiation, `mm` by batching.

    Arguments:
        fn: linear; nobody checks that it is. Arrays that it closes over are differentiated, too, and read at each call
            of a compiled function. A pytree that can be called (a module) has its arrays among the operator's.
        structure: of what `fn` takes: a pytree of (shape, dtype) pairs, `ShapeDtype`s or arrays.
        device: on which `fn` computes. None: that of the arrays in `structure`, else the default device.
        tags: what is known of it. Nobody checks that it holds.
        out_structure: of what `fn` gives. None: `fn` is called once on zeros, when that is first asked for.
    """

    _fields = ("fn", "_given", "_structure", "_results", "_device")
    _static = ("_given", "_structure", "_results", "_device")

    def __init__(
        self,
        fn: Callable[[Any], Any],
        structure: Any,
        device: Any = None,
        tags: Iterable[str] = (),
        out_structure: Any = None,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"FunctionLinearOperator: expected a function, got a {type(fn).__qualname__}")
        self.fn = fn
        self._structure = structures.given("FunctionLinearOperator", structure)
        self._device = structures.device_of(structure, device)
        self._results = structures.Memo()
        if out_structure is not None:
            self._results.value = structures.given("FunctionLinearOperator", out_structure)
        known = tags_.closed(tags, self._structure.dtype, name="FunctionLinearOperator")
        if known and any(tags_.RULES[t].square for t in known) and self._results.value is None:
            self._results.value = self._structure  # square operators map a space to itself
        self._given = tags_.closed(tags, self.dtype, self.shape, "FunctionLinearOperator") if known else known

    @property
    def _in(self) -> Structure:
        return self._structure

    @property
    def _out(self) -> Structure:
        if self._results.value is None:
            self._results.value = structures.of(self.fn(self._structure.zeros(self._device)))
        return self._results.value

    @property
    def device(self) -> Device:
        return self._device

    @property
    def tags(self) -> tags_.Tags:
        return self._given

    def mv(self, x: Any, /) -> Any:
        self._structure.checked("FunctionLinearOperator.mv", x)
        out = self.fn(x)
        if self._results.value is None and structures.of(x) == self._structure:
            self._results.value = structures.of(out)
        return out


__all__ = ["FunctionLinearOperator", "LinearOperator", "MatrixLinearOperator", "ShapeDtype"]
