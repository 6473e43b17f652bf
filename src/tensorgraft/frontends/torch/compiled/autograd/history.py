"""Results of a compiled function that have a history: the tape behind them, and those that are tensors from outside."""

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

Tensor = torch.Tensor


def record(
    flat: Sequence[Any], identical: Sequence[int | None], looks: Sequence[Any], first_node: int, capture: Capture
) -> tuple[list[int], Tape | None]:
    """Return (which of the results can be differentiated, the tape of these). Those that are arguments, and those that
    `looks` has something for, have their own history.

    `first_node` is the sequence number of autograd's nodes at which the function began. Raises RuntimeError where the
    graph goes on to nodes from before.
    """
    places = [
        i
        for i, t in enumerate(flat)
        if isinstance(t, Tensor)
        and t.device.type == TYPE
        and has_history(t)
        and identical[i] is None
        and looks[i] is None
        and not any(t is before for before in flat[:i])
    ]
    tape = taped([flat[i] for i in places], first_node, capture) if places else None
    if tape is not None:
        tape.cut = frozenset(capture.cut)
        tape.retained = [t for ref in capture.retained if (t := ref()) is not None and t.retains_grad]
        tape.python = tape.python or capture.hooks_inside or bool(capture.checkpoints)
    return ([], None) if tape is None else (places, tape)


Finder = Callable[[Sequence[Any]], Tensor]


def looks(
    flat: Sequence[Any],
    arguments: Sequence[tuple[int, Tensor]],
    outside: dict[int, Finder],
    memory: dict[int, Finder],
    capture: Capture,
) -> list[Finder | None]:
    """Return what results that are tensors from outside, or views of some, are at a call with given arguments; None for
    those that the program makes, and for those that are arguments themselves. `outside`: by identity; `memory`: what
    finds tensors that may be others at each call, by their storages."""
    given: dict[int, Finder] = {id(t): operator.itemgetter(i) for i, t in arguments}
    behind = {id(b): functools.partial(_base_of, i) for i, t in arguments if (b := _base(t)) is not None}
    cells = {id(cell_of(t)) for _, t in arguments}
    born = set(map(id, capture.survivors()))

    def look(t: Any) -> Finder | None:
        try:
            return look_of(t)
        except RuntimeError:  # one of several views of what was written since, which PyTorch tells nothing of
            return None

    def look_of(t: Any) -> Finder | None:
        if not (isinstance(t, Tensor) and t.device.type == TYPE) or id(t) in given:
            return None
        cell = cell_of(t)
        if id(cell) in born or cell.backend.compound or capture.looking_elsewhere(t):
            return None
        if id(t) in outside:
            return outside[id(t)]
        if capture.from_outside(t):
            return lambda leaves: t
        base = t._base
        if t.grad_fn is None and id(cell) not in cells and (base is None or t.requires_grad or id(cell) in memory):
            return _anew(t, memory.get(id(cell)))
        leaf = t.grad_fn is None and t.requires_grad
        if base is None or leaf or base.grad_fn is not None or capture.looking_elsewhere(base):
            return None
        if t.requires_grad and not base.requires_grad:  # by an argument between the two
            return None
        find = given.get(id(base)) or outside.get(id(base)) or behind.get(id(base))
        if find is None and id(cell) in cells and not base.requires_grad:
            return None
        seen, graded = Metadata.whole(t), t.requires_grad or not base.requires_grad
        return functools.partial(_view, find or (lambda leaves: base), seen, graded)

    return list(map(look, flat))


def _anew(t: Tensor, find: Finder | None) -> Finder:
    """Return what makes a tensor without history like one that the function has made of memory from outside. `find`:
    what finds a tensor that has this memory at a call."""
    seen, held, kind, required = Metadata.whole(t), t.detach(), type(t), t.requires_grad

    def look(leaves: Sequence[Any]) -> Tensor:
        new = seen.beside(held if find is None else find(leaves))
        return kind(new, required) if issubclass(kind, torch.nn.Parameter) else new.requires_grad_(required)

    return look


def _base(t: Tensor) -> Tensor | None:
    try:
        return t._base
    except RuntimeError:  # as in `look`
        return None


def _base_of(i: int, leaves: Sequence[Any]) -> Tensor:
    """Return what an argument is a view of, or the argument."""
    base = leaves[i]._base
    return leaves[i] if base is None else base


def _view(find: Finder, seen: Metadata, graded: bool, leaves: Sequence[Any]) -> Tensor:
    with torch.set_grad_enabled(graded):
        return seen.view(find(leaves))


def has_history(t: Tensor) -> bool:
    """Say whether `t` is the result of a function that can be differentiated: not one of several views (chunk, unbind)
    of what was written since, of which PyTorch refuses to tell."""
    try:
        return t.grad_fn is not None
    except RuntimeError:
        return False


def is_leaf(t: Tensor) -> bool:
    """Say whether a tensor has no history; a view from `no_grad` that was written since, of which PyTorch refuses to
    tell, is no leaf whose `requires_grad` can be set."""
    try:
        return t.is_leaf
    except RuntimeError:
        return False
