"""Simplifications of a trace at all its sizes, which the rules of one frame at one size (`simplifying`) cannot make:
repeated computations, transposes across frames, repetitions of elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.codegen.simplification.rewriting import Rewritten
from tensorgraft.codegen.structure.size_merging import equal_sizes
from tensorgraft.codegen.trace import Block, Frame, SourceStep, SourceTrace, Tree, Var, variables


def tidy(trace: SourceTrace) -> None:
    simplifier = _Simplifier()
    simplifier.frame(trace.root, {})
    trace.result = simplifier.replaced(trace.result)
    trace.written = simplifier.replaced(trace.written)


class _Simplifier:
    def __init__(self) -> None:
        self.replaced = Rewritten()
        self.makers: dict[Var, SourceStep] = {}
        self.homes: dict[Var, Frame] = {}

    def frame(self, frame: Frame, outer_values: dict[Any, Tree]) -> None:
        known: dict[Any, Tree] = dict(outer_values)  # values computed so far, here or in enclosing blocks
        calls: list[SourceStep | Frame] = []
        for call in frame.calls:
            if isinstance(call, Frame):
                call.arguments = [(n, self.replaced(t)) for n, t in call.arguments]
                self.frame(call, known if not call.is_module else {})
                calls.append(call)
                continue
            call.args, call.kwargs = self.replaced(call.args), self.replaced(call.kwargs)
            self.step(call)
            if isinstance(call.results, Var) and call.results in self.replaced.instead:
                continue
            key = _key(call)
            before = known.get(key) if key is not None else None
            if before is not None:
                self.replace(call.results, before)
                continue
            if key is not None:
                known[key] = call.results
            for v in variables(call.results):
                self.makers[v] = call
                self.homes[v] = frame
            calls.append(call)
        frame.calls = calls
        frame.result = self.replaced(frame.result)

    def replace(self, old: Tree, new: Tree) -> None:
        for a, b in zip(variables(old), variables(new), strict=True):
            self.replaced.instead[a] = b

    def step(self, call: SourceStep) -> None:
        if not isinstance(call.results, Var):
            return
        if call.method == "reshape":
            self.repeated(call, call.results)
        elif call.method == "permute_dims":
            self.undone(call.args[0], tuple(call.args[1]), call.results)

    def undone(self, x: Any, axes: tuple[int, ...], out: Var) -> None:
        """Remove a transposition of an array that another function has transposed. Modules are left alone, as they may
        be layers of the target."""
        maker = self.makers.get(x)
        if maker is None or maker.method != "permute_dims" or self.homes[x].is_module:
            return
        if tuple(maker.args[1][a] for a in axes) == tuple(range(len(axes))):
            self.replaced.instead[out] = maker.args[0]

    def repeated(self, call: SourceStep, out: Var) -> None:
        """Write a broadcast along a new axis that is merged with the axis before it as a repetition of elements."""
        broadcast = self.makers.get(call.args[0])
        if broadcast is None or broadcast.method != "broadcast_to":
            return
        unit = self.makers.get(broadcast.args[0])
        if unit is None or unit.method not in ("reshape", "expand_dims"):
            return
        x, wide = unit.args[0], list(call.args[0].shape)
        for axis in range(x.ndim):
            with_unit_axis = [*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]]
            if (
                len(wide) != len(with_unit_axis)
                or type(wide[axis + 1]) is not int
                or not equal_sizes(unit.results.shape, tuple(with_unit_axis))
            ):
                continue
            n = wide[axis + 1]
            rest = [*x.shape[:axis], *x.shape[axis + 1 :]]
            if (
                n > 1
                and equal_sizes(tuple(wide), (*with_unit_axis[: axis + 1], n, *with_unit_axis[axis + 2 :]))
                and out.ndim == x.ndim
                and equal_sizes((*out.shape[:axis], *out.shape[axis + 1 :]), tuple(rest))
            ):
                call.method, call.args, call.kwargs = "repeat", (x, n, axis), {}
                call.names = call.names or broadcast.names
                return


def _key(call: SourceStep) -> Any:
    """Return a key that is equal for calls with equal results; None for calls without one (random numbers, bodies)."""

    def of(x: Any) -> Any:
        if isinstance(x, Var):
            return id(x)
        if isinstance(x, tuple | list):
            return type(x).__name__, tuple(map(of, x))
        if isinstance(x, dict):
            return tuple((k, of(v)) for k, v in x.items())
        if isinstance(x, slice):
            return of(x.start), of(x.stop), of(x.step)
        if isinstance(x, Block | np.ndarray):
            raise TypeError
        return type(x).__name__, getattr(x, "values", None), str(x)

    try:
        return call.method, of(call.args), of(call.kwargs)
    except TypeError:
        return None
