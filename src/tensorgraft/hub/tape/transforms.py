"""Reverse and forward derivatives out of a tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.tape.backend import TapeNode, Taping, Variable
from tensorgraft.hub.transforms import Function, Transforms


class ByTape(Transforms):
    """Derivatives for a backend whose framework has none, by the hub's tape."""

    def vjp(
        self, fn: Function, /, *primals: Array
    ) -> tuple[tuple[Array, ...], Callable[[Sequence[Array]], tuple[Array, ...]]]:
        return vjp(self, fn, primals)

    def jvp(
        self, fn: Function, primals: Sequence[Array], tangents: Sequence[Array], /
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        return jvp(self, fn, primals, tangents)


class TapeBackend(ByTape, Taping):
    """A backend whose own derivatives are those of a tape on it."""


def vjp(
    xp: Any, fn: Callable[..., Sequence[Array]], primals: Sequence[Array]
) -> tuple[tuple[Array, ...], Callable[[Sequence[Array]], tuple[Array, ...]]]:
    """See `Transforms.vjp`. A tape of a tape gives higher derivatives."""
    tape = TapeBackend(xp)
    inputs = [Variable(x, tracked=True) for x in primals]
    results = list(fn(tape, *inputs))

    def pulled_back(cotangents: Sequence[Array]) -> tuple[Array, ...]:
        return _walk(xp, inputs, results, cotangents)

    return tuple(r.value for r in results), pulled_back


def _walk(
    xp: Any, inputs: Sequence[Variable], results: Sequence[Variable], cotangents: Sequence[Array]
) -> tuple[Array, ...]:
    gathered: dict[int, list[Array | None]] = {}  # {id of a node: cotangents of its results}
    arrived: dict[int, Array] = {}  # {id of an input: its cotangent}

    def give(v: Variable, g: Array) -> None:
        if v.node is None:
            arrived[id(v)] = g if id(v) not in arrived else xp.add(arrived[id(v)], g)
            return
        slots = gathered.setdefault(id(v.node), [None] * v.node.results)
        before = slots[v.number]
        slots[v.number] = g if before is None else xp.add(before, g)

    for r, g in zip(results, cotangents, strict=True):
        if r.tracked and dtypes.is_inexact(xp.dtype_of(r.value)):
            give(r, g)
    for node in _order([r.node for r in results if r.node is not None]):
        slots = gathered.pop(id(node), None)
        if slots is None:
            continue
        for v, thunk in zip(node.operands, node.pull(slots), strict=True):
            if v is not None and thunk is not None:
                give(v, thunk())
    return tuple(arrived[id(v)] if id(v) in arrived else xp.zeros_like(v.value) for v in inputs)


def _order(roots: list[TapeNode]) -> list[TapeNode]:
    """Every node before those that it was computed from."""
    uses: dict[int, int] = {}
    nodes: dict[int, TapeNode] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if id(node) in nodes:
            continue
        nodes[id(node)] = node
        for v in node.operands:
            if v is not None and v.node is not None:
                uses[id(v.node)] = uses.get(id(v.node), 0) + 1
                stack.append(v.node)
    ready = [node for key, node in nodes.items() if not uses.get(key)]
    out = []
    while ready:
        node = ready.pop()
        out.append(node)
        for v in node.operands:
            if v is not None and v.node is not None:
                uses[id(v.node)] -= 1
                if not uses[id(v.node)]:
                    ready.append(v.node)
    return out


def jvp(
    xp: Any, fn: Callable[..., Sequence[Array]], primals: Sequence[Array], tangents: Sequence[Array]
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """See `Transforms.jvp`. The pullback is linear in its cotangents: its own pullback, at any of them,
    is the tangent map."""
    outer = TapeBackend(xp)
    tape = TapeBackend(outer, double=True)
    inputs = [Variable(outer.lifted(x), tracked=True) for x in primals]
    results = list(fn(tape, *inputs))
    values = tuple(r.value.value for r in results)
    smooth = [k for k, r in enumerate(results) if r.tracked and dtypes.is_inexact(tape.dtype_of(r))]
    seeds = {k: Variable(xp.zeros_like(values[k]), tracked=True) for k in smooth}
    cotangents = [seeds.get(k) if k in seeds else r.value for k, r in enumerate(results)]
    input_cotangents = _walk(outer, inputs, results, cotangents)
    moved = _walk(xp, [seeds[k] for k in smooth], input_cotangents, list(tangents))
    at = dict(zip(smooth, moved, strict=True))
    return values, tuple(at[k] if k in at else xp.zeros_like(v) for k, v in enumerate(values))
