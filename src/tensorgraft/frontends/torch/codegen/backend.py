"""`SourceBackend`: a recording backend whose calls, including words, become the steps of a `SourceTrace`, in frames."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from tensorgraft.codegen.trace import Frame, SourceStep
from tensorgraft.codegen.words import definition
from tensorgraft.compiled.traced_value_errors import ways_out
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.codegen.values import values_of
from tensorgraft.frontends.torch.core.located_errors import current_line
from tensorgraft.frontends.torch.core.traced_values import NUMBER
from tensorgraft.hub import dtypes
from tensorgraft.hub.abstract import ShapeDtype
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.elementwise import COMPARISONS, ELEMENTWISE
from tensorgraft.hub.recorded.block import Block, Call, Var, leaves, mapped, variables
from tensorgraft.hub.recorded.tracing import ProgramBackend, spec_of
from tensorgraft.storage import Geometry

_TAKE_NUMBERS = frozenset({*ELEMENTWISE, *COMPARISONS, "where", "floor_divide", "remainder", "maximum", "minimum"})
_PRODUCTS = frozenset({"matmul", "dot_general"})
_GRADIENTLESS = frozenset({"stop_gradient"})


class Scope:
    """The state while one frame (or the body of a loop) is recorded."""

    def __init__(self, frame: Frame | None, calls: list[Any], outer: Scope | None) -> None:
        self.frame, self.calls, self.outer = frame, calls, outer
        self.remembered: dict[Any, Var] = {}  # geometries of arrays, constants, and arrays that stop gradients
        self.variables: set[Var] = set()  # variables that were made in it
        self.key: Var | None = None  # the current key of its random numbers, if it draws any


class SourceRecording:
    """The state of one trace while it is recorded."""

    def __init__(self, root: Frame) -> None:
        self.scope = Scope(root, root.calls, None)
        self.makers: dict[Var, SourceStep] = {}  # {variable: the step whose result it is}
        self.values: dict[Var, np.ndarray | None] = {}  # {variable whose value was needed: its value, if known}
        self.scalars: dict[Var, Any] = {}  # {array without axes: the Python number that it was filled with}
        self.smooth: set[Var] = set()  # arrays that depend differentiably on parameters or arguments
        self.halted: set[Var] = set()  # arrays that would be smooth, but were computed with gradients disabled
        self.key: Var | None = None  # the key of the whole trace, if one was used
        self.place: str = ""
        self.examples: dict[Var, np.ndarray] = {}  # values of arguments and weights, only for checks
        self.notes: dict[str, None] = {}
        self.derivative_notes: dict[str, None] = {}

    def scopes(self) -> Iterator[Scope]:
        scope: Scope | None = self.scope
        while scope is not None:
            yield scope
            scope = scope.outer

    def recall(self, key: Any) -> Var | None:
        for scope in self.scopes():
            known = scope.remembered.get(key)
            if known is not None:
                return known
        return None


class SourceBackend(ProgramBackend):
    """The backend of traces for source code. Each thread records its own trace."""

    name = "source"
    recalls = True

    # ---- recordings ------------------------------------------------------------------------------------------------

    @property
    def active(self) -> SourceRecording | None:
        return getattr(self._local, "recording", None)

    @property
    def current(self) -> SourceRecording:
        recording = self.active
        if recording is None:
            raise RuntimeError("nothing is being recorded (tensorgraft.codegen)")
        return recording

    @contextlib.contextmanager
    def tracing(self, root: Frame) -> Iterator[SourceRecording]:
        if self.active is not None:
            raise RuntimeError("a program is being recorded for its source already")
        recording = self._local.recording = SourceRecording(root)
        self._local.calls, self._local.small = root.calls, {}
        try:
            yield recording
        finally:
            self._local.recording = self._local.calls = None

    @contextlib.contextmanager
    def frame(self, frame: Frame) -> Iterator[Frame]:
        """Record into a frame, which is a call of the frame around it."""
        scope = self.begin(frame)
        try:
            yield frame
        finally:
            self.end(scope)

    def begin(self, frame: Frame) -> Scope:
        recording = self.current
        recording.scope.calls.append(frame)
        recording.scope = Scope(frame, frame.calls, recording.scope)
        return recording.scope

    def end(self, scope: Scope) -> None:
        outer = self._outer_scope(scope)
        assert scope.frame is not None
        outer.variables.update(v for v in variables(scope.frame.result) if v in scope.variables)

    def dissolve(self, scope: Scope) -> None:
        """Move the steps of a frame to the frame around it."""
        outer = self._outer_scope(scope)
        at = next(i for i in reversed(range(len(outer.calls))) if outer.calls[i] is scope.frame)
        outer.calls[at : at + 1] = scope.calls
        outer.remembered.update(scope.remembered)
        outer.variables |= scope.variables
        if scope.key is not None:
            outer.key = scope.key

    def _outer_scope(self, scope: Scope) -> Scope:
        recording = self.current
        assert recording.scope is scope
        assert scope.outer is not None
        recording.scope = scope.outer
        return scope.outer

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[Call]]:
        """Record the body of a loop or a branch into a list of its own."""
        recording = self.current
        outer = recording.scope
        recording.scope = Scope(None, [], outer)
        try:
            yield recording.scope.calls
        finally:
            recording.scope = outer

    @property
    def in_body(self) -> bool:
        return any(scope.frame is None for scope in self.current.scopes())

    # ---- steps -----------------------------------------------------------------------------------------------------

    def _append(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        recording = self.current
        result_vars = mapped(lambda x: Var(x.shape, x.dtype) if type(x) is ShapeDtype else x, result)
        smooth = halted = False
        for v in variables([args, kwargs]):
            smooth = smooth or v in recording.smooth
            halted = halted or v in recording.halted
        if method in _GRADIENTLESS:
            smooth = halted = False
        if (smooth or halted) and method not in _GRADIENTLESS:
            if torch.is_grad_enabled():
                if halted:
                    args, kwargs = mapped(self._stopped, (args, kwargs))
            else:
                smooth, halted = False, True
        step = SourceStep(method, args, kwargs, result_vars, (), recording.place)
        recording.scope.calls.append(step)
        for v in variables(result_vars):
            recording.makers[v] = step
            recording.scope.variables.add(v)
            if (smooth or halted) and dtypes.is_inexact(v.dtype):
                (recording.smooth if smooth else recording.halted).add(v)
        return result_vars

    def _stopped(self, x: Any) -> Any:
        return self.stopped(x) if type(x) is Var and x in self.current.halted else x

    def stopped(self, x: Array) -> Var:
        """Return `x` with its gradient stopped."""
        recording = self.current
        if x not in recording.smooth and x not in recording.halted:
            return x
        key = "stop_gradient", x
        known = recording.recall(key)
        if known is None:
            known = recording.scope.remembered[key] = self.word("stop_gradient", x)
        return known

    def result(self, x: Array) -> Var:
        """Return `x` as a result of a region in which gradients are enabled."""
        return self.stopped(x) if x in self.current.halted and torch.is_grad_enabled() else x

    def word(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Record a word of `codegen.words`."""
        args, kwargs = mapped(lambda x: self._argument(name, x), (args, kwargs))
        plain_args, plain_kwargs = mapped(spec_of, (args, kwargs))
        return self._append(name, args, kwargs, definition(name)(self._rules, *plain_args, **plain_kwargs))

    def _argument(self, name: str, x: Any) -> Any:
        return x if isinstance(x, slice) or x is Ellipsis else super()._argument(name, x)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == "full":
            return self._full(*args, **kwargs)
        if name == "permute_dims" and (inner := self._before_permutation(*args)) is not None:
            return inner
        if name in _TAKE_NUMBERS:
            args = self._with_numbers(name, args)
        elif name == "pad" and args[1] in self.current.scalars:
            args = (args[0], self.current.scalars[args[1]], *args[2:])
        elif name in _PRODUCTS:
            args, kwargs = _without_dtype(args, kwargs)
        return super().call(name, args, kwargs)

    def _full(self, shape: tuple[int, ...], value: Any, dtype: np.dtype) -> Var:
        """Record an array filled with a number, only once for the same number. An array without axes is noted in
        `scalars`."""
        recording = self.current
        if type(value) is Var:
            if value not in recording.scalars or value.dtype != dtype:
                return super().call("full", (shape, value, dtype), {})
            value = recording.scalars[value]
        if isinstance(value, np.ndarray | np.generic):
            value = value.item()
        key = "full", tuple(shape), type(value), repr(value), dtype
        known = recording.recall(key)
        if known is None:
            known = recording.scope.remembered[key] = super().call("full", (tuple(shape), value, dtype), {})
            if not shape:
                recording.scalars[known] = value
        return known

    def _before_permutation(self, x: Var, axes: tuple[int, ...]) -> Var | None:
        """Return the array from which `x` was permuted if `axes` undo that permutation, otherwise None. Such pairs
        arise because PyTorch gives results the memory layout of their operands."""
        step = self.current.makers.get(x)
        if step is None or step.method != "permute_dims" or x not in self.current.scope.variables:
            return None
        inner, before = step.args
        return inner if tuple(before[a] for a in axes) == tuple(range(x.ndim)) else None

    def _with_numbers(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replace arrays that are Python numbers by these numbers, if an operand is another array."""
        scalars = self.current.scalars
        operands = args[1:] if name == "where" else args
        arrays = [x for x in operands if type(x) is Var]
        if len(operands) < 2 or all(x in scalars for x in arrays) or not any(x in scalars for x in arrays):
            return args
        return (
            *args[: len(args) - len(operands)],
            *(scalars[x] if type(x) is Var and x in scalars else x for x in operands),
        )

    # ---- known views and values ------------------------------------------------------------------------------------

    def recall(self, array: Var, geometry: Geometry, read: Callable[..., Var]) -> Var:
        key = array, geometry
        recording = self.current
        known = recording.recall(key)
        if known is None:
            known = read(self, array, geometry)
            if known is not array:
                recording.scope.remembered[key] = known
        return known

    def remember(self, array: Array, geometry: Geometry, view: Array) -> None:
        self.current.scope.remembered[array, geometry] = view

    def to_numpy(self, x: Array, /) -> np.ndarray:
        known = (
            None
            if x.value is not None or self.active is None
            else values_of(self.current.makers, x, self.current.values)
        )
        if known is None and x.value is None and self.active is not None:
            raise _asked_for(x)
        return x.known() if known is None else known

    # ---- random numbers --------------------------------------------------------------------------------------------

    def draw(self) -> Var:
        """Return a key for one draw. Each frame that draws has its own key, which is split for each draw."""
        if self.in_body:
            raise TracedValueError("random numbers in the body of a loop or a branch cannot be written as source")
        scope = self.current.scope
        scope.key, key = self._split(scope, len(scope.calls))
        return key

    def _split(self, scope: Scope, at: int) -> tuple[Var, Var]:
        recording = self.current
        if scope.key is None:
            if scope.outer is None:
                scope.key = recording.key = Var((2,), dtypes.uint32)
            else:
                before = next(i for i in reversed(range(len(scope.outer.calls))) if scope.outer.calls[i] is scope.frame)
                scope.outer.key, scope.key = self._split(scope.outer, before)
                assert scope.frame is not None
                scope.frame.arguments.append(("key", scope.key))
        rest, key = Var((2,), dtypes.uint32), Var((2,), dtypes.uint32)
        step = SourceStep("split_key", (scope.key,), {}, (rest, key), ("key", "subkey"), recording.place)
        scope.calls.insert(at, step)
        recording.makers[rest] = recording.makers[key] = step
        scope.variables |= {rest, key}
        return rest, key


@functools.cache
def source_backend() -> SourceBackend:
    return SourceBackend()


def _asked_for(x: Var) -> TracedValueError:
    problem = (
        f"{current_line()} needs the values of a {x.dtype} array of shape {x.shape} now, which depend on the arguments."
    )
    return TracedValueError("\n".join([problem, "Source has to be the same for all of them.", *ways_out(NUMBER)]))


def _without_dtype(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Drop the dtype of a product if it is that of its operands."""
    operand_dtypes = {x.dtype for x in args if type(x) is Var}
    plain = tuple(a for a in args if not (isinstance(a, np.dtype) and operand_dtypes == {a}))
    return plain, {k: v for k, v in kwargs.items() if not (k == "dtype" and (v is None or operand_dtypes == {v}))}


__all__ = ["Block", "SourceBackend", "SourceRecording", "leaves", "source_backend"]
