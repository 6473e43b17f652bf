"""Operators made of operators: transposed, conjugated, scaled, tagged, sums and products."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import optree

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.frontends.array_api.core.devices import Device
from tensorgraft.frontends.array_api.core.promotion import promote
from tensorgraft.hub import dtypes
from tensorgraft.operators import tags as tags_
from tensorgraft.operators.base import LinearOperator
from tensorgraft.operators.structures import ShapeDtype, Structure
from tensorgraft.transforms import gradients


def is_scalar(x: Any) -> bool:
    return (isinstance(x, int | float | complex) and not isinstance(x, bool)) or (isinstance(x, Array) and not x.ndim)


class Wrapped(LinearOperator):
    """Another operator, seen differently: of its structures and device where nothing else is said."""

    _fields: ClassVar[tuple[str, ...]] = ("operator",)
    operator: LinearOperator

    def __init__(self, operator: LinearOperator) -> None:
        self.operator = _operator(type(self).__name__, operator)

    @property
    def _in(self) -> Structure:
        return self.operator._in

    @property
    def _out(self) -> Structure:
        return self.operator._out

    @property
    def device(self) -> Device:
        return self.operator.device


def _operator(name: str, x: Any) -> LinearOperator:
    if not isinstance(x, LinearOperator):
        raise TypeError(f"{name}: expected a LinearOperator, got a {type(x).__qualname__}")
    return x


class Reversed(Wrapped):
    """An operator that goes from the outputs of another to its inputs."""

    @property
    def _in(self) -> Structure:
        return self.operator._out

    @property
    def _out(self) -> Structure:
        return self.operator._in


class TransposeLinearOperator(Reversed):
    """The transpose of an operator, by reverse differentiation of its `mv`."""

    @property
    def _tags(self) -> Iterable[str]:
        return tags_.of_transpose(self.operator.tags)

    def mv(self, x: Any, /) -> Any:
        self._in.checked("TransposeLinearOperator.mv", x)
        _, pullback = gradients.vjp(self.operator.mv, self.operator._in.zeros(self.device))
        return pullback(x)[0]

    @property
    def T(self) -> LinearOperator:
        return self.operator

    def as_matrix(self) -> Array:
        return self.operator.as_matrix().mT

    def diagonal(self) -> Array:
        return self.operator.diagonal()


class ConjugateLinearOperator(Wrapped):
    """The complex conjugate of an operator."""

    @property
    def _tags(self) -> Iterable[str]:
        return self.operator.tags

    def mv(self, x: Any, /) -> Any:
        return _conj(self.operator.mv(_conj(x)))

    def mm(self, x: Any, /) -> Any:
        return _conj(self.operator.mm(_conj(x)))

    @property
    def T(self) -> LinearOperator:
        return ConjugateLinearOperator(self.operator.T)

    @property
    def H(self) -> LinearOperator:
        return self.operator.T

    def as_matrix(self) -> Array:
        return xp.conj(self.operator.as_matrix())

    def diagonal(self) -> Array:
        return xp.conj(self.operator.diagonal())


def _conj(x: Any) -> Any:
    return optree.tree_map(lambda v: xp.conj(v) if dtypes.is_complex(v.dtype) else v, x)


class ScaledLinearOperator(Wrapped):
    """A number, or a 0-dimensional array, times an operator."""

    _fields = ("operator", "scalar")

    def __init__(self, operator: LinearOperator, scalar: Any) -> None:
        super().__init__(operator)
        if not is_scalar(scalar):
            raise TypeError(f"ScaledLinearOperator: expected a number or a 0-dimensional array, got {scalar!r}")
        kind = scalar.dtype if isinstance(scalar, Array) else type(scalar)
        if (kind is complex or getattr(kind, "kind", "") == "c") and not dtypes.is_complex(operator.dtype):
            raise TypeError(
                f"ScaledLinearOperator: an operator of {operator.dtype} cannot be multiplied by a complex number"
            )
        self.scalar = scalar

    @property
    def _tags(self) -> Iterable[str]:
        scalar = self.scalar
        if isinstance(scalar, Array):
            scalar = "complex" if dtypes.is_complex(scalar.dtype) else "real"
        return tags_.of_scaled(self.operator.tags, scalar)

    def _times(self, x: Any) -> Any:
        def scale_leaf(v: Array) -> Array:
            if isinstance(self.scalar, Array) and self.scalar.dtype != v.dtype:
                return xp.astype(xp.astype(self.scalar, promote(v.dtype, self.scalar.dtype)) * v, v.dtype)
            return v * self.scalar

        return optree.tree_map(scale_leaf, x)

    def mv(self, x: Any, /) -> Any:
        return self._times(self.operator.mv(x))

    def mm(self, x: Any, /) -> Any:
        return self._times(self.operator.mm(x))

    def _flat(self, x: Array) -> Array:
        return self._times(self.operator.mm_flat(x))

    @property
    def T(self) -> LinearOperator:
        return self if "symmetric" in self.tags else ScaledLinearOperator(self.operator.T, self.scalar)

    @property
    def H(self) -> LinearOperator:
        if "hermitian" in self.tags:
            return self
        scalar = self.scalar
        if isinstance(scalar, Array):
            scalar = xp.conj(scalar) if dtypes.is_complex(scalar.dtype) else scalar
        else:
            scalar = scalar.conjugate()
        return ScaledLinearOperator(self.operator.H, scalar)

    def as_matrix(self) -> Array:
        return self._times(self.operator.as_matrix())

    def diagonal(self) -> Array:
        return self._times(self.operator.diagonal())


class TaggedLinearOperator(Wrapped):
    """An operator of which more is known than it says. Nobody checks that it holds."""

    _fields = ("operator", "_given")
    _static = ("_given",)

    def __init__(self, operator: LinearOperator, tags: Iterable[str]) -> None:
        super().__init__(operator)
        self._given = tags_.closed(tags, operator.dtype, operator.shape, "TaggedLinearOperator")

    @property
    def _tags(self) -> Iterable[str]:
        return self._given | self.operator.tags

    def mv(self, x: Any, /) -> Any:
        return self.operator.mv(x)

    def mm(self, x: Any, /) -> Any:
        return self.operator.mm(x)

    def mm_flat(self, x: Array, /) -> Array:
        return self.operator.mm_flat(x)

    @property
    def T(self) -> LinearOperator:
        if "symmetric" in self.tags:
            return self
        return TaggedLinearOperator(self.operator.T, tags_.of_transpose(self._given))

    @property
    def H(self) -> LinearOperator:
        if "hermitian" in self.tags:
            return self
        return TaggedLinearOperator(self.operator.H, tags_.of_transpose(self._given))

    def as_matrix(self) -> Array:
        return self.operator.as_matrix()

    def diagonal(self) -> Array:
        return self.operator.diagonal()


class Composed(LinearOperator):
    """Several operators on one device."""

    _fields = ("operators",)
    operators: tuple[LinearOperator, ...]

    def __init__(self, operators: Sequence[LinearOperator]) -> None:
        name = type(self).__name__
        self.operators = tuple([_operator(name, x) for x in operators])
        if not self.operators:
            raise ValueError(f"{name}: expected at least one operator")
        devices = dict.fromkeys(str(x.device) for x in self.operators)
        if len(devices) > 1:
            raise ValueError(f"{name}: the operators are on several devices ({', '.join(devices)})")

    @property
    def device(self) -> Device:
        return self.operators[0].device


class SumLinearOperator(Composed):
    """The sum of operators of the same structures."""

    def __init__(self, operators: Sequence[LinearOperator]) -> None:
        super().__init__([part for x in operators for part in (x.operators if type(x) is SumLinearOperator else [x])])
        first = self.operators[0]
        for x in self.operators[1:]:
            if not (_is_compatible(x._in, first._in) and _is_compatible(x._out, first._out)):
                raise ValueError(
                    f"a sum of operators: expected all to map {first._in} -> {first._out}, got one of {x._in} ->"
                    f" {x._out}"
                )

    @property
    def _in(self) -> Structure:
        return _widest([x._in for x in self.operators])

    @property
    def _out(self) -> Structure:
        return _widest([x._out for x in self.operators])

    @property
    def _tags(self) -> Iterable[str]:
        return tags_.of_sum([x.tags for x in self.operators])

    def mv(self, x: Any, /) -> Any:
        return _added([part.mv(x) for part in self.operators])

    def mm(self, x: Any, /) -> Any:
        return _added([part.mm(x) for part in self.operators])

    def _flat(self, x: Array) -> Array:
        return _added([part.mm_flat(x) for part in self.operators])

    @property
    def T(self) -> LinearOperator:
        return self if "symmetric" in self.tags else SumLinearOperator([x.T for x in self.operators])

    @property
    def H(self) -> LinearOperator:
        return self if "hermitian" in self.tags else SumLinearOperator([x.H for x in self.operators])

    def as_matrix(self) -> Array:
        return _added([x.as_matrix() for x in self.operators])

    def diagonal(self) -> Array:
        return _added([x.diagonal() for x in self.operators])


def _added(parts: Sequence[Any]) -> Any:
    def total(*leaves: Array) -> Array:
        out = leaves[0]
        for v in leaves[1:]:
            out = out + v
        return out

    return parts[0] if len(parts) == 1 else optree.tree_map(total, *parts)


def _is_compatible(a: Structure, b: Structure) -> bool:
    return a.tree == b.tree and [s.shape for s in a.leaves] == [s.shape for s in b.leaves]


def _widest(parts: Sequence[Structure]) -> Structure:
    first = parts[0]
    if all(p == first for p in parts):
        return first
    columns = zip(*(p.leaves for p in parts), strict=True)
    return Structure(
        [ShapeDtype(c[0].shape, functools.reduce(promote, [s.dtype for s in c])) for c in columns], first.tree
    )


class ProductLinearOperator(Composed):
    """The composition of operators: the last is applied first, as matrices are."""

    def __init__(self, operators: Sequence[LinearOperator]) -> None:
        super().__init__(
            [part for x in operators for part in (x.operators if type(x) is ProductLinearOperator else [x])]
        )
        for left, right in zip(self.operators, self.operators[1:], strict=False):
            if not _is_compatible(left._in, right._out):
                raise ValueError(
                    f"a product of operators: {type(left).__name__} expects {left._in}, but {type(right).__name__}"
                    f" returns {right._out}"
                )

    @property
    def _in(self) -> Structure:
        return self.operators[-1]._in

    @property
    def _out(self) -> Structure:
        out = self.operators[0]._out
        if dtypes.is_complex(out.dtype) or not any(dtypes.is_complex(x.dtype) for x in self.operators):
            return out
        return Structure([ShapeDtype(s.shape, dtypes.complex_dtype(s.dtype)) for s in out.leaves], out.tree)

    @property
    def _tags(self) -> Iterable[str]:
        return tags_.of_product([x.tags for x in self.operators])

    def mv(self, x: Any, /) -> Any:
        for part in reversed(self.operators):
            x = part.mv(x)
        return x

    def mm(self, x: Any, /) -> Any:
        for part in reversed(self.operators):
            x = part.mm(x)
        return x

    def _flat(self, x: Array) -> Array:
        for part in reversed(self.operators):
            x = part.mm_flat(x)
        return x

    @property
    def T(self) -> LinearOperator:
        return self if "symmetric" in self.tags else ProductLinearOperator([x.T for x in reversed(self.operators)])

    @property
    def H(self) -> LinearOperator:
        return self if "hermitian" in self.tags else ProductLinearOperator([x.H for x in reversed(self.operators)])

    def as_matrix(self) -> Array:
        """Return the narrowest factor as a matrix, to which the others are applied."""
        x = self.operators[-1].as_matrix()
        for part in reversed(self.operators[:-1]):
            x = part.mm_flat(x)
        return x
