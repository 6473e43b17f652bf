"""Operators that are given by a few arrays: the identity, diagonal and tridiagonal ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import optree

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.frontends.array_api.core.devices import Device
from tensorgraft.frontends.array_api.core.promotion import promote
from tensorgraft.hub import dtypes
from tensorgraft.operators import structures
from tensorgraft.operators import tags as tags_
from tensorgraft.operators.base import LinearOperator
from tensorgraft.operators.structures import Structure, vector


class IdentityLinearOperator(LinearOperator):
    """The identity of a structure: a pytree of (shape, dtype) pairs, `ShapeDtype`s or arrays."""

    _fields = ("_structure", "_device")
    _static = ("_structure", "_device")

    def __init__(self, structure: Any, device: Any = None) -> None:
        self._structure = structures.structure_of_spec("IdentityLinearOperator", structure)
        self._device = structures.device_of(structure, device)

    @property
    def _in(self) -> Structure:
        return self._structure

    @property
    def _out(self) -> Structure:
        return self._structure

    @property
    def device(self) -> Device:
        return self._device

    @property
    def _tags(self) -> Iterable[str]:
        return ("diagonal", "positive_semidefinite", "unit_diagonal", "unitary")

    def mv(self, x: Any, /) -> Any:
        self._structure.checked("IdentityLinearOperator.mv", x)
        return x

    def mm(self, x: Any, /) -> Any:
        self._structure.checked("IdentityLinearOperator.mm", x, columns=True)
        return x

    @property
    def T(self) -> LinearOperator:
        return self

    @property
    def H(self) -> LinearOperator:
        return self

    def diagonal(self) -> Array:
        return xp.ones(self.in_size, dtype=self.dtype, device=self._device)


class DiagonalLinearOperator(LinearOperator):
    """Multiplies by a diagonal, an array (n,) or a pytree of arrays of any shapes.

    Arguments:
        tags: further properties, for example "positive_semidefinite".
    """

    _fields = ("values", "_given")
    _static = ("_given",)

    def __init__(self, values: Any, tags: Iterable[str] = ()) -> None:
        structure = _arrays("DiagonalLinearOperator", values)
        self.values = values
        shape = structure.size, structure.size
        self._given = tags_.closed({"diagonal", *_listed(tags)}, structure.dtype, shape, "DiagonalLinearOperator")

    @property
    def _in(self) -> Structure:
        return structures.of(self.values)

    @property
    def _out(self) -> Structure:
        return self._in

    @property
    def device(self) -> Device:
        return optree.tree_leaves(self.values)[0].device

    @property
    def tags(self) -> tags_.Tags:
        return self._given

    def mv(self, x: Any, /) -> Any:
        self._in.checked("DiagonalLinearOperator.mv", x)
        return optree.tree_map(lambda d, v: d * v, self.values, x)

    def mm(self, x: Any, /) -> Any:
        self._in.checked("DiagonalLinearOperator.mm", x, columns=True)
        return optree.tree_map(lambda d, v: xp.expand_dims(d, axis=-1) * v, self.values, x)

    @property
    def T(self) -> LinearOperator:
        return self

    @property
    def H(self) -> LinearOperator:
        if not dtypes.is_complex(self.dtype):
            return self
        values = optree.tree_map(lambda d: xp.conj(d) if dtypes.is_complex(d.dtype) else d, self.values)
        return DiagonalLinearOperator(values, self._given)

    def as_matrix(self) -> Array:
        d = self.diagonal()
        return xp.eye(d.shape[0], dtype=d.dtype, device=d.device) * d

    def diagonal(self) -> Array:
        return self._in.ravel(optree.tree_leaves(self.values))


def _listed(tags: Iterable[str]) -> Iterable[str]:
    return (tags,) if isinstance(tags, str) else tags


def _arrays(name: str, x: Any) -> Structure:
    """Return the structure of a pytree of floating-point or complex arrays on one device."""
    leaves: list[Any] = optree.tree_leaves(x)
    for v in leaves:
        if not isinstance(v, Array):
            raise TypeError(
                f"{name}: expected arrays of tensorgraft.array_api, got a"
                f" {type(v).__module__}.{type(v).__qualname__}: convert it with asarray"
            )
    devices = dict.fromkeys(str(v.device) for v in leaves)
    if len(devices) > 1:
        raise ValueError(f"{name}: the arrays are on several devices ({', '.join(devices)})")
    return structures.structure_of_spec(name, x)


class TridiagonalLinearOperator(LinearOperator):
    """A matrix (n, n) that is zero but on three diagonals.

    Arguments:
        diagonal: (n,); lower, upper: (n - 1,), below and above it.
    """

    _fields = ("_diagonal", "lower", "upper", "_given")
    _static = ("_given",)

    def __init__(self, diagonal: Array, lower: Array, upper: Array, tags: Iterable[str] = ()) -> None:
        structure = _arrays("TridiagonalLinearOperator", (diagonal, lower, upper))
        shapes = [s.shape for s in structure.leaves]
        n = diagonal.shape[0] if diagonal.ndim == 1 else -1
        if shapes != [(n,), (n - 1,), (n - 1,)]:
            raise ValueError(
                "TridiagonalLinearOperator: expected a diagonal (n,), and (n - 1,) below and above it, got"
                f" {', '.join(map(str, shapes))}"
            )
        self._diagonal = diagonal
        self.lower = lower
        self.upper = upper
        self._given = tags_.closed({"tridiagonal", *_listed(tags)}, structure.dtype, (n, n), type(self).__name__)

    @property
    def _in(self) -> Structure:
        dtype = promote(promote(self._diagonal.dtype, self.lower.dtype), self.upper.dtype)
        return vector(self._diagonal.shape[0], dtype)

    @property
    def _out(self) -> Structure:
        return self._in

    @property
    def device(self) -> Device:
        return self._diagonal.device

    @property
    def tags(self) -> tags_.Tags:
        return self._given

    @property
    def bands(self) -> tuple[Array, Array, Array]:
        """Return (below, on, above) the diagonal."""
        return self.lower, self._diagonal, self.upper

    def mv(self, x: Any, /) -> Array:
        (v,) = self._in.checked("TridiagonalLinearOperator.mv", x)
        return self.mm(xp.expand_dims(v, axis=1))[:, 0]

    def mm(self, x: Any, /) -> Array:
        (v,) = self._in.checked("TridiagonalLinearOperator.mm", x, columns=True)
        lower, diagonal, upper = (xp.expand_dims(d, axis=1) for d in self.bands)
        below, above = lower * v[:-1, :], upper * v[1:, :]
        edge = xp.zeros((1, v.shape[1]), dtype=below.dtype, device=v.device)
        return diagonal * v + xp.concat([edge, below], axis=0) + xp.concat([above, edge], axis=0)

    @property
    def T(self) -> LinearOperator:
        if "symmetric" in self.tags:
            return self
        return TridiagonalLinearOperator(self._diagonal, self.upper, self.lower, tags_.of_transpose(self._given))

    @property
    def H(self) -> LinearOperator:
        if "hermitian" in self.tags:
            return self
        lower, diagonal, upper = (xp.conj(d) if dtypes.is_complex(d.dtype) else d for d in self.bands)
        return TridiagonalLinearOperator(diagonal, upper, lower, tags_.of_transpose(self._given))

    def diagonal(self) -> Array:
        return self._diagonal
