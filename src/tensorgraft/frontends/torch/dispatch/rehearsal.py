"""The result of an operator, found by running the CPU's kernel on zeros of the same sizes, strides and dtypes.

For small tensors this takes microseconds and is authoritative; many meta functions are written in Python, take a
hundred times as long, and sometimes give other strides. For large tensors, whose work would be done twice, and if the
kernel refuses the zeros, meta functions are used instead (`meta_results`).
"""

from __future__ import annotations

from typing import Any

import torch

from tensorgraft import warning_filters
from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.core.modes import without_autocast
from tensorgraft.frontends.torch.core.operator import OUT_OF_BOUNDS, Operator
from tensorgraft.frontends.torch.dispatch.quiet_calls import ROOM

Tensor = torch.Tensor

_MOST = 1 << 17  # elements of a call's tensors together
_MOST_MADE = 1 << 26  # elements of its result, had that one for each pair of its two largest tensors'
_VALUES = torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output
with torch.inference_mode(False):
    _MEMORY = torch.zeros(1 << 19, dtype=torch.uint8, device="cpu")  # never written
    _ONE = torch.zeros(1, dtype=torch.float32, device="cpu")
_APART = ("_foreach_", "cat", "stack")  # the result is no larger than the operands together
_PLAIN = frozenset({int, float, bool, type(None), str, torch.dtype})
_zeros: dict[torch.dtype, Tensor] = {torch.uint8: _MEMORY}


class Unasked(Exception):
    """The CPU's kernel cannot be run, or refuses zeros: the result has to be found in another way.

    `refusals`: the kernel's error, in a list from which it is raised. (A frame whose variable refers to an exception
    that passed through it keeps the exception alive, and with it all callers and their tensors.)
    """

    def __init__(self, refusals: list[Exception] | None = None) -> None:
        self.refusals = refusals or []


def rehearse(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of the CPU's kernel for zeros; its warnings are not shown. Raises Unasked."""
    if operator.rehearsed is None:
        operator.rehearsed, operator.is_explained = can_rehearse(operator), _zeros_suffice(operator)
    if not operator.rehearsed:
        raise Unasked
    stand_ins: dict[int, Tensor] | None = {} if operator.writes else None
    extra_bytes = ROOM if operator.kind == "out" else 0
    sizes: list[torch.Size] = []
    try:
        positional = [_stand_in(a, stand_ins, sizes, extra_bytes) for a in args]
        named = {name: _stand_in(a, stand_ins, sizes, extra_bytes) for name, a in kwargs.items()} if kwargs else kwargs
        if not sizes or is_large(operator, sizes):
            raise Unasked
        results: list[Any] = []
        refusals: list[Exception] = []

        def call(_: float) -> float:
            try:
                results.append(operator.op._op(*positional, **named))
            except Exception as refusal:
                refusals.append(refusal.with_traceback(None))
            return 0.0

        with without_autocast(), warning_filters.recorded_warnings():
            _ONE.apply_(call)  # the binding whose end warnings wait for (`call_with_warnings`)
    except Exception:
        raise Unasked from None
    if not results or not operator.is_explained:
        raise Unasked(refusals)
    return results[0]


def can_rehearse(operator: Operator) -> bool:
    """Return True if the CPU's kernel can be run on zeros. Not so for assertions, which depend on values."""
    if operator.name in OUT_OF_BOUNDS or operator.spec.random or torch.Tag.nondeterministic_seeded in operator.op.tags:
        return False
    if "_assert_async" in operator.name:
        return False
    return schema.runs_on_cpu(operator.op)


def _zeros_suffice(operator: Operator) -> bool:
    """Return True if the results for zeros tell those for other values. Not so if they depend on values, or include
    results that were not requested."""
    if operator.spec.meta is False or operator.kind == "out" or "output_mask" in operator.signature.names:
        return False
    return not any(tag in operator.op.tags for tag in _VALUES)


def is_large(operator: Operator, sizes: list[torch.Size]) -> bool:
    elements = [size.numel() for size in sizes]
    if sum(elements) > _MOST:
        return True
    if len(elements) == 1 or operator.writes or operator.name.startswith(_APART):
        return False
    if operator.spec.promotion is not None and sizes.count(sizes[0]) == len(sizes):
        return False
    *_, second_most, most = sorted(elements)
    return second_most * most > _MOST_MADE


def _stand_in(a: Any, stand_ins: dict[int, Tensor] | None, sizes: list[torch.Size], extra_bytes: int) -> Any:
    if a.__class__ in _PLAIN:
        return a
    if isinstance(a, Tensor):
        sizes.append(a.size())
        if stand_ins is None:
            return _like(a)
        if id(a) not in stand_ins:
            stand_ins[id(a)] = _like(a, extra_bytes, is_written=True)
        return stand_ins[id(a)]
    if isinstance(a, list | tuple):
        return [_stand_in(x, stand_ins, sizes, extra_bytes) for x in a]
    if isinstance(a, torch.device):
        return torch.device("cpu")
    return None if isinstance(a, torch.Generator) else a


def _like(t: Tensor, extra_bytes: int = 0, is_written: bool = False) -> Tensor:
    """Return zeros of the geometry of `t`, with `extra_bytes` after those that are written. Raises an error if they do
    not fit into the memory reserved for them."""
    memory = _zeros.get(t.dtype)
    if memory is None:
        memory = _zeros[t.dtype] = _MEMORY.view(t.dtype)
    size, stride = t.size(), t.stride()
    if is_written:
        extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if t.numel() else 0
        memory = torch.zeros(min(extent, len(memory)) + extra_bytes // t.itemsize, dtype=t.dtype, device="cpu")
    return memory.as_strided(size, stride)
