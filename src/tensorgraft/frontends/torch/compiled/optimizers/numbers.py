"""Optimizers inside a trace: their Python numbers become inputs of the program.

For the time of `step()` every group is `capturable` and `foreach`, its learning rate is a tensor that is fed at every
call, and step counters are on the device, so that nothing the host changes from step to step is baked in. Any other
number of a group (betas, weight decay, momentum) is a constant: another value traces again.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from operator import is_, itemgetter
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from tensorgraft.compiled.captured_objects import in_library
from tensorgraft.compiled.outside_calls import calling_frame
from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.frontends.torch.compiled.capture import Capture, paused
from tensorgraft.frontends.torch.compiled.optimizers import sparse_adam
from tensorgraft.frontends.torch.compiled.optimizers.adafactor import adafactor
from tensorgraft.frontends.torch.compiled.trace_contexts import Schedule, replaced
from tensorgraft.frontends.torch.core.attributes import step_hooks
from tensorgraft.frontends.torch.core.devices import TYPE, slot_of_backend
from tensorgraft.frontends.torch.core.located_errors import refused
from tensorgraft.frontends.torch.core.tensors import cell_of, from_array, storages_of
from tensorgraft.hub.array import Array
from tensorgraft.hub.straight_line import StraightLine
from tensorgraft.storage import Storage

Optimizer = torch.optim.Optimizer
_READ = (
    "param_groups",
    "defaults",
    "state",
)  # attributes of optimizers, which are constants where the program reads them
_OWN_HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
_HOOKS_OF_ALL = "_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"
Counter = tuple[dict[str, Any], str, torch.Tensor]  # entries of an optimizer's state, a name, and the tensor of it


class OptimizerGuard:
    """The guard of an optimizer whose `step` was traced: the state that the trace assumes."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self._kind = optimizer, type(optimizer)
        self.grown = False  # a step inside has created part of its state, which later calls do not
        self._numbers = [_numbers(group) for group in optimizer.param_groups]
        self._params = [list(group["params"]) for group in optimizer.param_groups]
        self._pick = [itemgetter("params", *numbers) for numbers in self._numbers]
        self._picked = [pick(group) for pick, group in zip(self._pick, optimizer.param_groups, strict=True)]
        self._state: list[tuple[torch.Tensor, dict[str, Any], dict[str, Storage | None]]] = []
        for group in optimizer.param_groups:
            for p in group["params"]:
                entries = optimizer.state.get(p) or {}
                self._state.append((p, entries, {name: _cell(value) for name, value in entries.items()}))
        # the same, to be compared at once
        self._table = optimizer.state
        self._entries = list(optimizer.state.values())
        self._values = list(chain.from_iterable(e.values() for e in self._entries if isinstance(e, dict)))
        self._device_tensors = [v for v in self._values if isinstance(v, torch.Tensor) and v.device.type == TYPE]
        self._storages = storages_of(self._device_tensors)
        self._hooks: list[Any] = []

    def note_hooks(self) -> None:
        """Take the hooks that it has when the trace, which has some of its own, is over."""
        self._hooks = step_hooks(self.optimizer)

    def holds(self) -> bool:
        """Return True if the optimizer has the state that the trace was made with."""
        if self.grown or type(self.optimizer) is not self._kind or step_hooks(self.optimizer) != self._hooks:
            return False
        groups = self.optimizer.param_groups
        if len(groups) != len(self._params):
            return False
        for k, (group, params) in enumerate(zip(groups, self._params, strict=True)):
            if len(group["params"]) != len(params) or not all(map(is_, group["params"], params)):
                return False
            try:
                is_same = all(map(is_, self._pick[k](group), self._picked[k]))
            except KeyError:
                is_same = False
            if not is_same and _numbers(group) != self._numbers[k]:
                return False
        return self._untouched() or self._is_unchanged()

    def write(self, code: StraightLine) -> None:
        """Write what `holds` asks."""
        me, attributes = code.name(self), code.name(vars(self.optimizer))
        if self._hooks or not vars(self.optimizer).keys() >= {*_READ, *_OWN_HOOKS}:
            code.require(f"{me}.holds()")
            return
        of_all = vars(sys.modules[Optimizer.__module__])
        kind = f"type({code.name(self.optimizer)}) is {code.name(self._kind)}"
        code.require(f"not {me}.grown and 'step' not in {attributes} and {kind}")
        for table, names in ((attributes, _OWN_HOOKS), (code.name(of_all), _HOOKS_OF_ALL)):
            code.require(" and ".join(f"not {table}['{name}']" for name in names))
        groups = code.let(f"{attributes}['param_groups']")
        code.require(f"len({groups}) == {len(self._params)}")
        for k, (pick, params) in enumerate(zip(self._pick, self._params, strict=True)):
            group = code.let(f"{groups}[{k}]")
            code.require_objects(f"{group}['params']", params)
            same = f"all(map({code.name(is_)}, {code.name(pick)}({group}), {code.name(self._picked[k])}))"
            code.require(f"{same} or {code.name(_numbers)}({group}) == {code.name(self._numbers[k])}")
        code.require(f"{me}._untouched() or {me}._is_unchanged()")

    def failure(self, name: str) -> str:
        """Describe a change in the optimizer, called `name`, since the trace."""
        groups = self.optimizer.param_groups
        if type(self.optimizer) is not self._kind:
            return f"{name} is a {type(self.optimizer).__name__} now, was a {self._kind.__name__}"
        if step_hooks(self.optimizer) != self._hooks:
            return f"{name} has other hooks"
        if [len(g["params"]) for g in groups] != [len(params) for params in self._params]:
            return f"{name} has other parameters"
        for k, (group, params, numbers) in enumerate(zip(groups, self._params, self._numbers, strict=True)):
            if not all(map(is_, group["params"], params)):
                return f"{name} has other parameters"
            numbers_now = _numbers(group)
            for key in dict.fromkeys((*numbers_now, *numbers)):
                if numbers_now.get(key) != numbers.get(key):
                    return f"{name}: {key} of group {k} is {numbers_now.get(key)!r}, was {numbers.get(key)!r}"
        return f"the state of {name} was replaced"

    def has_its_entries(self) -> bool:
        """Return True if the optimizer's state has entries for the same parameters and names."""
        state_now = self.optimizer.state
        return all((state_now.get(p) or {}).keys() == cells.keys() for p, _, cells in self._state)

    def _untouched(self) -> bool:
        """Return True if every entry of the state is the same object, over the same storage."""
        state, entries = self.optimizer.state, self._entries
        if state is not self._table or len(state) != len(entries) or not all(map(is_, state.values(), entries)):
            return False
        values = [*chain.from_iterable([e.values() for e in entries if isinstance(e, dict)])]
        if len(values) != len(self._values) or not all(map(is_, values, self._values)):
            return False
        return storages_of(self._device_tensors) == self._storages

    def _is_unchanged(self) -> bool:
        for p, entries, cells in self._state:
            state = self.optimizer.state.get(p) or {}
            if len(state) != len(cells) or (cells and state is not entries):
                return False
            for name, cell in cells.items():
                value = entries.get(name)
                if isinstance(value, torch.Tensor) and value.device.type == TYPE:
                    if cell_of(value) is not cell:
                        return False
                elif cell is not None:
                    return False
        return True


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    """Return the hyper-parameters that are constants of a trace."""
    left_out = ("params", "lr", "initial_lr", "capturable", "foreach", "fused", "param_names")
    return {k: v for k, v in group.items() if k not in left_out and not isinstance(v, torch.Tensor)}


