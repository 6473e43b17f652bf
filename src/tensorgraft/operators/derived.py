"""Operators of derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tensorgraft.frontends.array_api import Array
from tensorgraft.frontends.array_api.core.devices import Device
from tensorgraft.hub import dtypes
from tensorgraft.operators import structures
from tensorgraft.operators import tags as tags_
from tensorgraft.operators.base import LinearOperator
from tensorgraft.operators.composed import Reversed
from tensorgraft.operators.elementary import _arrays
from tensorgraft.operators.structures import Structure
from tensorgraft.transforms import gradients


class JacobianLinearOperator(LinearOperator):
    """The Jacobian of a function at a point, never as a matrix: `mv` by forward, `T` by reverse differentiation.

    Arguments:
        fn: of a pytree of arrays to a pytree of arrays.
        x: the point.
        tags: known properties of the Jacobian.
    """

    _fields = ("fn", "x", "_given", "_results")
    _static = ("_given", "_results")

    def __init__(self, fn: Callable[[Any], Any], x: Any, tags: Iterable[str] = ()) -> None:
        name = type(self).__name__
        if not callable(fn):
            raise TypeError(f"{name}: expected a function, got a {type(fn).__qualname__}")
        structure = _arrays(name, x)
        self.fn = fn
        self.x = x
        self._results = structures.Memo()
        self._given = tags_.closed(tags, structure.dtype, name=name)
        if self._given:
            self._given = tags_.closed(tags, self.dtype, self.shape, name)

    @property
    def _in(self) -> Structure:
        return structures.of(self.x)

    @property
    def _out(self) -> Structure:
        if self._results.value is None:
            self._results.value = structures.of(self.fn(self.x))
        return self._results.value

    @property
    def device(self) -> Device:
        import optree

        return optree.tree_leaves(self.x)[0].device

    @property
    def _tags(self) -> Iterable[str]:
        return self._given

    def mv(self, v: Any, /) -> Any:
        self._in.checked(f"{type(self).__name__}.mv", v)
        return gradients.jvp(self.fn, (self.x,), (v,))[1]

    @property
    def T(self) -> LinearOperator:
        return self if "symmetric" in self.tags else TransposedJacobian(self)


class TransposedJacobian(Reversed):
    """The transpose of a Jacobian: the function is run once, whatever the number of vectors."""

    operator: JacobianLinearOperator

    @property
    def _tags(self) -> Iterable[str]:
        return tags_.of_transpose(self.operator.tags)

    def mv(self, x: Any, /) -> Any:
        self._in.checked("TransposedJacobian.mv", x)
        return gradients.vjp(self.operator.fn, self.operator.x)[1](x)[0]

    def mm(self, x: Any, /) -> Any:
        return _pulled_back(self, self.operator.fn, self.operator.x, x)

    @property
    def T(self) -> LinearOperator:
        return self.operator


def _pulled_back(operator: LinearOperator, fn: Callable[[Any], Any], at: Any, x: Any) -> Any:
    leaves = operator._in.checked(f"{type(operator).__name__}.mm", x, columns=True)
    if leaves[0].shape[-1] == 0:
        return operator._out.zeros(operator.device, (0,))
    _, pullback = gradients.vjp(fn, at)
    return gradients.vmap(lambda v: pullback(v)[0], in_axes=-1, out_axes=-1)(x)


class HessianLinearOperator(JacobianLinearOperator):
    """The Hessian of a function that returns a real number at a real point, never as a matrix."""

    def __init__(self, fn: Callable[[Any], Any], x: Any, tags: Iterable[str] = ()) -> None:
        import optree

        for v in optree.tree_leaves(x):
            if isinstance(v, Array) and dtypes.is_complex(v.dtype):
                raise TypeError(f"HessianLinearOperator: expected a real point, got {v.dtype}")
        self._results = structures.Memo()
        super().__init__(fn, x, {"symmetric", *((tags,) if isinstance(tags, str) else tags)})

    @property
    def _out(self) -> Structure:
        return self._in

    def mv(self, v: Any, /) -> Any:
        self._in.checked("HessianLinearOperator.mv", v)
        return gradients.vjp(gradients.grad(self.fn), self.x)[1](v)[0]

    def mm(self, x: Any, /) -> Any:
        return _pulled_back(self, gradients.grad(self.fn), self.x, x)
