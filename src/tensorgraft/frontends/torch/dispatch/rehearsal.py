"""The outcome of an operator by the CPU's own kernel, which is run on zeros of the same sizes, strides and dtypes.

On small tensors it answers in microseconds, and it is the judge; many meta functions are written in Python, take a
hundred times as long, and now and then give other strides. On large tensors, whose work would be done twice, and where
the kernel refuses the zeros, meta functions are asked (`meta_results`).
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
    _MEMORY = torch.zeros(1 << 19, dtype=torch.uint8, device="cpu")  # nobody writes to it
    _ONE = torch.zeros(1, dtype=torch.float32, device="cpu")
_APART = ("_foreach_", "cat", "stack")  # the result is no larger than the operands together
_PLAIN = frozenset({int, float, bool, type(None), str, torch.dtype})
_zeros: dict[torch.dtype, Tensor] = {torch.uint8: _MEMORY}


class Unasked(Exception):
    """The CPU's kernel cannot be asked, or refuses zeros: somebody else has to say.

    `refusals`: what it said, in a list from which it is raised. An exception that a frame it went through still names
    keeps itself alive, and with it all callers: their tensors, and what they have switched off until they end.
    """

    def __init__(self, refusals: list[Exception] | None = None) -> None:
        self.refusals = refusals or []


def rehearse(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what the CPU's kernel returns for zeros; its warnings are not shown. Raises Unasked."""
    if operator.rehearsed is None:
        operator.rehearsed, operator.told = asks(operator), _zeros_suffice(operator)
    if not operator.rehearsed:
        raise Unasked
    fresh: dict[int, Tensor] | None = {} if operator.writes else None
    room = ROOM if operator.kind == "out" else 0
    sizes: list[torch.Size] = []
    try:
        positional = [_stand_in(a, fresh, sizes, room) for a in args]
        named = {name: _stand_in(a, fresh, sizes, room) for name, a in kwargs.items()} if kwargs else kwargs
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

        with without_autocast(), warning_filters.heard():
            _ONE.apply_(call)  # the binding whose end warnings wait for (`call_with_warnings`)
    except Exception:
        raise Unasked from None
    if not results or not operator.told:
        raise Unasked(refusals)
    return results[0]


def asks(operator: Operator) -> bool:
    """Return True if the CPU's kernel can be asked what it refuses. Assertions refuse values, which zeros do not
    show."""
    if operator.name in OUT_OF_BOUNDS or operator.spec.random or torch.Tag.nondeterministic_seeded in operator.op.tags:
        return False
    if "_assert_async" in operator.name:
        return False
    return schema.runs_on_cpu(operator.op)


def _zeros_suffice(operator: Operator) -> bool:
    """Return whether results for zeros hold, too: they may depend on values, or include some that were not asked
    for."""
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
    *_, less, most = sorted(elements)
    return less * most > _MOST_MADE


def _stand_in(a: Any, fresh: dict[int, Tensor] | None, sizes: list[torch.Size], room: int) -> Any:
    if a.__class__ in _PLAIN:
        return a
    if isinstance(a, Tensor):
        sizes.append(a.size())
        if fresh is None:
            return _like(a)
        if id(a) not in fresh:
            fresh[id(a)] = _like(a, room, written=True)
        return fresh[id(a)]
    if isinstance(a, list | tuple):
        return [_stand_in(x, fresh, sizes, room) for x in a]
    if isinstance(a, torch.device):
        return torch.device("cpu")
    return None if isinstance(a, torch.Generator) else a


def _like(t: Tensor, room: int = 0, written: bool = False) -> Tensor:
    """Zeros of the geometry of `t`, with `room` bytes behind those that are written. Raises where they do not fit into
    the memory that there is for them."""
    memory = _zeros.get(t.dtype)
    if memory is None:
        memory = _zeros[t.dtype] = _MEMORY.view(t.dtype)
    size, stride = t.size(), t.stride()
    if written:
        extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if t.numel() else 0
        memory = torch.zeros(min(extent, len(memory)) + room // t.itemsize, dtype=t.dtype, device="cpu")
    return memory.as_strided(size, stride)
