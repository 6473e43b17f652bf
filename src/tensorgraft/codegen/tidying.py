"""Removal of what a person would not write: broadcasts that an operation does itself, arrays of one number, repeated
computations.

Each rule keeps values, dtypes and shapes as they are at every size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.codegen.size_merging import same
from tensorgraft.codegen.trace import Block, Frame, SourceStep, SourceTrace, Tree, Var, variables
from tensorgraft.hub import dtypes
from tensorgraft.hub.operations.elementwise import BINARY, COMPARISONS

_UNITS: dict[str, bool | int] = {
    "bitwise_and": True, "logical_and": True, "bitwise_or": False, "logical_or": False, "add": 0, "subtract": 0,
    "multiply": 1,
}  # fmt: skip
_BROADCASTING = frozenset({*BINARY, *COMPARISONS, "where"})


def tidy(trace: SourceTrace) -> None:
    simplifier = _Simplifier()
    simplifier.frame(trace.root, {})
    trace.result = simplifier.now(trace.result)
    trace.written = simplifier.now(trace.written)


class _Simplifier:
    def __init__(self) -> None:
        self.stands: dict[Var, Any] = {}
        self.makers: dict[Var, SourceStep] = {}
        self.homes: dict[Var, Frame] = {}
        self.at: Frame | None = None

    def now(self, tree: Tree) -> Any:
        """The tree, of what stands for its arrays."""
        if isinstance(tree, Var):
            while isinstance(tree, Var) and tree in self.stands:
                tree = self.stands[tree]
            return tree
        if isinstance(tree, tuple | list):
            return type(tree)([self.now(x) for x in tree])
        if isinstance(tree, dict):
            return {k: self.now(x) for k, x in tree.items()}
        if isinstance(tree, Block):
            for call in tree.calls:
                call.args, call.kwargs = self.now(call.args), self.now(call.kwargs)
            tree.result = self.now(tree.result)
        return tree

    def frame(self, frame: Frame, around: dict[Any, Tree]) -> None:
        known: dict[Any, Tree] = dict(around)  # what has been computed, here or around
        calls: list[SourceStep | Frame] = []
        for call in frame.calls:
            if isinstance(call, Frame):
                call.arguments = [(n, self.now(t)) for n, t in call.arguments]
                self.frame(call, known if not call.is_module else {})
                calls.append(call)
                continue
            call.args, call.kwargs = self.now(call.args), self.now(call.kwargs)
            self.at = frame
            self.step(call)
            if isinstance(call.outcome, Var) and call.outcome in self.stands:
                continue
            key = _key(call)
            before = known.get(key) if key is not None else None
            if before is not None:
                self.replace(call.outcome, before)
                continue
            if key is not None:
                known[key] = call.outcome
            for v in variables(call.outcome):
                self.makers[v] = call
                self.homes[v] = frame
            calls.append(call)
        frame.calls = calls
        frame.result = self.now(frame.result)

    def replace(self, old: Tree, new: Tree) -> None:
        for a, b in zip(variables(old), variables(new), strict=True):
            self.stands[a] = b

    def step(self, call: SourceStep) -> None:
        out = call.outcome
        if not isinstance(out, Var):
            return
        if call.method in ("reshape", "broadcast_to") and same(call.args[0].shape, out.shape):
            self.stands[out] = call.args[0]
        elif call.method == "reshape":
            maker = self.beside(call.args[0])
            if maker is not None and maker.method == "reshape":
                call.args = (maker.args[0], *call.args[1:])
                if same(maker.args[0].shape, out.shape):
                    self.stands[out] = maker.args[0]
            else:
                self.repeated(call, out)
        elif call.method == "permute_dims":
            maker = self.beside(call.args[0])
            axes = tuple(call.args[1])
            if maker is not None and maker.method == "permute_dims":
                axes = tuple(maker.args[1][a] for a in axes)
                call.args = (maker.args[0], axes)
            if axes == tuple(range(len(axes))):
                self.stands[out] = call.args[0]
                return
            self.undone(call.args[0], axes, out)
        elif call.method == "moveaxis" and call.args[1] % out.ndim == call.args[2] % out.ndim:
            self.stands[out] = call.args[0]
        elif call.method in ("getitem", "slice", "take_slice") and same(call.args[0].shape, out.shape):
            if not (call.method == "slice" and any(map(_is_not_one, call.args[3]))):
                self.stands[out] = call.args[0]
        elif call.method in _BROADCASTING and not call.kwargs:
            self.elementwise(call, out)
            self.logic(call, out)

    def undone(self, x: Any, axes: tuple[int, ...], out: Var) -> None:
        """A transpose of what another function has transposed: it gives what it had before. Not that of a module, which
        may be a layer of the target."""
        maker = self.makers.get(x)
        if maker is None or maker.method != "permute_dims" or self.homes[x].is_module:
            return
        if tuple(maker.args[1][a] for a in axes) == tuple(range(len(axes))):
            self.stands[out] = maker.args[0]

    def repeated(self, call: SourceStep, out: Var) -> None:
        """Each element some times: a new axis that goes into the one before it."""
        broadcast = self.makers.get(call.args[0])
        if broadcast is None or broadcast.method != "broadcast_to":
            return
        unit = self.makers.get(broadcast.args[0])
        if unit is None or unit.method not in ("reshape", "expand_dims"):
            return
        x, wide = unit.args[0], list(call.args[0].shape)
        for axis in range(x.ndim):
            one = [*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]]
            if len(wide) != len(one) or type(wide[axis + 1]) is not int or not same(unit.outcome.shape, tuple(one)):
                continue
            n = wide[axis + 1]
            rest = [*x.shape[:axis], *x.shape[axis + 1 :]]
            if (
                n > 1
                and same(tuple(wide), (*one[: axis + 1], n, *one[axis + 2 :]))
                and out.ndim == x.ndim
                and same((*out.shape[:axis], *out.shape[axis + 1 :]), tuple(rest))
            ):
                call.method, call.args, call.kwargs = "repeat", (x, n, axis), {}
                call.names = call.names or broadcast.names
                return

    def beside(self, v: Any) -> SourceStep | None:
        """Return the step that made an array in this frame, if the user has not named what it made."""
        maker = self.makers.get(v) if self.homes.get(v) is self.at else None
        return maker if maker is not None and not any(maker.names) else None

    def logic(self, call: SourceStep, out: Var) -> None:
        """Simplify `x & True`, `x | False`, `n + 0` and `n * 1` of integers."""
        unit = _UNITS.get(call.method)
        if unit is None or len(call.args) != 2:
            return
        for x, y in (call.args, call.args[::-1]):
            number = y
            if isinstance(y, Var):
                if y.value is None or y.ndim or y.dtype != out.dtype:
                    continue
                number = y.value.item()
            if (
                isinstance(x, Var)
                and type(number) is type(unit)
                and number == unit
                and x.dtype == out.dtype
                and x.dtype.kind in "biu"
                and same(x.shape, out.shape)
                and (call.method != "subtract" or x is call.args[0])
            ):
                self.stands[out] = x
                return

    def elementwise(self, call: SourceStep, out: Var) -> None:
        args = list(call.args)
        for i, a in enumerate(args):
            if not isinstance(a, Var) or (call.method == "where" and i == 0 and a.value is not None):
                continue
            others = [x for j, x in enumerate(args) if j != i and isinstance(x, Var)]
            maker = self.makers.get(a)
            number = _number(a, maker)
            peers = [x for x in others if x.dtype == a.dtype and not (call.method == "where" and x is args[0])]
            if number is not None and peers and same(_broadcast([x.shape for x in others]), out.shape):
                args[i] = number
                continue
            if maker is not None and maker.method == "broadcast_to" and not any(maker.names):
                shapes = [x.shape for x in others]
                if same(_broadcast([maker.args[0].shape, *shapes]), out.shape):
                    args[i] = maker.args[0]
        call.args = tuple(args)


def _is_not_one(x: Any) -> bool:
    return not same(x, 1)


def _number(v: Var, maker: SourceStep | None) -> Any:
    """The number that all elements of an array are, as Python's; None for another array."""
    value: Any = None
    if v.value is not None and v.value.size == 1 and v.ndim == 0:
        value = v.value.item() if v.dtype.isbuiltin == 1 else float(v.value)
    elif maker is not None and maker.method == "full" and not isinstance(maker.args[1], Var):
        value = maker.args[1]
    elif maker is not None and maker.method in ("zeros", "ones"):
        value = 0 if maker.method == "zeros" else 1
    if value is None or v.dtype == np.bool_ or dtypes.is_complex(v.dtype):
        return None
    if dtypes.is_floating(v.dtype):
        return float(value)
    return int(value) if isinstance(value, int) and abs(value) < 2**31 else None


def _broadcast(shapes: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    n = max(map(len, shapes), default=0)
    out: list[Any] = []
    for i in range(-n, 0):
        extents = [s[i] for s in shapes if len(s) >= -i and not same(s[i], 1)]
        out.append(extents[0] if extents else 1)
    return tuple(out)


def _key(call: SourceStep) -> Any:
    """Equal for calls that give the same; None where there is none (random numbers, bodies)."""

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
