"""Operators without a kernel: PyTorch's decomposition where there is one, else the CPU, with a warning."""

from __future__ import annotations

import functools
import os
from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tensorgraft import warning_filters
from tensorgraft.errors import FallbackError, FallbackWarning, TracedValueError
from tensorgraft.frontends.torch.core import pytrees, schema, state
from tensorgraft.frontends.torch.core.devices import TYPE, slot_at, slot_of
from tensorgraft.frontends.torch.core.located_errors import refused
from tensorgraft.frontends.torch.core.modes import without_autocast
from tensorgraft.frontends.torch.dispatch.memory import from_cpu, to_cpu
from tensorgraft.frontends.torch.dispatch.references import call_without_dynamo
from tensorgraft.interrupts import all_or_none

_counts: Counter[str] = Counter()
_forbidden = os.environ.get("TENSORGRAFT_FALLBACK", "") == "error"


class NoKernelError(TracedValueError):
    """An operator without a kernel, inside a trace."""

    def __init__(self, name: str) -> None:
        super().__init__(
            *refused(
                f"needs {name}, which has no kernel on the device {TYPE!r}. Inside tg.jit its arguments have no values"
                " yet that the CPU could compute with.",
                ("do it outside", "before the call, and pass the result"),
                ("see them all", "tg.explain(function, ...) lists the operators without a kernel"),
            ).args
        )
        self.name = name


def fallbacks() -> dict[str, int]:
    """Return how often each operator has run on the CPU for want of a kernel, by name. Raises nothing.

    >>> import tensorgraft as tg
    >>> sum(tg.torch.fallbacks().values()) >= 0
    True
    """
    return dict(_counts)


def set_fallback(mode: str) -> None:
    """Set what happens where the device has no kernel of an operator: "warn" (once for each operator; the default) and
    run it on the CPU, or "error": FallbackError. Raises ValueError for another mode.

    >>> import tensorgraft as tg
    >>> tg.torch.set_fallback("error")
    >>> tg.torch.set_fallback("warn")
    """
    global _forbidden
    if mode not in ("warn", "error"):
        raise ValueError(f"set_fallback: expected 'warn' or 'error', got {mode!r}")
    _forbidden = mode == "error"


@functools.cache
def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """PyTorch's own decompositions (imported on first use: they are slow to load)."""
    with warning_filters.remembered():
        from torch._decomp import decomposition_table

    call_without_dynamo()
    aten = torch.ops.aten
    repaired: dict[Any, Callable[..., torch.Tensor]] = {
        aten.isin.Tensor_Tensor: _isin,
        aten.unfold_backward.default: _unfold_backward,
        aten.mse_loss_backward.default: _loss_backward,
        aten.huber_loss_backward.default: _loss_backward,
        aten.smooth_l1_loss_backward.default: _loss_backward,
    }
    return ChainMap(
        {op: functools.partial(repair, decomposition_table[op]) for op, repair in repaired.items()}, decomposition_table
    )


def _isin(
    decomposition: Callable[..., Any], elements: torch.Tensor, test_elements: torch.Tensor, **options: bool
) -> torch.Tensor:
    """PyTorch's compares each element of both with the next one, of which nothing has one."""
    if elements.numel():
        return decomposition(elements, test_elements, **options)
    return torch.empty_like(elements, dtype=torch.bool, memory_format=torch.contiguous_format)


def _unfold_backward(
    decomposition: Callable[..., Any], grad: torch.Tensor, input_size: Sequence[int], *options: int
) -> torch.Tensor:
    """PyTorch's gives no number back for a window of none over a number."""
    return decomposition(grad, input_size, *options) if input_size else grad.sum(0)


def _loss_backward(decomposed: Callable[..., Any], grad: torch.Tensor, x: torch.Tensor, *options: Any) -> torch.Tensor:
    """PyTorch's divides by how many losses there are."""
    return decomposed(grad, x, *options) if x.numel() else torch.empty_like(x)


def on_cpu(op: schema.Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on CPU copies; written arguments are copied back, and results are moved to the device.

    Raises FallbackError if the user forbids it, TracedValueError inside a trace.
    """
    name = schema.short_name(op)
    if state.now.capture is not None and not _of_nothing(op, args, kwargs):
        if state.now.in_place_of_the_cpu is not None:
            return state.now.in_place_of_the_cpu(op, args, kwargs)
        raise NoKernelError(name)
    announce(name)
    return compute_on_cpu(op, args, kwargs)


def _of_nothing(op: schema.Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True if the tensors have no elements, so that their values are known even in a trace."""
    tensors = [t for t in pytrees.leaves_of((args, kwargs)) if isinstance(t, torch.Tensor)]
    return bool(tensors) and not any(map(torch.numel, tensors)) and torch.Tag.nondeterministic_seeded not in op.tags


def announce(name: str) -> None:
    """Count an operator that runs on the CPU; warn the first time. Raises FallbackError where the user forbade it."""
    if _forbidden:
        raise FallbackError(
            f"aten::{name} has no kernel on the device {TYPE!r}, and running on the CPU instead is forbidden"
            " (TENSORGRAFT_FALLBACK=error, or tensorgraft.torch.set_fallback)."
        )
    if not _counts[name]:
        warning_filters.warn(
            f"aten::{name} has no kernel on the device {TYPE!r}: it runs on the CPU, with its arguments copied"
            " there and its results copied back. tensorgraft.torch.fallbacks() counts the calls.",
            FallbackWarning,
        )
    _counts[name] += 1


def compute_on_cpu(op: schema.Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute a call on the CPU as `on_cpu` does, but without counting it: for operators that belong there."""
    slot = None
    pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def down(a: Any) -> Any:
        nonlocal slot
        if isinstance(a, torch.Tensor) and a.device.type == TYPE:
            slot = slot or slot_at(a.device.index)
            if id(a) not in pairs:
                pairs[id(a)] = (a, to_cpu(a))
            return pairs[id(a)][1]
        if isinstance(a, torch.device) and a.type == TYPE:
            slot = slot or slot_of(a)
            return torch.device("cpu")
        return a

    host_args, host_kwargs = pytrees.mapped(down, (args, kwargs))
    if slot is None:
        slot = slot_of(None)
        if "device" in schema.signature(op).names:
            host_kwargs["device"] = torch.device("cpu")
    with without_autocast():  # the CPU's own: the operator has been cast by the device's table
        result = op(*host_args, **host_kwargs)
    bound = schema.signature(op).bind(args, kwargs)
    sent = {id(low): high for high, low in pairs.values()}

    def up(a: Any) -> Any:
        if not isinstance(a, torch.Tensor):
            return a
        return sent.get(id(a)) if id(a) in sent else from_cpu(a, slot)

    def write(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
        high, low = pair
        if high.size() != low.size():
            high.resize_(low.size())
        high.copy_(low)

    out = pytrees.mapped(up, result)
    targets = [t for name in schema.signature(op).written for t in pytrees.leaves_of(bound.get(name))]
    all_or_none(write, [pairs[id(t)] for t in targets if isinstance(t, torch.Tensor) and id(t) in pairs])
    return out
