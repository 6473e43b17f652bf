"""Lazy mode of PyTorch programs: while it is on, the storages of a device have arrays of a `RecordedBackend`."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from tensorgraft.errors import CompilationError
from tensorgraft.frontends.torch.core import devices, state
from tensorgraft.frontends.torch.core.devices import Slot
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.recorded import Figures, RecordedBackend
from tensorgraft.hub.tiers import When, tiered
from tensorgraft.interrupts import held_back
from tensorgraft.quantization.backend import quantizing
from tensorgraft.quantization.quantized import Quantized
from tensorgraft.storage import ColdStorage, Placed, Storage, put_array

_active: list[RecordedBackend] = []
_KINDS = (Storage, ColdStorage, Placed)


@functools.cache
def _recorded(inner: Backend) -> RecordedBackend:
    """Return the recording backend of a backend: always the same, so that it knows its programs when lazy mode is
    entered again."""
    return RecordedBackend(inner)


def recording() -> bool:
    """Return True in lazy mode."""
    return bool(_active)


@contextlib.contextmanager
def lazy(compile: When) -> Iterator[Figures]:
    """Record operations on the current device, if its backend determines shapes without computing. See `tg.lazy`."""
    slot = devices.slot_at(None)
    if state.now.capture is not None:
        raise CompilationError(
            "tg.lazy() inside a function compiled by tg.jit, which already is one program: remove tg.lazy()"
        )
    if slot.backend in _active or type(slot.backend).eval_shape is Backend.eval_shape:
        yield slot.backend.figures if isinstance(slot.backend, RecordedBackend) else Figures()
        return
    inner = slot.backend
    xp = _recorded(inner)
    xp.figures = figures = Figures()
    xp.cold = inner.cold if inner.host_visible and compile == "recurring" and tiered() else None
    _active.append(xp)
    try:
        with held_back():
            _replace(slot, inner, xp, xp.constant)
        with _boundaries(xp):
            yield figures
            xp.run()
            xp.run_checks()
    finally:
        _active.remove(xp)
        xp.forget()  # of several errors, keep the first
        try:
            xp.run()
        finally:
            with held_back():
                _replace(slot, xp, inner, lambda node: node.value)


def _replace(slot: Slot, old: Backend, new: Backend, convert: Callable[[Any], Any]) -> None:
    """Give a device, and every storage on it, another backend."""
    slot.backend = new
    devices.register(new, slot)
    old_codes, new_codes = quantizing(old), quantizing(new)
    for x in gc.get_objects():
        if type(x) in _KINDS and not hasattr(x, "backend"):  # an exception came as it was made
            continue
        if type(x) is Storage and x.backend is old_codes:
            array = None if x.array is None else _converted(x.array, convert)
            if array is not None or x.array is None:
                x.array, x.backend = array, new_codes
        elif type(x) in _KINDS and x.backend is old:  # `x.__class__` may run code of x
            if x.cold is not None:
                x.backend = new
                continue
            if x.array is None:  # given up: nothing is to be converted
                x.backend = new
                continue
            array = convert(x.array)
            if array is None:  # a recorded program failed, and cannot be run again
                continue
            if x.shared and isinstance(new, RecordedBackend):
                array.shared = True
            put_array(x, array)
            x.backend = new


def _converted(array: Any, convert: Callable[[Any], Any]) -> Any:
    """Return the array of a storage that may hold codes, which other storages may have, too; None where a part cannot
    be."""
    parts = [convert(a) for a in (array.parts if isinstance(array, Quantized) else (array,))]
    if any(a is None for a in parts):
        return None
    for a in parts:
        if hasattr(a, "shared"):
            a.shared = True
    return array.with_parts(parts) if isinstance(array, Quantized) else parts[0]


@contextlib.contextmanager
def _boundaries(xp: RecordedBackend) -> Iterator[None]:
    """A context that runs the recorded operations at the end of each training or inference iteration: after a step of
    an optimizer, or a call of the outermost module without gradients."""
    depth = 0

    def enter(module: Any, args: Any) -> None:
        nonlocal depth
        depth += 1

    def leave(module: Any, args: Any, out: Any) -> None:
        nonlocal depth
        depth = max(depth - 1, 0)
        if not depth and not torch.is_grad_enabled():
            xp.end_of_piece()

    handles = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: xp.end_of_piece()),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
