"""A function of `Array`s as a function of one backend's arrays, which the backend can transform."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import optree

from tensorgraft.frontends.array_api.core import tracing
from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.checks import check
from tensorgraft.frontends.array_api.core.devices import is_device
from tensorgraft.frontends.array_api.core.exchange import to_device
from tensorgraft.frontends.array_api.core.tracing import capturing
from tensorgraft.hub.backend import Backend
from tensorgraft.interrupts import all_or_none
from tensorgraft.storage import Storage


class ArrayFunction:
    """`fn(*args)` as (backend, *arrays) -> arrays, some leaves of the arguments being replaced.

    Results are those of `fn`, then the storages from outside that it has written, then those inputs that it has
    written, then the flags of its checks. `finish` checks the flags, applies the writes, and builds the result of `fn`.
    """

    def __init__(self, name: str, fn: Callable[..., Any], args: Sequence[Any], argnums: Sequence[int]) -> None:
        self.name = name
        self.fn = fn
        operands: Any = tuple(args)
        self.leaves: list[Any]
        self.leaves, self.tree = optree.tree_flatten(operands)
        spans = _spans(args)
        self.positions = [i for k in argnums for i in spans[k]]
        self.inputs: list[Array] = []
        for i in self.positions:
            x = self.leaves[i]
            if not isinstance(x, Array):
                raise TypeError(
                    f"{name}: expected arrays of tensorgraft.array_api in argument {_owner(spans, i)}, got a"
                    f" {type(x).__qualname__}"
                )
            self.inputs.append(x)
        if not self.inputs:
            raise TypeError(f"{name}: there is no array in argument {', '.join(map(str, argnums))}")
        cells = [x._cell for x in self.inputs]
        capture = tracing.now.capture
        for cell in cells:  # inside of a transform they are arrays of it: the function may read others that are
            if capture is not None and cell.backend is not capture.inner:
                capture.touch(cell)
        self.outer = cells[0].backend
        if any(cell.backend is not self.outer for cell in cells):
            devices = ", ".join(dict.fromkeys(str(x.device) for x in self.inputs))
            raise ValueError(f"{name}: the arrays are on several devices ({devices}): move them with to_device")

    def values(self) -> list[Any]:
        """Return the arrays of the inputs."""
        with self.outer.scope():
            return [x._value() for x in self.inputs]

    def __call__(self, inner: Backend, *values: Any) -> tuple[Any, ...]:
        with capturing(self.outer, inner, name=self.name, fn=self.fn) as capture, inner.scope():
            cells = [Storage(inner.copy(v) if inner.mutable else v, inner) for v in values]
            capture.arguments = set(map(id, cells))
            for cell in cells:
                cell.capture = capture
            leaves: Any = list(self.leaves)
            for i, cell in zip(self.positions, cells, strict=True):
                leaves[i] = Array(cell)
            out: Any = self.fn(*optree.tree_unflatten(self.tree, leaves))
            outputs: Any
            outputs, self.structure = optree.tree_flatten(out)
            for x in outputs:
                if isinstance(x, Array) and x._cell.backend is not inner:
                    capture.take(x._cell)
            self.constants = [None if isinstance(x, Array) else x for x in outputs]
            # False for an abstract array, which has a shape alone
            self.devices = [
                None if not isinstance(x, Array) else x._cell.backend.name != "abstract" and x.device for x in outputs
            ]
            results = [x._value() for x in outputs if isinstance(x, Array)]
            self.count = len(results)
            x = leaves = out = outputs = None  # frees storages made inside: the remaining ones existed before
            written_cells = capture.written()
            self.written = [cell for cell, _ in written_cells]
            self.rewritten = [
                k for k, (cell, v) in enumerate(zip(cells, values, strict=True)) if inner.mutable or cell.array is not v
            ]
            self.checks = [message for _, message in capture.checks]
            flags = [flag for flag, _ in capture.checks]
            return (*results, *(a for _, a in written_cells), *(cells[k].array for k in self.rewritten), *flags)

    def raise_failed(self, returned: Sequence[Any]) -> None:
        """Raise the error of `error_if`: now, or, if the call is traced, when the program has run."""
        for flag, message in zip(returned[len(returned) - len(self.checks) :], self.checks, strict=True):
            check(self.outer, flag, message)

    def rest(self, returned: Sequence[Any]) -> Sequence[Any]:
        """Return the written arrays among those that the transform gave back."""
        return returned[self.count : len(returned) - len(self.checks)]

    def finish(self, returned: Sequence[Any], results: Sequence[Any] | None = None) -> Any:
        """Apply the writes, and return the result of `fn`, with the arrays that the transform returned."""
        xp = self.outer
        rest = self.rest(returned)
        with xp.scope():
            self.raise_failed(returned)
            out = self.returned(returned[: self.count] if results is None else results)
            writes = [functools.partial(_put, xp, *pair) for pair in zip(self.written, rest, strict=False)]
            for k, value in zip(self.rewritten, rest[len(self.written) :], strict=True):
                writes.append(functools.partial(self.inputs[k]._write, value))
            all_or_none(lambda write: write(), writes)
            return out

    def returned(self, results: Sequence[Any]) -> Any:
        """Return arrays in the structure of the result of `fn`."""
        remaining = iter(results)
        leaves = [
            c if device is None else _moved_to(new_array(next(remaining), self.outer), device)
            for c, device in zip(self.constants, self.devices, strict=True)
        ]
        return optree.tree_unflatten(self.structure, leaves)


def _moved_to(x: Array, device: Any) -> Array:
    return to_device(x, device) if device else x


def _put(xp: Backend, cell: Storage, value: Any) -> None:
    """Write an array of the level outside into a storage of it, or into one on another device."""
    cell_backend = cell.backend
    if cell_backend is not xp and is_device(cell_backend):
        with cell_backend.scope():
            xp, value = cell_backend, cell_backend.asarray(xp.to_numpy(value))
    if xp.mutable:
        xp.assign(cell.array, value)
    else:
        cell.array = value


def _spans(args: Sequence[Any]) -> list[range]:
    """Return the range of each argument's leaves among all leaves."""
    spans, at = [], 0
    for a in args:
        n = optree.tree_structure(a).num_leaves
        spans.append(range(at, at + n))
        at += n
    return spans


def _owner(spans: Sequence[range], i: int) -> int:
    return next(k for k, span in enumerate(spans) if i in span)
