"""Simplification of the blocks of a recorded program: computations that do not change between the steps of a loop are
moved before it, equal calls are made once, and elementwise operations broadcast by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.hub.operations.elementwise import BINARY, COMPARISONS
from tensorgraft.hub.recorded.block import Block, Call, Var, leaves, mapped, variables

_BROADCASTING = {*BINARY, *COMPARISONS, "where"}


def simplified(block: Block) -> Block:
    return _Simplifier({}, {}, {}).block(block)[0]


class _Simplifier:
    """The knowledge at a point of a program: {variable: its replacement}, the calls that make variables, and the
    variables with the results of known calls."""

    def __init__(self, same: dict[Var, Var], made_by: dict[Var, Call], known: dict[Any, Any]) -> None:
        self.same, self.made_by, self.known = same, made_by, known

    def block(self, block: Block, in_loop: bool = False) -> tuple[Block, list[Call]]:
        """Return (the block, its calls that belong before the loop whose body it is)."""
        inner = _Simplifier(dict(self.same), dict(self.made_by), dict(self.known))
        calls: list[Call] = []
        before: list[Call] = []
        bound = set(variables(block.parameters))
        for call in block.calls:
            for new in inner.calls(call):
                blocks = any(type(x) is Block for x in leaves(new.args))
                if (
                    in_loop
                    and not blocks
                    and new.method != "host_call"
                    and bound.isdisjoint(variables([new.args, new.kwargs]))
                ):
                    before.append(new)
                else:
                    calls.append(new)
                    bound.update(variables(new.results))
        return Block(block.parameters, calls, inner.current(block.result), block.names), before

    def current(self, tree: Any) -> Any:
        return mapped(lambda x: self.same.get(x, x) if type(x) is Var else x, tree)

    def calls(self, call: Call) -> list[Call]:
        """Return the simplified calls for a call: calls that are moved out of its loops, and itself; none if its
        results are known."""
        before: list[Call] = []
        in_loop = call.method in ("scan", "while_loop")

        def argument(x: Any) -> Any:
            if type(x) is not Block:
                return self.same.get(x, x) if type(x) is Var else x
            block, first = self.block(x, in_loop)
            before.extend(first)
            return block

        args, kwargs = mapped(argument, (call.args, call.kwargs))
        if call.method == "dot_general":
            args, first = self.transposed(*args)
            before += first
        new = self.element(self.stacked(self.unbroadcast(Call(call.method, args, kwargs, call.results))))
        if type(call.results) is not Var:
            return [*before, new]
        if new.method == "astype" and new.args[0].dtype == call.results.dtype:
            self.same[call.results] = new.args[0]
            return before
        key = (new.method, *_key(new.args), *_key(new.kwargs))
        if key in self.known:
            self.same[call.results] = self.known[key]
            return before
        self.known[key] = call.results
        self.made_by[call.results] = new
        return [*before, new]

    def transposed(
        self, a: Var, b: Var, contract: Any, batch: Any = ((), ()), *rest: Any
    ) -> tuple[tuple[Any, ...], list[Call]]:
        """Return (the arguments of a product, calls before it): a second matrix whose rows are multiplied is
        transposed, which may be done before a loop."""
        if b.ndim != 2 or tuple(contract[1]) != (1,) or any(batch):
            return (a, b, contract, batch, *rest), []
        calls = self.calls(Call("permute_dims", (b, (1, 0)), {}, transpose := Var(b.shape[::-1], b.dtype)))
        return (a, self.same.get(transpose, transpose), (contract[0], (0,)), batch, *rest), calls

    def unbroadcast(self, call: Call) -> Call:
        if call.method not in _BROADCASTING or not call.results.shape:
            return call
        args = list(call.args)
        for k, x in enumerate(args):
            maker = self.made_by.get(x) if type(x) is Var else None
            if maker is None or maker.method != "broadcast_to":
                continue
            before, args[k] = args[k], maker.args[0]
            if np.broadcast_shapes(*[v.shape for v in args if type(v) is Var]) != call.results.shape:
                args[k] = before
        return Call(call.method, tuple(args), call.kwargs, call.results)

    def stacked(self, call: Call) -> Call:
        """Replace a concatenation of arrays with a new axis by a stack."""
        if call.method != "concat":
            return call
        arrays, axis = (*call.args, *call.kwargs.values())
        sources = []
        for x in arrays:
            maker = self.made_by.get(x)
            if maker is None or maker.method not in ("broadcast_to", "reshape") or x.shape[axis] != 1:
                return call
            source = maker.args[0]
            if source.shape != (*x.shape[:axis], *x.shape[axis + 1 :]):
                return call
            sources.append(source)
        return Call("stack", (sources,), {"axis": axis}, call.results)

    def element(self, call: Call) -> Call:
        """Replace a slice of one element, without its axis, by an element access (`native.Dialect` has an expression
        for it)."""
        if call.method != "reshape" or call.results.shape:
            return call
        maker = self.made_by.get(call.args[0])
        if maker is None or maker.method != "slice" or not maker.args[0].shape:
            return call
        return Call("element", maker.args[:2], {}, call.results)


def _key(tree: Any) -> list[Any]:
    """Return a key of the arguments of a call; variables and blocks are compared by identity."""
    if isinstance(tree, tuple | list):
        return [len(tree), *(part for x in tree for part in _key(x))]
    if isinstance(tree, dict):
        return [part for name, x in tree.items() for part in (name, *_key(x))]
    return [tree.__class__, repr(tree) if isinstance(tree, bool | int | float | complex) else tree]
