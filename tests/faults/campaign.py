"""Faults, one after the other: a scenario is interrupted at its n-th thing, and everything is looked at afterwards."""

from __future__ import annotations

import gc
import math
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tests.faults.injection import KINDS, Injector, Kind, raised
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.states import Steps, copied, difference, snapshot, tensors_in

import tensorgraft as tg


@dataclass
class Wrong:
    scenario: str
    backend: str
    mode: str
    kind: str
    at: int
    point: str
    what: str

    def __str__(self) -> str:
        return f"{self.scenario} | {self.backend} {self.mode} | {self.kind} at {self.at} ({self.point}): {self.what}"


@dataclass
class Cell:
    """Faults of one kind in one scenario on one backend."""

    injected: int = 0
    absorbed: int = 0  # which nobody saw: computed in another way
    wrong: list[Wrong] = field(default_factory=list)


class Oracle:
    """The states in which a scenario may be left on the CPU, and those after the next call."""

    def __init__(self, scenario: Scenario, state: Any = None) -> None:
        self.scenario = scenario
        state = scenario.build(torch.device("cpu")) if state is None else state
        steps = Steps(state)
        steps.note()
        with steps:
            scenario.act(state)
        steps.note()
        last = (snapshot(state), copied(state))
        seen = [steps.seen[0], last] if scenario.whole else [*steps.seen, last]
        if scenario.half is not None:
            state = copied(steps.seen[0][1])
            scenario.half(state)
            seen.insert(1, (snapshot(state), state))
        self.allowed = [s for s, _ in seen]
        self._states = [s for _, s in seen]
        self._next: dict[int, dict[str, Any]] = {}

    def place(self, now: dict[str, Any]) -> tuple[int | None, str]:
        """Which of the states this is; or why it is none."""
        if self.scenario.parts:
            return self._place_parts(now)
        reasons = []
        for k in (0, len(self.allowed) - 1, *range(1, len(self.allowed) - 1)):
            why = difference(self._without_dropped(self.allowed[k], now), now)
            if why is None:
                return k, ""
            reasons.append(why)
        return None, f"neither as before ({reasons[0]}) nor as after ({reasons[1]}), {len(reasons)} states tried"

    def _place_parts(self, now: dict[str, Any]) -> tuple[int | None, str]:
        """Each part of it is as in one of the states, in whatever order they came: a state of its own."""
        for path, x in now.items():
            if all(difference({path: s.get(path)}, {path: x}) is not None for s in self.allowed):
                return None, f"{path} is in none of {len(self.allowed)} states: {x}"
        for k in (0, len(self.allowed) - 1):
            if difference(self.allowed[k], now) is None:
                return k, ""
        state = copied(self._states[0])
        for path, t in tensors_in("", state):
            if path in now:
                t.data.copy_(torch.from_numpy(now[path]))
            if f"{path}.grad" in now:
                t.grad = torch.from_numpy(now[f"{path}.grad"].copy())
        self._states.append(state)
        return len(self._states) - 1, ""

    def _without_dropped(self, state: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
        """A compiled step drops gradients that its function sets to None before its program runs, whose memory is free
        for the new ones."""
        if not self.scenario.whole:
            return state
        gone = [p for p in state if p.endswith(":grad") and not state[p] and now.get(p)]
        kept = {p: x for p, x in state.items() if not any(p.startswith(g.replace(":grad", ".grad")) for g in gone)}
        return kept | dict.fromkeys(gone, True)

    def after(self, k: int) -> dict[str, Any]:
        """The state after one more call."""
        if k not in self._next:
            state = copied(self._states[k])
            try:
                self.scenario.act(state)
                self._next[k] = snapshot(state)
            except Exception as error:  # nor can PyTorch itself: Adam's first step, cut short as it makes its state
                self._next[k] = {"raises": type(error)}
        return self._next[k]

    def forget(self) -> None:
        """What comes of the faults of before: the parts that were found, and what comes after them."""
        del self._states[len(self.allowed) :]
        self._next.clear()

    def state(self, k: int) -> Any:
        return copied(self._states[k])


def surroundings() -> dict[str, Any]:
    """What an exception must not leave behind in a thread or in the process."""
    from tensorgraft.frontends.array_api.core import tracing
    from tensorgraft.frontends.torch.compiled import lazy
    from tensorgraft.frontends.torch.core import state
    from tensorgraft.hub import registry, tiers

    optimizers, modules = sys.modules["torch.optim.optimizer"], torch.nn.modules.module
    seen: dict[str, Any] = {
        "a capture": state.now.capture,
        "planning": state.now.planning,
        "arguments": tuple(state.now.leaves),
        "what the host computed": dict(state.now.computed),
        "TorchScript": state.now.scripted,
        "a capture of arrays": tracing.now.capture,
        "lazy mode": len(lazy._active),
        "mode": tiers.mode(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch._C._is_any_autocast_enabled(),
        "threads of autograd": torch._C._is_multithreading_enabled(),
        "compiling": torch.compiler._is_compiling_flag,
        "hooks of optimizers": len(optimizers._global_optimizer_pre_hooks)
        + len(optimizers._global_optimizer_post_hooks),
        "hooks of modules": len(modules._global_forward_hooks) + len(modules._global_forward_pre_hooks),
        "step of SGD": torch.optim.SGD.step,
        "zero_grad": torch.optim.Optimizer.zero_grad,
        "tolist": torch.Tensor.tolist,
        "filters of warnings": len(warnings.filters),
        "collector": gc.isenabled(),
        "threads": threading.active_count(),
    }
    if "jax" in sys.modules:
        import jax

        from tensorgraft.backends.jax.operation import is_tracing

        seen["64 bits"] = jax.config.jax_enable_x64
        seen["a trace of JAX"] = is_tracing()
    if "torch" in sys.modules:
        seen["mutable"] = registry.get("torch").mutable
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        seen["eager TensorFlow"] = tf.executing_eagerly()
    return seen


def remains() -> dict[str, int]:
    """What there is more of where something leaks."""
    from tensorgraft.frontends.torch.compiled import jit
    from tensorgraft.storage import Storage

    jit.reports.clear()  # the thousand newest, on purpose
    for _ in range(2):  # a tuple of tuples is seen as having no cycle only by the second
        gc.collect()
    # caches of JAX's keep weak references to functions that are gone, and how constants lie of the newest 8192 traces
    objects = [x for x in gc.get_objects() if type(x) is not weakref.ReferenceType or x() is not None]
    placed = [x for x in objects if type(x).__name__ == "SingleDeviceSharding"]
    cached = {id(y) for x in placed for y in (x, vars(x), *vars(x).values())}
    return {
        "storages": sum(type(x) is Storage or isinstance(x, Storage) for x in objects),
        "objects": sum(id(x) not in cached for x in objects),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


def placements(state: Any) -> dict[str, str]:
    return {n: str(tg.parallel.placement(t)) for n, t in tensors_in("", state)}


def versions(state: Any) -> dict[str, tuple[int, Any]]:
    return {n: t._version for n, t in tensors_in("", state)}


class Trial:
    """All faults of a scenario on a backend in one mode."""

    def __init__(self, injector: Injector, scenario: Scenario, backend: str, mode: str) -> None:
        self.injector, self.scenario, self.backend, self.mode = injector, scenario, backend, mode
        self.device = tg.device(backend)
        self.oracle = Oracle(scenario)
        self.state: Any = None
        self.counted: set[str] = set()  # whose versions a call counts up
        self.lie: set[tuple[str, str]] = set()  # how tensors are placed before a call, and after it

    def fresh(self) -> Any:
        if self.scenario.kept and self.state is not None:
            return self.state
        self.state = self.scenario.build(self.device)
        self.oracle = Oracle(self.scenario) if self.scenario.kept else self.oracle
        return self.state

    def count(self) -> list[str]:
        """The names of what a call does."""
        state = self.scenario.build(self.device)
        before, self.lie = versions(state), {*placements(state).items()}
        with tg.eager(self.mode), self.injector.counting() as names:
            self.scenario.act(state)
        # not of buffers that an operator writes without its schema saying so: batch norm's
        self.lie |= {*placements(state).items()}
        self.counted = {n for n, v in versions(state).items() if v != before.get(n)}
        why = self.oracle.place(snapshot(state))
        if why[0] != len(self.oracle.allowed) - 1 and difference(self.oracle.allowed[-1], snapshot(state)):
            raise AssertionError(f"{self.scenario.name} on {self.backend} is wrong undisturbed: {why[1] or why[0]}")
        return names

    def fault(self, at: int, kind: Kind) -> tuple[bool, bool, str, str]:
        """(injected, absorbed, where, what is wrong)"""
        state, scenario = self.fresh(), self.scenario
        before, old = versions(state), snapshot(state)
        error: BaseException | None = None
        fired = ""
        with tg.eager(self.mode):
            around = surroundings()
            try:
                with self.injector.raising(at, kind, self.backend):
                    scenario.act(state)
                    for _ in range(3):  # an interrupt that was put off comes now
                        pass
            except BaseException as e:
                error = e
            fired = self.injector.fired
            if error is not None and not raised(error):
                what = f"another error, {type(error).__name__}: {str(error)[:200]}"
                self.state = None
                return bool(fired), False, fired, what
            if error is not None:
                error.__traceback__ = None
            if not fired:
                self.state = None  # it has gone on
                return False, False, "", ""
            now_around = surroundings()
            changed = [n for n in around if around[n] != now_around.get(n)]
            if changed:
                name = changed[0]
                return True, False, fired, f"left behind: {name} was {around[name]!r}, is {now_around.get(name)!r}"
            try:
                now = snapshot(state)
            except BaseException as e:
                self.state = None
                return True, False, fired, f"the state cannot be read: {type(e).__name__}: {str(e)[:150]}"
            k, why = self.oracle.place(now)
            if k is None:
                self.state = None
                return True, error is None, fired, why
            if error is None and k != len(self.oracle.allowed) - 1:
                return True, True, fired, "no exception, and the call is not done"
            if moved := {*placements(state).items()} - self.lie:
                return True, error is None, fired, f"as neither before nor after lies {moved}"
            if not scenario.compiled:
                for name, version in versions(state).items():
                    if (
                        name not in self.counted
                        or name not in before
                        or name not in old
                        or now[name].shape != old[name].shape
                    ):
                        continue
                    changed = not np.array_equal(now[name], old[name], equal_nan=True)
                    if changed and version == before[name]:
                        return True, error is None, fired, f"{name} was written, and its version is that before"
            try:
                scenario.act(state)
                later = snapshot(state)
            except BaseException as e:
                if self.oracle.after(k) == {"raises": type(e)}:
                    return True, error is None, fired, ""
                self.state = None
                return True, error is None, fired, f"the next call fails: {type(e).__name__}: {str(e)[:200]}"
            why = difference(self.oracle.after(k), later)
            if why is not None:
                self.state = None
                return True, error is None, fired, f"after the next call: {why}"
        if scenario.kept:
            twin = self.oracle.state(k)
            scenario.act(twin)
            self.oracle = Oracle(scenario, twin)
        return True, error is None, fired, ""

    def leaks(self, count: int, rounds: int = 3) -> tuple[int, str]:
        """The same faults, one of each kind, again and again: (how many, what there is more of)."""
        injected, seen = 0, []
        at = dict(zip(KINDS, places(count, len(KINDS)) * len(KINDS), strict=False))
        gc.collect()
        gc.freeze()  # what is there already is not looked at
        for repetitions in (2, rounds):
            for _ in range(repetitions):
                for kind in KINDS:
                    injected += self.fault(at[kind], kind)[0]
            self.state = self.state if self.scenario.kept else None
            self.oracle.forget()
            seen.append(remains())
        before, after = seen
        # less than one of them for each fault
        more = [n for n in before if after[n] - before[n] >= (rounds * len(KINDS) if n == "objects" else 1)]
        return injected, "; ".join(f"{n} were {before[n]}, are {after[n]}" for n in more)


def places(count: int, most: int) -> list[int]:
    """Numbers from 1 to `count`: all of them, or so many, evenly."""
    if count <= most:
        return [*range(1, count + 1)]
    return sorted({1 + round(i * (count - 1) / max(most - 1, 1)) for i in range(most)})


Key = tuple[str, str, str, str]  # scenario, backend, mode, kind
LEAKS = "again and again"  # the kind of those faults


class Faults:
    """All scenarios on some backends."""

    def __init__(self, injector: Injector, backends: Sequence[str], scenarios: Sequence[Scenario] = SCENARIOS) -> None:
        self.injector = injector
        cells = [
            (scenario, backend, mode)
            for backend in backends
            for scenario in scenarios
            if backend in scenario.backends
            for mode in (scenario.modes if backend == "jax" else scenario.modes[:1])
        ]
        # how many things each does
        self.cells = {cell: len(Trial(injector, *cell).count()) for cell in cells}

    def most(self, faults: int, shares: Mapping[str, float]) -> dict[str, int]:
        """How many places of each kind in each scenario make so many faults in all, by backend."""
        n = 1
        while True:
            most = {backend: math.ceil(n * share) for backend, share in shares.items()}
            planned = sum(len(places(count, most[backend])) for (_, backend, _), count in self.cells.items())
            if planned * len(KINDS) >= faults or n > 10000:
                return most
            n += 1

    def inject(self, most: Mapping[str, int]) -> Iterator[dict[Key, Cell]]:
        """That many, scenario by scenario, and a line of each."""
        for (scenario, backend, mode), count in self.cells.items():
            trial = Trial(self.injector, scenario, backend, mode)
            trial.count()
            table: dict[Key, Cell] = {}
            for kind in KINDS:
                cell = table[scenario.name, backend, mode, str(kind)] = Cell()
                for at in places(count, most[backend]):
                    injected, absorbed, where, what = trial.fault(at, kind)
                    cell.injected += injected
                    cell.absorbed += absorbed
                    if what:
                        cell.wrong.append(Wrong(scenario.name, backend, mode, str(kind), at, where, what))
            injected, what = trial.leaks(count)
            cell = table[scenario.name, backend, mode, LEAKS] = Cell(injected)
            if what:
                cell.wrong.append(Wrong(scenario.name, backend, mode, LEAKS, 0, "", what))
            faults, wrong = sum(c.injected for c in table.values()), [w for c in table.values() for w in c.wrong]
            shown = f"{scenario.name:45} {backend:10} {mode:9} {count:5} things"
            print(f"{shown}, {faults:4} faults, {len(wrong):3} wrong", flush=True)
            for w in wrong[:3]:
                print("   ", str(w)[:400], flush=True)
            yield table
