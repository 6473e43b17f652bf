"""PyTorch's decompositions as kernels: run on tensors around traced arrays, so that a plan compiles them as a whole.

On a backend that does not compile (NumPy), a plan records the decomposition once, and then runs the recorded operations
of the hub: PyTorch's Python code takes tens of times as long as they do. Kernels that are written in operators are
recorded, too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import optree
import torch

from tensorgraft.frontends.torch.core import codes, schema, state
from tensorgraft.frontends.torch.core.devices import recording_slot, slot_of_backend
from tensorgraft.frontends.torch.core.modes import without_autocast
from tensorgraft.frontends.torch.core.nested import map_nested
from tensorgraft.frontends.torch.core.spec import Spec
from tensorgraft.frontends.torch.core.tensors import FROM_NUMPY, from_array, to_array
from tensorgraft.frontends.torch.dispatch import checks
from tensorgraft.frontends.torch.dispatch.references import known_sizes
from tensorgraft.hub.abstract import ShapeDtype
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.recorded.tracing import program_backend, record


@contextlib.contextmanager
def own_trace() -> Iterator[None]:
    """A context for a program that a backend traces by itself: its storages do not belong to the enclosing capture."""
    before, state.now.capture = state.now.capture, None
    try:
        yield
    finally:
        state.now.capture = before


def decomposed_spec(op: schema.Overload, decomposition: Callable[..., Any]) -> Spec:
    """Return a kernel made from a function on tensors that is equivalent to `op`."""
    sig = schema.signature(op)
    random = torch.Tag.nondeterministic_seeded in op.tags
    thread_state = threading.local()

    @contextlib.contextmanager
    def descending() -> Iterator[None]:
        """A context for one decomposition. Some decompositions call the operator itself again, which is then computed
        on the CPU."""
        thread_state.depth = getattr(thread_state, "depth", 0) + 1
        before, state.now.decomposing = state.now.decomposing, True
        try:
            if thread_state.depth > 3:
                raise NotImplementedError(f"PyTorch's decomposition of {op.name()} comes down to itself")
            yield
        finally:
            state.now.decomposing = before
            thread_state.depth -= 1

    def fn(xp: Backend, *args: Any, **kwargs: Any) -> Any:
        slot = slot_of_backend(codes.plain(xp))

        def up(a: Any) -> Any:
            if isinstance(a, np.dtype):
                return FROM_NUMPY[a]
            return from_array(a, slot) if xp.is_array(a) else a

        def down(a: Any) -> Any:
            return to_array(a) if isinstance(a, torch.Tensor) else a

        # the operator is below autocast, and so are those that it calls: its plan is valid inside and outside of a
        # region
        with descending(), known_sizes(), without_autocast(), contextlib.nullcontext() if random else own_trace():
            tensors = map_nested(up, args)
            named = {name: map_nested(up, a) for name, a in kwargs.items()}
            if "device" in sig.names:
                named["device"] = slot.device
            out = map_nested(down, decomposition(*tensors, **named))
            if not sig.written:
                return out
            bound = sig.bind(tuple(tensors), named)
            new = [map_nested(down, bound[name]) for name in sig.written]
            return new if sig.returns_written or not sig.returns else [*new, *(out if isinstance(out, list) else [out])]

    return Spec(fn, decomposed=True, uncompiled=random)


class Replayed:
    """The kernel of a decomposition for one plan, whose calls differ only in the values of arrays."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._run: Callable[..., Any] | None = None

    def __call__(self, xp: Backend, *args: Any, **kwargs: Any) -> Any:
        if self._run is None:
            self._run = self._recorded(xp, args, kwargs)
        return self._run(xp, *args, **kwargs)

    def _recorded(
        self, xp: Backend, args: tuple[Any, ...], kwargs: dict[str, Any], pure: bool = False
    ) -> Callable[..., Any]:
        """Record the kernel as a program. Return the kernel itself if it reads values or fails, so that its call
        raises; with `pure`, also if it returns constants or arguments."""
        structure: Any = None
        verifiers: list[Any] = []

        bound: Any = (args, kwargs)

        def arrays_in(call: Any) -> list[Any]:
            return [a for a in optree.tree_leaves(call) if xp.is_array(a)]

        def run(recorder: Any, *arrays: Any) -> list[Any]:
            nonlocal structure
            known = iter(arrays)
            positional, named = optree.tree_map(lambda a: next(known) if xp.is_array(a) else a, bound)
            with checks.collected() as pending:
                outputs, structure = optree.tree_flatten(self._fn(recorder, *positional, **named))
            verifiers.extend(verify for _, verify in pending)
            return [*outputs, *(values for values, _ in pending)]

        recording_slot(program_backend())
        try:
            program = record(run, [ShapeDtype(xp.shape(a), xp.dtype_of(a)) for a in arrays_in(bound)])
        except Exception:
            return self._fn
        if pure and program.passed:
            return self._fn
        computed = program.on(xp)
        names, single = sorted(kwargs), structure.is_leaf()
        if single and not verifiers and not names and all(map(xp.is_array, args)):
            return lambda xp, *arrays: computed(*arrays)[0]
        flat = not any(a is not x and xp.is_array(x) for a in (*args, *kwargs.values()) for x in optree.tree_leaves(a))
        row: Any = tuple(range(structure.num_leaves))
        is_flat_tuple = structure == optree.tree_structure(row)

        def replay(xp: Backend, *args: Any, **kwargs: Any) -> Any:
            operands = (*args, *[kwargs[n] for n in names]) if names else args
            outputs = computed(*(filter(xp.is_array, operands) if flat else arrays_in((args, kwargs))))
            if verifiers:
                checks.raise_failed(xp, outputs, verifiers)
            if single:
                return outputs[0]
            results = outputs[: structure.num_leaves]
            return results if is_flat_tuple else optree.tree_unflatten(structure, results)

        def checked(xp: Backend, *args: Any, **kwargs: Any) -> Any:
            # computed before it is checked: errors are raised by the kernel itself
            with contextlib.suppress(Exception):
                return replay(xp, *args, **kwargs)
            return self._fn(xp, *args, **kwargs)

        return checked if pure and verifiers else replay


class ReplayedFormula(Replayed):
    """A kernel that is written in operators, for one plan: it is recorded at the third call, and replayed without its
    Python code afterwards. If numbers are inputs of the plan (`numbers`), there are programs for a few of their
    values."""

    def __init__(self, fn: Callable[..., Any], numbers: bool) -> None:
        super().__init__(fn)
        self._calls = 0
        self._numbers = numbers
        self._programs: dict[Any, Callable[..., Any]] = {}

    def __call__(self, xp: Backend, *args: Any, **kwargs: Any) -> Any:
        return (self._run or self._program(xp, args, kwargs))(xp, *args, **kwargs)

    def _program(self, xp: Backend, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        if self._calls < 2:
            self._calls += 1
            return self._fn
        if not self._numbers:
            self._run = self._recorded(xp, args, kwargs, True)
            return self._run
        numbers = tuple([(a.__class__, repr(a)) for a in (*args, *kwargs.values()) if a.__class__ in _NUMBERS])
        run = self._programs.get(numbers)
        if run is None:
            if len(self._programs) == _MOST_PROGRAMS:
                return self._fn
            run = self._programs[numbers] = self._recorded(xp, args, kwargs, True)
        return run


_NUMBERS = frozenset({bool, int, float, complex})
_MOST_PROGRAMS = 4
