"""In-place operators on lists of tensors (`_foreach_add_`).

PyTorch has no kernel for them that counts the writes (`_version`, by which autograd finds what was written after it was
kept): on the CPU each becomes in-place operators on single tensors, one after the other, which have. Here the list is
one program; the writes are counted, and where a tensor that is written is met again in the call, they are done singly.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import increment_version

from tensorgraft.frontends.torch.core.nested import tensors_in
from tensorgraft.frontends.torch.core.operator import Operator
from tensorgraft.frontends.torch.dispatch.overlap import meet

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_SINGLY = "CompositeExplicitAutograd"


def written_in_turn(operator: Operator) -> bool:
    """The operator writes a list, and PyTorch counts the writes nowhere but where it does them singly."""
    name = operator.op.name()
    return operator.kind == "inplace" and name.startswith("aten::_foreach_") and _has_kernel(name, _SINGLY)


def in_turn(operator: Operator, at_once: Callable[..., Any]) -> Callable[..., Any]:
    singly = functools.partial(operator.op._op_dk, torch._C.DispatchKey.CompositeExplicitAutograd)

    def call(written: list[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        if _met_again(written, args):
            return singly(written, *args, **kwargs)
        result = at_once(written, *args, **kwargs)
        counted = [t for t in written if not t.is_inference()]
        if counted:
            increment_version(counted)
        return result

    return call


def _met_again(written: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    """A tensor that is written shares memory with one at another place of the lists."""
    storages = Counter(t.untyped_storage()._cdata for t in written)
    beside = [a for a in args if isinstance(a, list | tuple) and a and isinstance(a[0], torch.Tensor)]
    alone = [a for a in args if isinstance(a, torch.Tensor)]
    if len(storages) == len(written) and not any(
        t.untyped_storage()._cdata in storages and (i >= len(written) or t is not written[i])
        for row in (*beside, alone)
        for i, t in (enumerate(row) if row is not alone else ((len(written), t) for t in row))
    ):
        return False
    others = [t for row in beside for i, t in enumerate(row) if i >= len(written) or t is not written[i]]
    return meet(written, [*written, *others, *tensors_in(alone, {})], grows=False)