@contextlib.contextmanager
def optimizers_traced(capture: Capture, schedule: Schedule, optimizer_guards: list[OptimizerGuard]) -> Iterator[None]:
    """Inside the context, steps of optimizers are traced, and added to `optimizer_guards`."""
    steps = _TracedSteps(capture, schedule, optimizer_guards)
    capture.undos.append(partial(_undo, steps.counters, steps.known))  # closures without a reference to the capture
    handles = [register_optimizer_step_pre_hook(steps.before), register_optimizer_step_post_hook(steps.after)]
    try:
        with (
            replaced(sys.modules[torch.optim.Adafactor.__init__.__module__], "adafactor", lambda _: adafactor),
            replaced(torch.optim._functional, "sparse_adam", lambda _: sparse_adam.sparse_adam),
            replaced(Optimizer, "__init__", steps.noting),
            steps.numbers,
        ):
            for name in _READ:
                setattr(Optimizer, name, property(steps.reader(name), partial(_set, name)))
            yield
    finally:
        for name in _READ:
            if name in vars(Optimizer):
                delattr(Optimizer, name)
        steps.restore()
        for handle in handles:
            handle.remove()


class _TracedSteps:
    """The steps of optimizers in one trace: the state that they require before it, and the state to restore after
    it."""

    def __init__(self, capture: Capture, schedule: Schedule, optimizer_guards: list[OptimizerGuard]) -> None:
        self._capture, self._schedule, self._guards = capture, schedule, optimizer_guards
        self.numbers = Numbers()
        self._saved: list[tuple[dict[str, Any], dict[str, Any]]] = []  # entries of groups that a step under way changes
        self._counts: list[dict[int, dict[str, Any]]] = []
        self.counters: list[list[Counter]] = []  # counters of the steps in progress
        self.known: list[tuple[Optimizer, set[int]]] = []  # parameters that had a state before
        self._rates: dict[tuple[int, int], Array] = {}
        self._entered: list[Optimizer] = []  # made inside, with all of their state

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise refused(
                "cannot be compiled: LBFGS decides by values how often it evaluates its function, and where.",
                ("compile the closure", "optimizer.step(tg.jit(closure)), outside of a compiled function"),
            )
        self._schedule.stepped = True
        if self._capture.sparse is not None:
            self._capture.sparse.bounds.in_step = type(optimizer).__module__.startswith("torch.optim.")
        if any(optimizer is known for known in self._entered):
            prepare(optimizer)
        else:
            self.known.append((optimizer, set(map(id, optimizer.state))))
            with paused():
                prepare(optimizer)
            if all(s.optimizer is not optimizer for s in self._guards):
                self._guards.append(OptimizerGuard(optimizer))
            self._counts.append({id(p): _counts(entries) for p, entries in optimizer.state.items()})
        self.counters.append([])
        self.numbers.widen(optimizer, self.counters[-1])
        for n, group in enumerate(optimizer.param_groups):
            self._saved.append((group, {k: group[k] for k in ("lr", "capturable", "foreach", "fused") if k in group}))
            if not isinstance(group["lr"], torch.Tensor) or group["lr"].device.type != TYPE:
                group["lr"] = self._rate(optimizer, n)
            for name, value in (("capturable", True), ("foreach", True), ("fused", False)):
                if name in group:
                    group[name] = value
        torch.compiler._is_compiling_flag = True

    def after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.restore()
        if self._capture.sparse is not None:
            self._capture.sparse.bounds.in_step = False
        for entries, name, counter in self.counters[-1]:
            if entries[name] is not counter:
                counter.copy_(entries[name])
                entries[name] = counter
        self.counters.pop()
        for guard in self._guards:
            if guard.optimizer is optimizer:
                _refuse_counts(optimizer, self._counts.pop())
                guard.grown = guard.grown or not guard.has_its_entries()

    def _rate(self, optimizer: Optimizer, n: int) -> torch.Tensor:
        """Return the learning rate of a group as a tensor that is fed."""
        at = (id(optimizer), n)
        if at not in self._rates:

            def current_rate() -> np.ndarray:
                lr = optimizer.param_groups[n]["lr"]
                if isinstance(lr, torch.Tensor):
                    with _disable_current_modes():  # a CPU tensor: an input of every call, no constant
                        lr = float(lr)
                return np.asarray(lr, np.float64)

            label = f"learning rate of {type(optimizer).__name__}, group {n}"
            rate = current_rate()
            self._rates[at] = self._capture.feed(current_rate, rate, at_trace=True, what=label, is_number=True)
        return from_array(self._rates[at], slot_of_backend(self._capture.backend))  # a tensor that ends with the step

    def restore(self) -> None:
        torch.compiler._is_compiling_flag = False
        while self._saved:
            group, values = self._saved.pop()
            group.update(values)

    def noting(self, init: Any) -> Any:
        """Return an `Optimizer.__init__` that records optimizers created inside."""

        def __init__(optimizer: Optimizer, /, *args: Any, **kwargs: Any) -> None:
            self._entered.append(optimizer)
            init(optimizer, *args, **kwargs)

        return __init__

    def reader(self, name: str) -> Any:
        """Return an attribute of optimizers that notes whether the program reads it, outside of a step."""

        def read(optimizer: Optimizer) -> Any:
            if not self.counters and not in_library(calling_frame().f_code.co_filename):
                self._capture.optimizers_read[id(optimizer), name] = optimizer
            try:
                return vars(optimizer)[name]
            except KeyError:
                raise AttributeError(name) from None

        return read


