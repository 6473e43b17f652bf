"""In-place operators on lists of tensors (`_foreach_add_`).

On the CPU, PyTorch runs each as in-place operators on single tensors, which increment the version counters (`_version`,
by which autograd detects writes to saved tensors). Here the list is one program, and the counters are incremented. If a
written tensor occurs twice in the call, or one may be refused after others have been written, the tensors are processed
one by one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.core.operator import Operator
from tensorgraft.frontends.torch.dispatch.overlap import repeats, shares_memory

_SINGLY = "CompositeExplicitAutograd"


def written_in_turn(operator: Operator) -> bool:
    """Return True if the operator writes a list whose writes PyTorch counts only where it runs the operators one by
    one."""
    foreach = operator.op.name().startswith("aten::_foreach_")
    return operator.kind == "inplace" and foreach and schema.has_kernel(operator.op, _SINGLY)


def in_turn(operator: Operator, at_once: Callable[..., Any]) -> Callable[..., Any]:
    singly = functools.partial(operator.op._op_dk, torch.DispatchKey.CompositeExplicitAutograd)
    elementwise = not operator.op.name().startswith("aten::_foreach_copy_")  # copying a tensor to itself has no effect

    def call(targets: list[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        operands = [*args, *kwargs.values()] if kwargs else args
        is_computable = all(map(_plain, targets)) and all(_is_compatible(targets, a, elementwise) for a in operands)
        if not is_computable or _shares_memory(targets, operands, elementwise):
            return singly(targets, *args, **kwargs)
        try:
            result = at_once(targets, *args, **kwargs)
        except RuntimeError as error:
            if type(error) is not RuntimeError or not getattr(error, "untouched", False):
                raise
            return singly(targets, *args, **kwargs)  # those before the one that is refused are written
        counted = [t for t in targets if not t.is_inference()]
        if counted:
            increment_version(counted)
        return result

    return call


def _plain(t: torch.Tensor) -> bool:
    """Return True if PyTorch refuses no floating-point result for this tensor: its own dtype is one, no memory occurs
    twice in it, and it may be written (inference mode)."""
    return t.is_floating_point() and not repeats(t) and (not t.is_inference() or torch.is_inference_mode_enabled())


def _is_compatible(targets: list[torch.Tensor], a: Any, elementwise: bool) -> bool:
    """Return True if each element of an operand has the size and dtype of its tensor, or is a real number, so that none
    is refused."""
    if not isinstance(a, list | tuple):
        return not isinstance(a, complex)
    if len(a) != len(targets):  # refused before anything is written
        return True
    for x, t in zip(a, targets, strict=True):
        if not isinstance(x, torch.Tensor):
            if isinstance(x, complex):
                return False
        elif x.size() != t.size() or (elementwise and x.dtype is not t.dtype):
            return False
    return True


def _shares_memory(targets: list[torch.Tensor], args: Sequence[Any], elementwise: bool) -> bool:
    """Return True if a tensor that is written shares memory with another tensor of the call, other than itself in
    another list."""
    storages = {t.untyped_storage()._cdata for t in targets}
    others: list[torch.Tensor] = []
    for a in args:
        if isinstance(a, list | tuple):
            pairs = itertools.zip_longest(a, targets)
            others += [t for t, target in pairs if isinstance(t, torch.Tensor) and not (elementwise and t is target)]
        elif isinstance(a, torch.Tensor):
            others.append(a)
    if len(storages) == len(targets) and storages.isdisjoint(t.untyped_storage()._cdata for t in others):
        return False
    return shares_memory(targets, [*targets, *others], grows=False)
