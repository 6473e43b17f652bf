"""Branches and loops of a program that is being recorded: graphs of their own, within the graph.

What a branch reads from outside, it gets as arguments of PyTorch's higher-order operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import optree
import torch
from torch import fx

from tensorgraft.backends.torch.recorder import Module, Recorder, StandIn, now
from tensorgraft.backends.torch.scope import scope

Tensor = torch.Tensor
_clone, _full = torch.ops.aten.clone.default, torch.ops.aten.full.default
_higher_order = torch.ops.higher_order


class Branch:
    """One recorded function. `carry`: stand-ins that are its first arguments."""

    def __init__(self, outer: Recorder, fn: Callable[..., Any], like: Sequence[Tensor] = ()) -> None:
        self.recorder = recorder = Recorder(outer)
        self.carry = [recorder.argument(outer.lift(x)[1]) for x in like]
        with recorder.recording():
            leaves, self.tree = optree.tree_flatten(fn(*self.carry))
            # results have memory of their own, row-major, which every step and branch must return
            self.results = [_copied(recorder, x) for x in leaves]
        self.fakes: list[Any] = [x.fake for x in self.results]

    @property
    def outside(self) -> list[Tensor]:
        return self.recorder.inputs[len(self.carry) :]

    def described(self) -> list[Any]:
        return [(x.dtype, tuple(x.shape)) for x in self.results]

    def module(self, outside: Sequence[Tensor], single: bool = False) -> Module:
        """Return the graph as a module of the carry values and of `outside`, in this order. `single`: of its one
        result, not of a tuple."""
        recorder = self.recorder
        graph = fx.Graph()
        copied_nodes: dict[fx.Node, Any] = {}
        for x in (*self.carry, *outside):
            node = graph.placeholder(f"argument_{len(graph.nodes)}")
            known = recorder.place_of(x)
            if known is not None:
                copied_nodes[known] = node
        nodes = tuple([x.node for x in self.results])
        recorder.graph.output(nodes[0] if single else nodes)
        graph.output(graph.graph_copy(recorder.graph, copied_nodes))
        return Module(recorder.root, graph)


def _copied(recorder: Recorder, x: Tensor) -> StandIn:
    return recorder.call(_clone, (x,), {"memory_format": torch.contiguous_format})


def _union(*parts: Branch) -> list[Tensor]:
    return list({id(x): x for part in parts for x in part.outside}.values())


def _emit(outer: Recorder, op: Any, like: Branch, args: tuple[Any, ...]) -> list[Any]:
    """Add a node of a higher-order operator, whose results have the metadata of a branch's."""
    node = outer.graph.call_function(op, args)
    with scope(), outer.mode:
        fresh_fakes = [torch.empty_like(fake) for fake in like.fakes]
    return list(outer.results(fresh_fakes, node))


def _nodes(outer: Recorder, tensors: Sequence[Tensor]) -> tuple[fx.Node, ...]:
    return tuple([outer.lift(x)[0] for x in tensors])


def _without_shared_memory(outer: Recorder, tensors: Sequence[Tensor]) -> list[fx.Node]:
    """Return nodes for tensors of which no two share memory (a matrix and its transpose): PyTorch's loops refuse these,
    so that the second one is copied, once, before the loop."""
    nodes, storages = [], set()
    for x in tensors:
        node, fake = outer.lift(x)
        memory = fake.untyped_storage()._cdata
        if memory in storages:
            node, _ = outer.lift(_copied(outer, x))
        storages.add(memory)
        nodes.append(node)
    return nodes


def cond(predicate: Tensor, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
    outer = now.recorder
    assert outer is not None
    true, false = Branch(outer, true_fn), Branch(outer, false_fn)
    if true.tree != false.tree or true.described() != false.described():
        raise TypeError(
            f"cond: the branches return different results: {true.tree} of {true.described()} and {false.tree} of"
            f" {false.described()}"
        )
    outside = _union(true, false)
    modules = (outer.attach(true.module(outside)), outer.attach(false.module(outside)))
    args = (outer.lift(predicate)[0], *modules, _nodes(outer, outside))
    return optree.tree_unflatten(true.tree, _emit(outer, _higher_order.cond, true, args))


def while_loop(condition: Callable[[Any], Tensor], body: Callable[[Any], Any], init: Any) -> Any:
    outer = now.recorder
    assert outer is not None
    leaves, tree = optree.tree_flatten(init)
    first = [_copied(outer, x) for x in leaves]
    goes_on = Branch(outer, lambda *state: condition(optree.tree_unflatten(tree, state)), first)
    step = Branch(outer, lambda *state: body(optree.tree_unflatten(tree, state)), first)
    _check("while_loop", tree, step.tree, first, step.results)
    outside = _union(goes_on, step)
    modules = (outer.attach(goes_on.module(outside, single=True)), outer.attach(step.module(outside)))
    args = (*modules, _nodes(outer, first), tuple(_without_shared_memory(outer, outside)))
    return optree.tree_unflatten(tree, _emit(outer, _higher_order.while_loop, step, args))


def _check(name: str, tree: Any, new_tree: Any, first: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    described = [[(x.dtype, tuple(x.shape)) for x in leaves] for leaves in (first, results[: len(first)])]
    if tree != new_tree or described[0] != described[1]:
        raise TypeError(
            f"{name}: the body returns {new_tree} of {described[1]}, but the loop started with {tree} of {described[0]}"
        )


def scan(body: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, reverse: bool) -> tuple[Any, Any]:
    outer = now.recorder
    assert outer is not None
    leaves, tree = optree.tree_flatten(init)
    x_leaves, x_tree = optree.tree_flatten(xs)
    first = [_copied(outer, x) for x in leaves]
    with scope():
        rows = [torch.flip(x, (0,)) if reverse else x for x in x_leaves]
        first_rows = [x[0] for x in rows]
    # Inductor fails on a loop with a single result, which may be this carry, or y of a loop without one
    counter = [outer.call(_full, ((), 0), {"dtype": torch.int32, "device": rows[0].device})] if len(first) < 2 else []
    carry_and_step, k = [*first, *counter], len(first) + len(counter)
    trees: list[Any] = []

    def step(*args: Tensor) -> list[Tensor]:
        carry, y = body(optree.tree_unflatten(tree, args[: len(first)]), optree.tree_unflatten(x_tree, args[k:]))
        carry_leaves, new_tree = optree.tree_flatten(carry)
        y_leaves, y_tree = optree.tree_flatten(y)
        trees[:] = [new_tree, y_tree]
        return [*carry_leaves, *args[len(first) : k], *y_leaves]

    part = Branch(outer, step, [*carry_and_step, *[_copied(outer, x) for x in first_rows]])
    _check("scan", tree, trees[0], first, part.results)
    outside = _union(part)
    inputs = _without_shared_memory(outer, [*carry_and_step, *rows, *outside])
    n = k + len(rows)
    args = (outer.attach(part.module(outside)), inputs[:k], inputs[k:n], tuple(inputs[n:]))
    node = outer.graph.call_function(_higher_order.scan, args)
    length = x_leaves[0].shape[0]
    with scope(), outer.mode:
        carry = [torch.empty_like(fake) for fake in part.fakes[:k]]
        ys = [fake.new_empty((length, *fake.shape)) for fake in part.fakes[k:]]
    results = outer.results([*carry, *ys], node)
    with scope():
        stacked = [torch.flip(y, (0,)) if reverse else y for y in results[k:]]
    return optree.tree_unflatten(tree, results[: len(first)]), optree.tree_unflatten(trees[1], stacked)
