"""What PyTorch's CPU kernels refuse and its meta functions let pass: the kernel is asked, on zeros, once a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorgraft.frontends.torch.asking import heard
from tensorgraft.frontends.torch.nested import flatten, map_nested, tensors_in
from tensorgraft.frontends.torch.operator import Operator

Tensor = torch.Tensor

_LARGEST = 1 << 26  # bytes of a call's storages together: beyond, the CPU is not asked


def refuse(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], *about: str) -> None:
    """Raises what the CPU raises for tensors that share storages as these do, if its message is `about` something:
    zeros may be no valid input."""
    storages: dict[int, torch.UntypedStorage] = {}
    tensors: dict[int, Tensor] = {}
    sizes = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors_in(args, kwargs)}
    if sum(sizes.values()) > _LARGEST:
        return

    def zeros(a: Any) -> Any:
        if isinstance(a, torch.device):
            return torch.device("cpu")
        if not isinstance(a, Tensor):
            return None if isinstance(a, torch.Generator) else a
        if id(a) not in tensors:
            at = a.untyped_storage()._cdata
            if at not in storages:
                storages[at] = torch.zeros(sizes[at], dtype=torch.uint8, device="cpu").untyped_storage()
            empty = torch.empty(0, dtype=a.dtype, device="cpu")
            tensors[id(a)] = empty.set_(storages[at], a.storage_offset(), a.size(), a.stride())
        return tensors[id(a)]

    ask: Callable[..., Any] = operator.op
    if operator.op is torch.ops.graft.assign.default:
        ask = torch.ops.aten.copy_.default
    host, named = map_nested(zeros, args), {n: map_nested(zeros, a) for n, a in kwargs.items()}
    try:
        heard(ask, host, named)
    except Exception as refusal:
        if not any(words in str(refusal) for words in about):
            return
        said = refusal
    else:
        return
    raise said.with_traceback(None) from None


def check_out_dtypes(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises where PyTorch refuses `out=` tensors of another dtype than the results: elementwise operators cast, most
    others do not, and meta functions that are written in Python cast always."""
    if operator.kind != "out" or operator.base is None or operator.dtype_of_out:
        return
    bound = operator.signature.bind(args, kwargs)
    written = tensors_in([bound.pop(name) for name in operator.writes], {})
    try:
        plain = operator.base(**{n: map_nested(_meta, a) for n, a in bound.items()})
    except Exception:  # no meta function, or none for these
        plain = tensors_in(list(bound.values()), {})[:1]
    made = [t.dtype for t in flatten(plain) if isinstance(t, Tensor)]
    if made != [t.dtype for t in written]:
        refuse(operator, args, kwargs, "type", "not implemented for", "tensor for result")


def _meta(a: Any) -> Any:
    if isinstance(a, Tensor):
        return torch.empty_strided(a.size(), a.stride(), dtype=a.dtype, device="meta")
    return None if isinstance(a, torch.Generator) else torch.device("meta") if isinstance(a, torch.device) else a
