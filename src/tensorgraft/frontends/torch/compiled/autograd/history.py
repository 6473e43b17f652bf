"""The histories of results: the tape of gradients, and results that are tensors from outside."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.compiled.autograd.tape import Tape, taped
from tensorgraft.frontends.torch.compiled.capture import Capture
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.metadata import Metadata
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.frontends.torch.sparse.parts import is_sparse

Tensor = torch.Tensor


def record(
    flat: Sequence[Any], identical: Sequence[int | None], finders: Sequence[Any], first_node: int, capture: Capture
) -> tuple[list[int], Tape | None]:
    """Return (the indices of results that can be differentiated, their tape). Not among them are results that are
    arguments or have a finder: they have their own history.

    `first_node`: autograd's sequence number when the function began. Raises RuntimeError if the graph reaches older
    nodes.
    """
    positions = [
        i
        for i, t in enumerate(flat)
        if isinstance(t, Tensor)
        and t.device.type == TYPE
        and has_history(t)
        and identical[i] is None
        and finders[i] is None
        and not any(t is before for before in flat[:i])
    ]
    tape = taped([flat[i] for i in positions], first_node, capture) if positions else None
    if tape is not None:
        tape.detached = frozenset(capture.detached)
        tape.retained = [t for ref in capture.retained if (t := ref()) is not None and t.retains_grad]
        tape.python = tape.python or capture.hooks_inside or bool(capture.checkpoints)
    return ([], None) if tape is None else (positions, tape)


Finder = Callable[[Sequence[Any]], Tensor]


def result_finders(
    flat: Sequence[Any],
    arguments: Sequence[tuple[int, Tensor]],
    outside: dict[int, Finder],
    replaceable: dict[int, Finder],
    capture: Capture,
) -> list[Finder | None]:
    """Return, for each result that is a tensor from outside or a view of one, a function that finds it at a call; None
    for results made by the program and for arguments. `outside`: finders of tensors, by identity; `replaceable`: those
    of tensors that may be others at each call, by their storages."""
    argument_finders: dict[int, Finder] = {id(t): operator.itemgetter(i) for i, t in arguments}
    bases = {id(b): functools.partial(_base_of, i) for i, t in arguments if (b := _base(t)) is not None}
    argument_storages = {id(cell_of(t)) for _, t in arguments}
    new_storages = set(map(id, capture.survivors()))

    def finder_of(t: Any) -> Finder | None:
        try:
            return look_of(t)
        except RuntimeError:  # one of several views of a tensor written since: PyTorch raises an error
            return None

    def look_of(t: Any) -> Finder | None:
        if not (isinstance(t, Tensor) and t.device.type == TYPE) or id(t) in argument_finders:
            return None
        cell = cell_of(t)
        if id(cell) in new_storages or cell.backend.compound or capture.is_rebound(t):
            return None
        if id(t) in outside:
            return outside[id(t)]
        if capture.from_outside(t):
            return lambda leaves: t
        base = t._base
        if base is not None and is_sparse(base):  # a part of it, which is an argument of its own
            part = next((argument_finders[id(p)] for _, p in arguments if cell_of(p) is cell), None)
            return (
                None if part is None or t.requires_grad else functools.partial(_view, part, Metadata.of_lazy(t), False)
            )
        leaf = t.grad_fn is None and t.requires_grad and not ungraded_view(t)
        if (
            t.grad_fn is None
            and id(cell) not in argument_storages
            and (base is None or leaf or id(cell) in replaceable)
        ):
            return _new_tensor(t, replaceable.get(id(cell)))
        if base is None or leaf or base.grad_fn is not None or capture.is_rebound(base):
            return None
        # a view between the two requires gradients because of an argument
        if t.requires_grad and not base.requires_grad:
            return None
        find = argument_finders.get(id(base)) or outside.get(id(base)) or bases.get(id(base))
        if find is None and id(cell) in argument_storages and not base.requires_grad:
            return None
        metadata, graded = Metadata.of_lazy(t), t.grad_fn is not None or not base.requires_grad
        return functools.partial(_view, find or (lambda leaves: base), metadata, graded)

    return list(map(finder_of, flat))


def _new_tensor(t: Tensor, find: Finder | None) -> Finder:
    """Return a function that makes a tensor without history like one that the function has made of memory from outside.
    `find`: finds a tensor with this memory at a call."""
    metadata, memory, kind, required = Metadata.of_lazy(t), t.detach(), type(t), t.requires_grad

    def finder(leaves: Sequence[Any]) -> Tensor:
        new = metadata.beside(memory if find is None else find(leaves))
        return kind(new, required) if issubclass(kind, torch.nn.Parameter) else new.requires_grad_(required)

    return finder


def _base(t: Tensor) -> Tensor | None:
    try:
        return t._base
    except RuntimeError:  # see `finder_of`
        return None


def _base_of(i: int, leaves: Sequence[Any]) -> Tensor:
    """Return the base of an argument that is a view, or the argument."""
    base = leaves[i]._base
    return leaves[i] if base is None else base


def _view(find: Finder, metadata: Metadata, graded: bool, leaves: Sequence[Any]) -> Tensor:
    with torch.set_grad_enabled(graded):
        return metadata.view(find(leaves))


def ungraded_view(t: Tensor) -> bool:
    """Return True if a leaf requires gradients since it is a view, from `no_grad`, of a tensor that does: a backward
    pass does not reach it."""
    return is_leaf(t) and (base := _base(t)) is not None and base.requires_grad


def has_history(t: Tensor) -> bool:
    """Return True if `t` is the result of a differentiable function. False for one of several views (chunk, unbind) of
    a tensor that was written since, for which PyTorch raises an error."""
    try:
        return t.grad_fn is not None
    except RuntimeError:
        return False


def is_leaf(t: Tensor) -> bool:
    """Return True if a tensor has no history. False for a view from `no_grad` that was written since, for which PyTorch
    raises an error: its `requires_grad` cannot be set."""
    try:
        return t.is_leaf
    except RuntimeError:
        return False


def forget_history(t: Tensor) -> None:
    """Take the history from a tensor that had none before a function has written it."""
    base = _base(t)
    if base is None:
        t.detach_()
        return
    base.detach_()
    with torch.enable_grad():  # a view from `no_grad` may not be written under autograd
        torch._C._swap_tensor_impl(t, Metadata.of_lazy(t).view(base))
