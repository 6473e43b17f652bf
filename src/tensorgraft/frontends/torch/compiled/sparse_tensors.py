"""Sparse tensors in traces: arguments, results and gradients are their parts, and those from outside are guarded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from tensorgraft.compiled.function import Expanded
from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.frontends.torch.compiled.known_indices import KnownIndices
from tensorgraft.frontends.torch.core import trees
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.frontends.torch.core.trees import Boxed, Leaves, Structure
from tensorgraft.frontends.torch.sparse.bounded import Bounds
from tensorgraft.frontends.torch.sparse.parts import SparseForm, form_of, is_sparse, parts_of

Tensor = torch.Tensor


def flatten_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Structure]:
    """Flatten the arguments of a call; the parts of sparse tensors follow the other leaves."""
    leaves, structure = trees.flatten_call(args, kwargs)
    sparse = [k for k, x in enumerate(leaves) if is_sparse(x)]
    if not sparse:
        return leaves, structure
    objects, count = (), len(leaves)
    if isinstance(structure, Expanded):
        structure, count, objects = structure.structure, structure.count, structure.objects
    leaves = leaves if isinstance(leaves, Leaves) else Leaves(leaves, (args, kwargs))
    forms = []
    for k in sparse:
        x, leaves[k] = leaves[k], Boxed(leaves[k])
        forms.append((k, form_of(x), x.requires_grad, type(x)))
        leaves += parts_of(x)
    return leaves, Expanded(structure, count, (*objects, *forms))


def refuse_arguments(leaves: Sequence[Any]) -> None:
    """Raises RunsUncompiled for sparse arguments that no program can take."""
    for x in (leaf.of for leaf in leaves if leaf.__class__ is Boxed and isinstance(leaf.of, Tensor)):
        if x.device.type != TYPE:
            raise RunsUncompiled(f"takes a sparse tensor on the device {x.device}, and computes on another one")
        if x.requires_grad:
            raise RunsUncompiled("takes a sparse tensor that requires gradients (pass its values, which may)")


class SparseGuard:
    """The parts of a sparse tensor that a trace has used: others, or another form, need another trace."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.before = tensor.detach()
        self._parts = parts_of(tensor)  # alive, so that others have other addresses
        self._key = self._current()

    def _current(self) -> Any:
        parts = parts_of(self.tensor)
        return form_of(self.tensor), [(id(cell_of(t)), t.shape, t.stride(), t.storage_offset()) for t in parts]

    def hold(self, leaves: Sequence[Any]) -> bool:
        return bool(self._current() == self._key)

    def failure(self, names: dict[int, str]) -> str:
        name = names.get(id(self.tensor), "a sparse tensor")
        return f"{name} has other indices or values, another layout, or is coalesced or no longer so"

    def restore(self) -> None:
        self.tensor.data = self.before


class OutsideSparse:
    """The sparse tensors from outside that a function uses while it is traced."""

    def __init__(self, capture: Any) -> None:
        self._capture = capture
        self.bounds = Bounds()
        self.indices = KnownIndices(capture)
        self._guards: dict[int, SparseGuard] = {}

    def note(self, tensors: Sequence[Tensor]) -> None:
        """Called before an operator is computed on `tensors`."""
        for t in tensors:
            if id(t) not in self._guards and is_sparse(t) and t.device.type == TYPE and self._capture.from_outside(t):
                self._guards[id(t)] = None  # type: ignore[assignment]  # its parts are asked for now
                self._guards[id(t)] = SparseGuard(t)
                for indices in parts_of(t)[:-1]:
                    self.indices.add(indices)

    def settle(self) -> None:
        """Called when the function has ended. Raises RunsUncompiled where a tensor has got other parts."""
        changed = [guard for guard in self._guards.values() if not guard.hold(())]
        for guard in changed:
            guard.restore()
        if changed:
            raise RunsUncompiled("changes which values a sparse tensor from outside stores")

    def guards(self, leaves: Sequence[Any]) -> list[SparseGuard]:
        """Return the guards of those that are no arguments, which are another tensor at each call."""
        arguments = {id(leaf.of) for leaf in leaves if leaf.__class__ is Boxed}
        return [guard for key, guard in self._guards.items() if key not in arguments]


class SparseResult(NamedTuple):
    """A sparse tensor among the results: its position, its form, and the position of its first part."""

    position: int
    form: SparseForm
    first: int

    def build(self, flat: list[Any]) -> None:
        flat[self.position] = self.form.build(flat[self.first : self.first + self.form.part_count])


def take_apart(flat: list[Any], position: int) -> SparseResult:
    """Replace a sparse result, and append its parts. Raises RunsUncompiled where autograd knows it."""
    x = flat[position]
    if x.requires_grad:
        raise RunsUncompiled("returns or keeps a sparse tensor that requires gradients (return its values, which may)")
    parts = parts_of(x)
    result = SparseResult(position, form_of(x), len(flat))
    flat[position] = object()  # results are compared by identity
    flat.extend(parts)
    return result
