"""Indices of sparse tensors from outside, as a trace knows them: their values, and which of them are copies of others.

How many elements a sum of two sparse tensors has depends on their indices, seldom on their values. Whatever a function
computes from the indices of sparse tensors from outside alone is computed twice: in the program, and at once, from the
indices of the call that is traced. An operator whose result's shape depends on them takes the latter, and a guard of
the trace compares the indices at each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from tensorgraft.frontends.torch.compiled.capture import Capture, paused
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE, slot_of
from tensorgraft.frontends.torch.core.nested import map_nested, tensors_in
from tensorgraft.frontends.torch.core.operator import Operator
from tensorgraft.frontends.torch.core.tensors import cell_of, from_array, to_array
from tensorgraft.hub.array import Array

Tensor = torch.Tensor
_COPIES = frozenset({"assign", "clone", "convert"})
_INTEGERS = frozenset({torch.int64, torch.int32, torch.bool})


class _Known(NamedTuple):
    """The values of a traced array: a vector of the elements of a storage, and the indices that they depend on."""

    array: Array  # kept, so that no other has its identity
    values: Tensor
    roots: frozenset[int]


class _Result(NamedTuple):
    """The values of an operator's results, and the indices that they depend on."""

    values: Sequence[Tensor]
    roots: frozenset[int]


class KnownIndices:
    """The indices of sparse tensors in one trace: copies, and known values."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._known: dict[int, _Known] = {}  # {id of a traced array: its values}
        self._roots: list[tuple[Tensor, Array]] = []  # indices from outside, and their arrays
        self._used: set[int] = set()  # those of the roots whose values the trace depends on
        self._copied: dict[Any, tuple[Any, Any]] = {}  # {identity of a copy: (both arrays, that of the original)}

    # ---- copies ------------------------------------------------------------------------------------------------------

    def identity(self, x: Tensor) -> Any:
        """Return what is equal for two tensors of which one is a copy of the other, or both are of a third."""
        own = id(cell_of(x).array), x.storage_offset(), x.shape, x.stride()
        return self._copied[own][1] if own in self._copied else own

    def _note_copy(self, copy: Tensor, original: Tensor) -> None:
        is_copy = copy.dtype in _INTEGERS and copy.dtype is original.dtype and copy.shape == original.shape
        if is_copy and copy.device == original.device:
            origin, array = self.identity(original), cell_of(copy).array
            own = id(array), copy.storage_offset(), copy.shape, copy.stride()
            if own != origin:
                self._copied[own] = (array, cell_of(original).array), origin

    # ---- values ------------------------------------------------------------------------------------------------------

    def add(self, indices: Tensor) -> None:
        """Take a tensor of indices from outside."""
        capture, cell = self._capture, cell_of(indices)
        if state.now.planning or cell.backend is not capture.backend:
            return
        capture.touch([cell])
        touched = next((t for t in reversed(capture.touched) if t.cell is cell), None)
        if touched is not None and cell.array is touched.stand_in and id(cell.array) not in self._known:
            self._roots.append((indices, touched.original))
            self._keep(indices, _of_array(touched.original, indices), frozenset({len(self._roots) - 1}))

    def knows(self, x: Tensor) -> bool:
        """Return True if the values of a tensor are known."""
        return self._of(x) is not None

    def array_of(self, x: Tensor) -> Array | None:
        """Return the values of a tensor if they are known; the trace depends on them from now on."""
        known = self._of(x)
        if known is None:
            return None
        self._used |= known.roots
        with paused():
            return to_array(_view(known.values, x))

    def _of(self, x: Tensor) -> _Known | None:
        if not self._known or x.device.type != TYPE or x.dtype not in _INTEGERS:
            return None
        array = cell_of(x).array
        known = self._known.get(id(array)) if cell_of(x).capture is self._capture else None  # else no input yet
        if known is None and self.is_constant(x):
            self._keep(x, _of_array(array, x), frozenset())
            known = self._known[id(array)]
        return known if known is not None and known.values.dtype is x.dtype else None

    def is_constant(self, x: Tensor) -> bool:
        """Return True for a tensor that is the same at each call."""
        capture, cell = self._capture, cell_of(x)
        inputs: list[Any] = [*capture.touched, *capture.feeds]
        is_inside = cell.capture is capture and not capture.backend.is_traced(cell.array)
        return is_inside and not any(cell.array is one.stand_in for one in inputs)

    def _keep(self, x: Tensor, values: Tensor, roots: frozenset[int]) -> None:
        if x.dtype in _INTEGERS and x.device.type == TYPE:
            array = cell_of(x).array
            self._known[id(array)] = _Known(array, values, roots)

    def computed(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Result | None:
        """Called before an operator writes its results: return their values if those of its operands are known."""
        if not self._known or operator.spec.random or len(operator.writes) > 1:
            return None
        bound = operator.signature.bind(args, kwargs)
        written = bound[operator.writes[0]] if operator.writes else None
        operands = [t for t in tensors_in(args, kwargs) if t is not written or operator.kind != "out"]
        constant = {id(t) for t in operands if t.device.type != TYPE and self._is_number(t)}
        known = [self._of(t) for t in operands if id(t) not in constant]
        if None in known or not (operands or bound.get("dtype") in (None, *_INTEGERS)):
            return None
        if written is not None and self._of(written) is None and not _is_whole(written):
            return None

        def values_of(a: Any) -> Any:
            if not isinstance(a, Tensor) or id(a) in constant:
                return a
            k = self._of(a)
            if k is None:
                return torch.empty(a.shape, dtype=a.dtype, device=a.device)
            return _view(k.values.clone() if a is written else k.values, a)

        with paused(), torch.no_grad():
            named = {name: map_nested(values_of, a) for name, a in kwargs.items()}
            values = operator.op(*map_nested(values_of, args), **named)
            flat = [_whole(t) if t.dtype in _INTEGERS else t for t in tensors_in((values,), {})]
        return _Result(flat, frozenset().union(*(k.roots for k in known if k is not None)))

    def _is_number(self, t: Tensor) -> bool:
        capture = self._capture
        is_fed = id(t) in capture.fed_tensors or (
            capture.host is not None and capture.host.inside_kernel(t) is not None
        )
        return t.dim() == 0 and t.is_cpu and not is_fed

    def note(self, operator: Operator, args: tuple[Any, ...], result: Any, values: _Result | None) -> None:
        """Called when an operator has been computed in the trace; `values` as `computed` has returned them."""
        if operator.name in _COPIES:
            self._note_copy(result, args[1] if operator.name == "assign" else args[0])
        if values is not None:
            for t, of_t in zip(tensors_in((result,), {}), values.values, strict=True):
                self._keep(t, of_t, values.roots)

    def note_zeros(self, x: Tensor) -> None:
        """Called when a tensor of zeros has been made in the trace."""
        if self._known and x.dtype in _INTEGERS:
            with paused():
                self._keep(x, torch.zeros(_size(x), dtype=x.dtype, device=x.device), frozenset())

    def note_concrete(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Called when an operator has been computed at once, from values that are known."""
        known = [self._of(t) for t in tensors_in(args, kwargs)]
        if known and None not in known:
            roots = frozenset().union(*(k.roots for k in known if k is not None))
            for t in tensors_in((result,), {}):
                if not self._capture.backend.is_traced(array := cell_of(t).array):
                    self._keep(t, _of_array(array, t), roots)

    def guards(self, positions: dict[int, int]) -> list[IndexGuard]:
        """Return the guards of those that the trace depends on. `positions`: of arguments, by their storages."""
        return [
            IndexGuard(indices, array, positions.get(id(cell_of(indices))))
            for indices, array in (self._roots[k] for k in sorted(self._used))
        ]


