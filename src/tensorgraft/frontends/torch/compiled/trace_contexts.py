"""Observers of a trace: CPU tensors, modules' modes, `zero_grad`, learning-rate schedulers.

Each context below is active while a function is traced, and undone after it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._python_dispatch import _disable_current_modes

from tensorgraft.compiled.captured_objects import in_library
from tensorgraft.compiled.outside_calls import calling_frame
from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.frontends.torch.compiled.capture import Capture, paused
from tensorgraft.frontends.torch.compiled.host.call_tensors import on_host, raw_gradient, set_raw_gradient
from tensorgraft.frontends.torch.compiled.host.traced_tensors import HostWatch
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE


@dataclass
class Schedule:
    """The `scheduler.step()` calls of a traced function, which are not compiled but made at every call."""

    before: list[Callable[[], Any]] = field(default_factory=list)  # calls before the first optimizer step
    after: list[Callable[[], Any]] = field(default_factory=list)
    stepped: bool = False  # an optimizer has stepped

    def undoing(self, call: Callable[[], Any]) -> Callable[[], None]:
        """Return a function that undoes one of these calls, which is about to be made."""
        scheduler = call.args[0]  # type: ignore[attr-defined]
        return functools.partial(_put_back, scheduler, *_scheduled(scheduler))


@contextlib.contextmanager
def trace_contexts(capture: Capture, schedule: Schedule) -> Iterator[HostWatch]:
    """Activate all observers of one trace, except those of optimizers (see `optimizers`)."""
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(HostWatch(capture, may_write=True))
        for name in ("tolist", "numpy", "__array__", "__dlpack__"):  # these read memory without an operator
            stack.enter_context(_reads(watch, name))

        def note_module(module: torch.nn.Module, _: Any) -> None:
            capture.note_module(module)

        handle = torch.nn.modules.module.register_module_forward_pre_hook(note_module)
        stack.callback(handle.remove)
        stack.enter_context(_gradients(capture))
        stack.enter_context(_histories(capture))
        stack.enter_context(_schedulers(capture, schedule))
        for name in ("register_hook", "register_post_accumulate_grad_hook"):
            stack.enter_context(replaced(torch.Tensor, name, functools.partial(_hooks, capture)))
        stack.enter_context(_buckets())
        yield watch


@contextlib.contextmanager
def _reads(watch: HostWatch, name: str) -> Iterator[None]:
    original, is_own = getattr(torch.Tensor, name), name in torch.Tensor.__dict__

    @functools.wraps(original)
    def read(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if torch._C._len_torch_dispatch_stack():  # without dispatch modes a kernel or a guard reads, not the program
            watch.ask(self)
        return original(self, *args, **kwargs)

    setattr(torch.Tensor, name, read)
    try:
        yield
    finally:
        if is_own:
            setattr(torch.Tensor, name, original)
        else:
            delattr(torch.Tensor, name)


@contextlib.contextmanager
def replaced(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    original = owner.__dict__[name]
    setattr(owner, name, functools.wraps(original)(wrap(original)))
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def _gradients(capture: Capture) -> Iterator[None]:
    """Note the tensors whose `.grad` the program reads or sets. A read by `zero_grad(set_to_none=True)` does not count,
    since it only drops the gradient."""

    def note(t: torch.Tensor, reset: bool) -> None:
        if state.now.capture is not capture or capture.made_inside(t):
            return
        if id(t) in capture.detached:
            raise RunsUncompiled("reads or sets the gradient of an argument with a grad_fn")
        if t.device.type == TYPE:
            capture.note_gradient(t, reset)
        elif not reset and (g := raw_gradient(t)) is not None and on_host(t) and capture.host is not None:
            capture.host.note_gradient(t, g)

    def read(self: torch.Tensor) -> torch.Tensor | None:
        note(self, quiet)
        return raw_gradient(self)

    def assign(self: torch.Tensor, value: torch.Tensor | None) -> None:
        note(self, True)
        set_raw_gradient(self, value)

    def drop(self: torch.Tensor) -> None:
        assign(self, None)

    quiet = False

    def wrap(original: Any) -> Any:
        def zero_grad(self: Any, set_to_none: bool = True) -> None:
            nonlocal quiet
            outer, quiet = quiet, set_to_none
            try:
                original(self, set_to_none)
            finally:
                quiet = outer

        return zero_grad

    torch.Tensor.grad = property(read, assign, drop)  # type: ignore[assignment]
    try:
        with replaced(torch.optim.Optimizer, "zero_grad", wrap), replaced(torch.nn.Module, "zero_grad", wrap):
            yield
    finally:
        del torch.Tensor.grad


_OF_HISTORIES = ("grad_fn", "retains_grad", "output_nr", "_backward_hooks", "_base")


@contextlib.contextmanager
def _histories(capture: Capture) -> Iterator[None]:
    """Note whether the program reads what belongs to the autograd history of arguments, which the trace does not have,
    or the version counter of tensors from outside."""

    def noting(name: str, original: Any, outside: Callable[[torch.Tensor], bool]) -> property:
        def read(self: torch.Tensor) -> Any:
            if state.now.capture is capture and outside(self) and not in_library(calling_frame().f_code.co_filename):
                capture.uncompiled = f"reads {name} of a tensor from outside"
            return original.__get__(self)

        return property(read, original.__set__)

    def has_history(t: torch.Tensor) -> bool:
        return id(t) in capture.detached

    outsides = {**dict.fromkeys(_OF_HISTORIES, has_history), "_version": capture.from_outside}
    for name, outside in outsides.items():
        setattr(torch.Tensor, name, noting(name, getattr(torch.Tensor, name), outside))
    try:
        yield
    finally:
        for name in outsides:
            delattr(torch.Tensor, name)


def _hooks(capture: Capture, original: Any) -> Any:
    """Note hooks that are registered on tensors from outside."""

    def register(self: torch.Tensor, hook: Any) -> Any:
        handle = original(self, hook)
        if state.now.capture is capture and capture.from_outside(self):
            capture.hooks.append(handle)
            capture.undos.append(handle.remove)
        elif state.now.capture is capture:
            capture.hooks_inside = True
        return handle

    return register


@contextlib.contextmanager
def _buckets() -> Iterator[None]:
    """Let `DistributedDataParallel` rebuild its buckets once, in the order that the first process broadcasts."""
    if not torch.distributed.is_available():
        yield
        return

    def wrap(original: Any) -> Any:
        def _rebuild_buckets(self: Any) -> Any:
            with paused(), _disable_current_modes():
                return original(self)

        return _rebuild_buckets

    with replaced(torch._C._distributed_c10d.Reducer, "_rebuild_buckets", wrap):
        yield


@contextlib.contextmanager
def _schedulers(capture: Capture, schedule: Schedule) -> Iterator[None]:
    """Note the outermost calls of schedulers' `step`, and the schedulers with other attributes that the program
    reads."""
    depth = 0
    schedulers: list[LRScheduler] = []

    def read(self: Any, name: str) -> Any:
        if not depth and name != "step" and not in_library(calling_frame().f_code.co_filename):
            capture.schedulers_read[id(self)] = self
        return object.__getattribute__(self, name)

    def wrap(original: Any) -> Any:
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            if all(scheduler is not self for scheduler in schedulers):
                schedulers.append(self)
                capture.undos.append(functools.partial(_put_back, self, *_scheduled(self)))
            if not depth:
                calls = schedule.after if schedule.stepped else schedule.before
                calls.append(functools.partial(original, self, *args, **kwargs))
            depth += 1
            try:
                with _disable_current_modes():  # a learning rate may be a CPU tensor, to which `step` writes
                    return original(self, *args, **kwargs)
            finally:
                depth -= 1

        return step

    def family(cls: type[LRScheduler]) -> Iterator[type[LRScheduler]]:
        yield cls
        for derived in cls.__subclasses__():
            yield from family(derived)

    with contextlib.ExitStack() as stack:
        for cls in dict.fromkeys(family(LRScheduler)):
            if "step" in cls.__dict__:
                stack.enter_context(replaced(cls, "step", wrap))
        LRScheduler.__getattribute__ = read  # type: ignore[method-assign]
        stack.callback(delattr, LRScheduler, "__getattribute__")
        yield


def _scheduled(scheduler: LRScheduler) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (the attributes of a scheduler, the hyper-parameters of its optimizer)"""
    groups = [{k: v for k, v in group.items() if k != "params"} for group in scheduler.optimizer.param_groups]
    with _disable_current_modes():
        return _copied(vars(scheduler)), [_copied(group) for group in groups]


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v.clone() if isinstance(v, torch.Tensor) else list(v) if type(v) is list else v
            for k, v in values.items()}  # fmt: skip


def _put_back(scheduler: LRScheduler, attributes: dict[str, Any], groups: list[dict[str, Any]]) -> None:
    vars(scheduler).update(attributes)
    with _disable_current_modes():
        for group, values in zip(scheduler.optimizer.param_groups, groups, strict=True):
            for name, value in values.items():
                if isinstance(value, torch.Tensor) and isinstance(group[name], torch.Tensor):
                    group[name].copy_(value)
                else:
                    group[name] = value