def _undo(counters: list[list[Counter]], known: list[tuple[Optimizer, set[int]]]) -> None:
    while counters:
        for entries, name, counter in counters.pop():
            entries[name] = counter
    for optimizer, params in reversed(known):
        for p in [p for p in optimizer.state if id(p) not in params]:
            del optimizer.state[p]


def _set(name: str, optimizer: Optimizer, value: Any) -> None:
    vars(optimizer)[name] = value


class Groups:
    """The groups of optimizers among objects, with the hyper-parameters that they have."""

    def __init__(self, objects: Iterable[Any]) -> None:
        optimizers = [o for o in objects if isinstance(o, Optimizer)]
        self._before = [(o.param_groups, [(group, dict(group)) for group in o.param_groups]) for o in optimizers]

    def changed(self) -> bool:
        """Return whether a group was added, or has another hyper-parameter."""
        for groups, before in self._before:
            if len(groups) != len(before):
                return True
            for group, values in before:
                if group.keys() != values.keys() or not all(map(is_, group.values(), values.values())):
                    return True
        return False

    def restore(self) -> None:
        for groups, before in self._before:
            groups[:] = [group for group, _ in before]
            for group, values in before:
                group.clear()
                group.update(values)


def _counts(entries: Any) -> dict[str, Any]:
    """Return the Python numbers that an optimizer keeps for a parameter."""
    if not isinstance(entries, dict):
        return {}
    return {name: v for name, v in entries.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def _refuse_counts(optimizer: Optimizer, before: dict[int, dict[str, Any]]) -> None:
    """Raises RunsUncompiled where a step has changed Python numbers, and puts them back."""
    changed = set()
    for p, entries in optimizer.state.items():
        for name, value in before.get(id(p), {}).items():
            if entries.get(name) != value:
                changed.add(name)
                entries[name] = value
    if changed:
        raise RunsUncompiled(
            f"takes a step of {type(optimizer).__name__}, which counts {', '.join(sorted(changed))} in Python (counted"
            " by a tensor, torch.zeros((), device=p.device), it can be compiled)"
        )


class Numbers(TorchFunctionMode):
    """Lets optimizers compute with tensors, in a trace, what they compute with Python's numbers.

    `p.add_(update, alpha=-lr)`, `p.addcdiv_(m, v, value=-lr)`: a factor that is a tensor is multiplied with the
    operand, where PyTorch would ask for its value. Step counters are float32, and PyTorch's optimizers compute with the
    float64 numbers that they hold: `widened` gives them such for a step."""

    def __init__(self) -> None:
        super().__init__()
        self._products: list[torch.Tensor] = []  # products that are kept in float32, and are float64 during a step

    def widen(self, optimizer: Optimizer, counters: list[Counter]) -> None:
        """Let the counters of one of PyTorch's optimizers be float64, and add those that it had to `counters`."""
        self._products.clear()
        if not any(
            cls.__module__.startswith("torch.optim.") for cls in type(optimizer).__mro__ if cls is not Optimizer
        ):
            return
        for group in optimizer.param_groups:
            for p in () if group.get("capturable") else group["params"]:
                entries = optimizer.state.get(p) or {}
                for name in ("step", "mu_product"):
                    counter = entries.get(name)
                    if (
                        isinstance(counter, torch.Tensor)
                        and counter.device.type == TYPE
                        and counter.dtype == torch.float32
                    ):
                        wide = counter.double()
                        counters.append((entries, name, counter))
                        entries[name] = wide
                        self._products += [wide] * (name == "mu_product")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        factor = _FACTORS.get(name.rstrip("_"))
        if factor is not None and isinstance(kwargs.get(factor), torch.Tensor) and len(args) > 1:
            args = (args[0], args[1] * kwargs.pop(factor), *args[2:])
        elif name == "_foreach_mul_" and any(t is product for t in args[0] for product in self._products):
            for t, f in zip(*args, strict=True):  # like a kept tensor, which takes numbers in its dtype
                t.copy_(t.float() * f.float())
            return None
        elif name == "where" and torch.compiler._is_compiling_flag and all(type(a) is float for a in args[1:]):
            args = (args[0], *(torch.full_like(args[0], a, dtype=torch.float64) for a in args[1:]))
        return func(*args, **kwargs)


_FACTORS = {"add": "alpha", "sub": "alpha", "subtract": "alpha", "addcmul": "value", "addcdiv": "value"}


def _cell(value: Any) -> Storage | None:
    return cell_of(value) if isinstance(value, torch.Tensor) and value.device.type == TYPE else None


def prepare(optimizer: Optimizer) -> None:
    """Create the state that the first step would create, so that it exists before the trace, and move step counters to
    the device."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        sparse_adam.prepare(optimizer)
    for group in optimizer.param_groups:
        if "capturable" in group:
            capturable = group["capturable"]
            group["capturable"] = True
        init = getattr(optimizer, "_init_group", None)
        try:
            if init is not None:
                lists = len(inspect.signature(init).parameters) - 1
                init(group, *([] for _ in range(lists)))
        finally:
            if "capturable" in group:
                group["capturable"] = capturable
        for p in group["params"]:
            entries = optimizer.state.get(p)
            if entries is None or p.grad is None or p.device.type not in (TYPE, "meta"):
                continue  # the step does not change it
            for name, value in entries.items():
                if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                    with torch.inference_mode(value.is_inference()):
                        entries[name] = value.to(p.device)
            if "momentum_buffer" in entries and entries["momentum_buffer"] is None and not group["dampening"]:
                entries["momentum_buffer"] = torch.zeros_like(p)  # then momentum * buffer + grad is the first step
            elif isinstance(optimizer, torch.optim.SGD) and group["momentum"] and not group["dampening"]:
                entries.setdefault("momentum_buffer", torch.zeros_like(p))