class IndexGuard:
    """The indices of a sparse tensor from outside are what they were when the function was traced."""

    def __init__(self, indices: Tensor, array: Array, position: int | None) -> None:
        """`position`: that of the argument that has them."""
        self._backend = cell_of(indices).backend
        self._position, self._indices = position, None if position is not None else indices
        self._last = array  # the one that was compared last
        self._values = np.array(self._backend.to_numpy(array))

    def hold(self, leaves: Sequence[Any]) -> bool:
        indices: Any = leaves[self._position] if self._position is not None else self._indices
        array = cell_of(indices).array
        if array is self._last and not type(self._backend).mutable:
            return True
        if not np.array_equal(self._backend.to_numpy(array), self._values):
            return False
        self._last = array
        return True

    def failure(self, names: dict[int, str]) -> str:
        return "a sparse tensor has other indices, on which the number of elements of another one depends"


def _of_array(array: Array, like: Tensor) -> Tensor:
    """Return the elements of an array as a vector."""
    with paused():
        return from_array(array, slot_of(like.device)).reshape(-1)


def _whole(x: Tensor) -> Tensor:
    """Return all elements of the storage of a tensor."""
    return x.as_strided((_size(x),), (1,), 0)


def _size(x: Tensor) -> int:
    """Return the number of elements of the storage of a tensor."""
    return x.untyped_storage().nbytes() // x.itemsize


def _is_whole(x: Tensor) -> bool:
    return x.is_contiguous() and _size(x) == x.numel()


def _view(values: Tensor, like: Tensor) -> Tensor:
    return values.as_strided(like.size(), like.stride(), like.storage_offset())
