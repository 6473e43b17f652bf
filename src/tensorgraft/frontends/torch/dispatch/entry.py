"""The entry from PyTorch's dispatcher to a kernel: the hot path of every operator.

A call has a key (`call_key.py`): shapes, strides, dtypes and static arguments. The first call of an operator with a new
key makes a plan (`planned.py`), unless the cold tier computes it (`cold.py`); a later call with the same key runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.core import generator, state
from tensorgraft.frontends.torch.core.devices import TYPE, slot_of
from tensorgraft.frontends.torch.core.modes import below_modes, function_mode, suspended, tracing
from tensorgraft.frontends.torch.core.nested import tensors_in
from tensorgraft.frontends.torch.core.operator import Operator
from tensorgraft.frontends.torch.dispatch.call_key import key_maker
from tensorgraft.frontends.torch.dispatch.cold import MISS, ColdOperator, ColdSignature
from tensorgraft.frontends.torch.dispatch.planned import PlannedOperator
from tensorgraft.hub.tiers import tiered
from tensorgraft.storage import Storage


def entry(operator: Operator) -> Callable[..., Any]:
    """Return the function that PyTorch's dispatcher calls for an overload."""
    local_state, calls, random = state.now, operator.calls, operator.spec.random
    # if numbers are inputs, every call is checked; if they are part of the key, the plan was
    check = operator.spec.check if operator.spec.has_inputs else None
    key_of, draw = key_maker(operator), _draw(operator)
    cold = ColdOperator(operator, _returned(operator), draw)
    planned = PlannedOperator(operator, cold, _returned(operator))
    if operator.spec.concrete is True:
        return below_modes(planned.run_concrete)
    is_direct, writes = cold.is_direct, bool(operator.writes)

    def call(*args: Any, **kwargs: Any) -> Any:
        if function_mode() or tracing():
            with suspended():
                return call(*args, **kwargs)
        plan = None
        try:
            if writes and check is not None:
                check(*args, **kwargs)
            if is_direct and not calls and local_state.capture is None and tiered():
                out = cold.direct(args, kwargs)
                if out is not MISS:
                    return out
            if check is not None and not writes:
                check(*args, **kwargs)
            key, cells, inputs, placed, backend = key_of(args, kwargs)
            full = tuple(key)
            known: Any = calls.get(full)
            if known.__class__ is ColdSignature:
                if local_state.capture is None and tiered() and not backend.records:  # type: ignore[union-attr]
                    out = cold.computed(known, cells, args, kwargs)
                    if out is not MISS:
                        return out
                known = None
            if known is None:
                if local_state.capture is None and (backend is None or backend.cold is not None):
                    out = cold(full, backend, cells, inputs, args, kwargs)
                    if out is not MISS:
                        return out
                known = planned.find(full, key, cells, backend, args, kwargs)
            plan, offsets = known
            arrays = [c.array for c in cells]
            arrays += offsets
            for k in placed:
                inputs[k] = backend.place(inputs[k])  # type: ignore[union-attr]
            if random:
                inputs.append(draw(cells, args, kwargs))
            if plan.makers is None or local_state.capture is not None:
                return planned.run(plan, cells, [*offsets, *inputs], args, kwargs)
            new = plan.run(*arrays, *inputs) if inputs else plan.run(*arrays)
            if plan.make is not None:  # the only result is one new tensor
                return plan.make(new[0])
            return planned.finish(plan, cells, new, args, kwargs)
        except BaseException as error:
            planned.failed(error, plan, args, kwargs)
            raise

    planned.call = call
    return call


def _draw(operator: Operator) -> Callable[[list[Storage], tuple[Any, ...], dict[str, Any]], Any]:
    """Return a function that returns the words from which a call's random numbers are computed."""
    positional = operator.signature.positional
    position = positional.index("generator") if "generator" in positional else len(positional)

    def draw(cells: list[Storage], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = args[position] if len(args) > position else kwargs.get("generator")
        return generator.draw(source, _random_index(cells, args, kwargs))

    return draw


def _returned(operator: Operator) -> Callable[..., Any] | None:
    """Return a function of (args, kwargs) that selects the results from the arguments, or None if the results are not
    written arguments."""
    sig = operator.signature
    if not sig.returns:
        return lambda args, kwargs: None
    if not sig.returns_written:
        return None
    if len(sig.returns) == 1:
        name = sig.written[0]
        if name in sig.positional:
            position = sig.positional.index(name)
            return lambda args, kwargs: args[position] if position < len(args) else kwargs[name]
        return lambda args, kwargs: kwargs[name]
    return lambda args, kwargs: tuple(sig.bind(args, kwargs)[name] for name in sig.written)


def _random_index(cells: list[Storage], args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """Return the index of the device whose random state a call uses."""
    if cells:
        if args[0].__class__ is torch.Tensor and not args[0].is_cpu:
            return args[0].get_device()
        first = next(t for t in tensors_in(args, kwargs) if t.device.type == TYPE)
        return first.device.index
    return slot_of(kwargs.get("device")).index
