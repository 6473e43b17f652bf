"""`ProgramGraph`: a traced program as one list of primitive operations of the hub, in which parameters stand apart.

Layers are written as the operations that they are made of, loops are unrolled, constants are folded. A node is a
*constant*, *static* (computed from parameters alone) or *dynamic* (computed from the program's inputs). Additions and
multiplications of static arrays are collected: `Affine` nodes are `core * scale + shift`, with everything static in
`scale` and `shift`, and are moved behind operations that only move elements and behind sums. Two programs that add a
bias before and after they cut a product into heads have the same nodes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tensorgraft.codegen.simplification.expanding import expand
from tensorgraft.codegen.trace import Frame, SourceLine, SourceTrace
from tensorgraft.codegen.words import WORDS
from tensorgraft.hub.operations import operations
from tensorgraft.hub.recorded.block import Block, Var, leaves, mapped, variables
from tensorgraft.porting.masks import is_mask, known_value
from tensorgraft.porting.nodes import MOVEMENT, POINTWISE, Lazy, ValueNode, evaluate, has_rows, nodes_of, widened

# What is written as the operations that it is made of: where one program has a layer, the other may have its parts.
EXPANDED = frozenset({
    "attention", "attention_weights", "avg_pool", "avg_pool_channels_last", "batch_norm", "batch_norm_training",
    "conv", "conv_channels_last", "conv_transpose", "copy", "cross_entropy", "dot_product_attention", "einsum",
    "embedding", "expand_dims", "flatten", "getitem", "group_norm", "gru", "index", "layer_norm", "linear", "lstm",
    "map", "matmul", "matrix_transpose", "max_pool", "max_pool_channels_last", "moveaxis", "rms_norm", "rnn", "silu",
    "split", "squeeze", "stack", "standardize", "stop_gradient", "swapaxes", "take", "take_along_axis", "take_slice",
    "tile", "transposed_convolution", "unstack", "var",
})  # fmt: skip
MOST_STEPS = 4096  # of a loop that is unrolled


class ProgramGraph:
    """The nodes of a traced program, in the order in which it computes them."""

    def __init__(self, trace: SourceTrace, arguments: Sequence[np.ndarray]) -> None:
        """`arguments`: the arrays of the example, in the order of `trace.arguments`. Changes `trace`."""
        self.nodes: list[ValueNode] = []
        self.pieces: dict[ValueNode, list[np.ndarray]] = {}  # channels of products, as they are cut
        self.name = trace.name
        self.known: dict[ValueNode, np.ndarray | None] = {}  # computed from inputs alone
        self.place = ""
        self._callers: tuple[str, ...] = ()
        self._env: dict[Var, Any] = {}
        self._constants: dict[int, ValueNode] = {}
        kept = {name: name for name in {*operations(), *WORDS} - EXPANDED}
        expand(trace, SimpleNamespace(name="graph", rules=kept))  # type: ignore[arg-type]
        for var, x in zip(variables([t for _, t in trace.arguments]), arguments, strict=True):
            value = widened(np.asarray(x))
            node = self._new("input", (), {}, value.shape, value.dtype, dynamic=True)
            node.value = value
            self._env[var] = Lazy(node)
        if trace.key is not None:
            self._env[trace.key] = self.constant(np.array([0, 1], np.uint32))
        self.parameters: dict[str, ValueNode] = {}
        for name, var in {**trace.parameters, **trace.buffers}.items():
            self._env[var] = self._parameter(name, var, trace)
        self._run_frame(trace.root)
        self.result = mapped(lambda x: self.node(self._operand(x)) if type(x) is Var else x, trace.result)
        # statistics of the inputs, which the program moves in training, are results, too; counts of calls are not
        written = [self.node(self._operand(v)) for v in trace.written.values() if np.dtype(v.dtype).kind == "f"]
        if statistics := [node for node in written if node.dynamic]:
            self.result = [self.result, statistics]
        self.outputs = list(dict.fromkeys(nodes_of(self.result)))
        self.prune()

    # ---- construction ----------------------------------------------------------------------------------------------

    def _new(self, op: str, args: Any, kwargs: Any, shape: Any, dtype: Any, dynamic: bool = False) -> ValueNode:
        node = ValueNode(op, args, kwargs, tuple(shape), np.dtype(dtype), len(self.nodes), dynamic=dynamic)
        node.place = self.place
        if not dynamic:
            node.parameters = frozenset().union(*(n.parameters for n in node.inputs()))
        self.nodes.append(node)
        return node

    def constant(self, value: Any) -> ValueNode:
        value = widened(np.asarray(value))
        node = self._new("constant", (), {}, value.shape, value.dtype)
        node.value = value
        return node

    def folded(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The constants that an operation of constants gives, which know how they were computed."""
        values = evaluate(op, *mapped(_value, (args, kwargs)))
        nodes = mapped(self.constant, values) if isinstance(values, tuple | list) else self.constant(values)
        for k, node in enumerate(nodes_of([nodes])):
            node.folded, node.output = (op, args, kwargs), k
        return nodes

    def _parameter(self, name: str, var: Var, trace: SourceTrace) -> Any:
        if name in trace.constants or name not in trace.weights:
            return self.constant(trace.constants.get(name, var.value))
        dtype = widened(np.dtype(var.dtype))
        if not np.issubdtype(dtype, np.inexact) and dtype.kind in "biu":
            return self.constant(trace.weights[name])
        node = self._new("parameter", (), {}, var.shape, dtype)
        node.name, node.parameters = name, frozenset({name})
        self.parameters[name] = node
        return node

    def _operand(self, x: Any) -> Any:
        """The operand for an argument of a step: a `Lazy`, a static or constant node, or a static value."""
        if type(x) is Var:
            if x not in self._env:
                self._env[x] = self._constants.setdefault(id(x), self.constant(x.value))
            return self._env[x]
        return widened(x)

    def node(self, x: Any) -> Any:
        """The node of an operand, with its scale and shift applied."""
        if type(x) is not Lazy:
            return x
        if x.node is None:
            if x.scale is None and x.shift is None:
                x.node = x.core
            else:
                args = (x.core, x.scale, x.shift)
                shape = np.broadcast_shapes(*(n.shape for n in args if n is not None))
                x.node = self._new("affine", args, {}, shape, x.core.dtype, dynamic=True)
                x.node.place = x.place or self.place
        return x.node

    def _run_frame(self, frame: Frame, callers: tuple[str, ...] = ()) -> None:
        """Run a frame's steps; the places of modules and functions around them are callers."""
        for call in frame.calls:
            if isinstance(call, Frame):
                self._run_frame(call, (call.place, *callers) if call.place not in ("", *callers[:1]) else callers)
            else:
                self._callers = callers
                self._run([call])

    def _run(self, calls: Any) -> None:
        for call in calls:
            place = getattr(call, "place", "")
            if place and not isinstance(place, SourceLine):
                place = SourceLine.of((place, *(c for c in self._callers if c != place)))
            self.place = place or self.place
            args, kwargs = mapped(self._operand, call.args), mapped(self._operand, call.kwargs)
            out = self.apply(call.method, args, kwargs, call.results)
            self._bind(call.results, out)

    def _bind(self, results: Any, values: Any) -> None:
        if type(results) is Var:
            self._env[results] = values
        elif isinstance(results, tuple | list):
            for r, v in zip(results, values, strict=True):
                self._bind(r, v)

    def apply(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any) -> Any:
        if op in _CONTROL:
            return _CONTROL[op](self, *args, **kwargs)
        operands = [x for x in leaves([args, kwargs]) if type(x) in (Lazy, ValueNode)]
        if op == "add" and type(results) is Var:
            for x, zeros in (args, args[::-1]):  # a mask that masks nothing
                if type(zeros) is ValueNode and zeros.size > 1 and _is_zero(zeros) and type(x) in (Lazy, ValueNode):
                    return self.apply("broadcast_to", (x, results.shape), {}, results)
        if all(type(x) is ValueNode and x.value is not None and not x.dynamic for x in operands):
            return self.folded(op, args, kwargs)
        if type(results) is Var and op in _RULES:
            out = _RULES[op](self, results, *args, **kwargs)
            if out is not None:
                return out
        return self.plain(op, args, kwargs, results)

    def plain(self, op: str, args: Any, kwargs: Any, results: Any) -> Any:
        """An operation as it is, of operands whose factors have been applied."""
        args, kwargs = mapped(self.node, args), mapped(self.node, kwargs)
        dynamic = any(n.dynamic for n in nodes_of([args, kwargs]))
        outputs = list(variables(results))
        created = []
        for k, var in enumerate(outputs):
            node = self._new(op, args, kwargs, var.shape, widened(np.dtype(var.dtype)), dynamic)
            node.output = k if type(results) is not Var else 0
            created.append(Lazy(node) if dynamic else node)
        if type(results) is Var:
            return created[0]
        found = iter(created)
        return mapped(lambda _: next(found), results)

    def moved(self, op: str, x: ValueNode, *args: Any, shape: Sequence[int]) -> ValueNode:
        """A node of an operation that moves elements."""
        if x.value is not None and not x.dynamic:
            return self.folded(op, (x, *args), {})
        return self._new(op, (x, *args), {}, shape, x.dtype, x.dynamic)

    def static(self, op: str, *args: Any) -> ValueNode:
        """A node computed from static and constant operands, which broadcast."""
        if all(type(x) is not ValueNode or x.value is not None for x in args):
            return self.folded(op, args, {})
        operands = [x for x in args if type(x) is ValueNode]
        shape = np.broadcast_shapes(*(x.shape for x in operands))
        return self._new(op, args, {}, shape, operands[0].dtype)

    def block(self, block: Block, *arguments: Any) -> Any:
        """Run a body of a loop or branch."""
        for parameters, values in zip(block.parameters, arguments, strict=True):
            self._bind(parameters, values)
        self._run(block.calls)
        return mapped(self._operand, block.result)

    def prune(self) -> None:
        """Leave out what no result needs, number the nodes, and note their uses."""
        used: set[ValueNode] = set(self.outputs)
        for node in reversed(self.nodes):
            if node in used:
                used.update(node.inputs())
        self.nodes = [n for n in self.nodes if n in used or n.op in ("input", "parameter")]
        for node in self.nodes:
            for x in dict.fromkeys(node.inputs()):
                x.uses.append(node)


def _value(x: Any) -> Any:
    return x.value if type(x) is ValueNode else x


# ---- control flow, unrolled ------------------------------------------------------------------------------------------


def _scan(graph: ProgramGraph, body: Block, init: Any, xs: Any, length: int, reverse: bool = False) -> Any:
    if length > MOST_STEPS:
        raise NotImplementedError(f"a loop of {length} steps: take a shorter example (at most {MOST_STEPS} steps)")
    carry, rows = init, []
    for i in reversed(range(length)) if reverse else range(length):
        x = mapped(functools.partial(_row, graph, i), xs)
        carry, y = graph.block(body, carry, x)
        rows.append(y)
    rows = rows[::-1] if reverse else rows
    return carry, _stacked(graph, rows)


def _row(graph: ProgramGraph, i: int, x: Any) -> Any:
    """The i-th row of an array; of a product, or a sum of products, that of the i-th rows of the operands."""
    node = x.core if type(x) is Lazy else x
    shape = node.shape if type(x) is not Lazy or x.node is None else x.node.shape
    if type(x) is Lazy and x.node is None and _has_rows(node, x):
        core = _row_of_product(graph, i, node)
        scale, shift = (None if n is None else graph.node(_row(graph, i, _wide(graph, n, node))) for n in _parts(x)[1:])
        return Lazy(core.core, scale, shift, place=x.place)
    if type(x) is Lazy and node.op == "concat" and not _pending(x):
        axis = node.kwargs.get("axis", node.args[-1]) % len(shape)
        if axis:
            rows = [_row(graph, i, Lazy(part) if part.dynamic else part) for part in node.args[0]]
            return graph.apply("concat", (rows, axis - 1), {}, Var(shape[1:], node.dtype))
    start, stop = (i,) + (0,) * (len(shape) - 1), (i + 1, *shape[1:])
    cut = graph.apply("slice", (x, start, stop, (1,) * len(shape)), {}, Var((1, *shape[1:]), node.dtype))
    return graph.apply("reshape", (cut, shape[1:]), {}, Var(shape[1:], node.dtype))


def _row_of_product(graph: ProgramGraph, i: int, node: ValueNode) -> Lazy:
    result = Var(node.shape[1:], node.dtype)
    if node.op == "add":
        return graph.apply("add", tuple(_row_of_product(graph, i, n) for n in node.args), {}, result)
    operand, weight, (ca, cb), batch = node.args
    row = _row(graph, i, Lazy(operand) if operand.dynamic else operand)
    return graph.apply("dot_general", (row, weight, (tuple(a - 1 for a in ca), cb), batch), {}, result)


def _has_rows(node: ValueNode, x: Lazy) -> bool:
    factors = [n for n in (x.scale, x.shift) if n is not None]
    return has_rows(node) and all(np.broadcast_shapes(n.shape, node.shape) == node.shape for n in factors)


def _wide(graph: ProgramGraph, x: ValueNode, like: ValueNode) -> ValueNode:
    return x if x.shape == like.shape else graph.moved("broadcast_to", x, like.shape, shape=like.shape)


def _stacked(graph: ProgramGraph, rows: list[Any]) -> Any:
    first = rows[0] if rows else ()
    if isinstance(first, tuple | list):
        return type(first)([_stacked(graph, [r[k] for r in rows]) for k in range(len(first))])
    nodes = [graph.node(r) for r in rows]
    shape = nodes[0].shape
    parts = [
        graph.apply("reshape", (n if not n.dynamic else Lazy(n), (1, *shape)), {}, Var((1, *shape), n.dtype))
        for n in nodes
    ]
    return graph.apply("concat", (parts, 0), {}, Var((len(parts), *shape), nodes[0].dtype))


def _while_loop(graph: ProgramGraph, condition: Block, body: Block, init: Any) -> Any:
    carry = init
    for _ in range(MOST_STEPS):
        test = graph.block(condition, carry)
        if type(test) is not ValueNode or test.value is None:
            raise NotImplementedError("a loop whose length depends on values cannot be compared step by step")
        if not bool(test.value):
            return carry
        carry = graph.block(body, carry)
    raise NotImplementedError(f"a loop of more than {MOST_STEPS} steps: take a shorter example")


def _cond(graph: ProgramGraph, predicate: Any, true: Block, false: Block, *operands: Any) -> Any:
    if type(predicate) is not ValueNode or predicate.value is None:
        raise NotImplementedError("a branch that depends on values cannot be compared")
    return graph.block(true if bool(predicate.value) else false, *operands)


_CONTROL: dict[str, Callable[..., Any]] = {"scan": _scan, "while_loop": _while_loop, "cond": _cond}


# ---- static factors, collected ---------------------------------------------------------------------------------------


def _movement(op: str) -> Callable[..., Any]:
    def rule(graph: ProgramGraph, result: Var, x: Any, *args: Any) -> Any:
        if op == "broadcast_to" and (x.node or x.core if type(x) is Lazy else x).shape == result.shape:
            return x
        if type(x) is not Lazy:
            return graph.moved(op, x, *args, shape=result.shape)
        if op == "slice" and _is_gate(x, args):
            inner = x.core.args[0]  # a function of channels is one of each piece of them
            gates = Lazy(*inner.args) if inner.op == "affine" else Lazy(inner)
            piece = graph.apply("slice", (gates, *args), {}, Var(result.shape, inner.dtype))
            return graph.apply(x.core.op, (piece, *x.core.args[1:]), x.core.kwargs, result)
        if x.node is not None:
            return Lazy(graph.moved(op, x.node, *args, shape=result.shape))
        shape = np.broadcast_shapes(*(n.shape for n in (x.core, x.scale, x.shift) if n is not None))

        def part(n: ValueNode | None) -> ValueNode | None:
            if n is None:
                return None
            wide = n if n.shape == shape else graph.moved("broadcast_to", n, shape, shape=shape)
            return graph.moved(op, wide, *args, shape=result.shape)

        return Lazy(part(x.core), part(x.scale), part(x.shift), place=x.place)  # type: ignore[arg-type]

    return rule


def _is_gate(x: Lazy, cut: Sequence[Any]) -> bool:
    """A function of a product, of which some channels, the last axis, are cut out."""
    if _pending(x) or x.core.op not in POINTWISE or not x.core.dynamic or len(list(x.core.inputs())) != 1:
        return False
    shape = x.core.shape
    inner = x.core.args[0]
    changed = [a for a, n in enumerate(shape) if (cut[0][a], cut[1][a]) != (0, n)]
    return changed == [len(shape) - 1] and type(inner) is ValueNode and inner.shape == shape and inner.op != "input"


def _is_static(x: Any) -> bool:
    """It holds parameters, or an array of constants."""
    return type(x) is ValueNode and not x.dynamic and bool(x.parameters)


def _pending(x: Any) -> bool:
    return type(x) is Lazy and x.node is None and (x.scale is not None or x.shift is not None)


def _parts(x: Lazy) -> tuple[ValueNode, ValueNode | None, ValueNode | None]:
    return (x.node, None, None) if x.node is not None else (x.core, x.scale, x.shift)


def _plus(graph: ProgramGraph, a: ValueNode | None, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return graph.static("add", a, b)


def _add(graph: ProgramGraph, result: Var, a: Any, b: Any) -> Any:
    if type(b) is Lazy and type(a) is not Lazy:
        a, b = b, a
    if type(a) is not Lazy:
        return None
    if type(b) is Lazy:
        if not (_pending(a) or _pending(b)):
            return None
        (x, s, t), (y, u, v) = _parts(a), _parts(b)
        if s is not u:
            return None
        total = graph.plain("add", (Lazy(x), Lazy(y)), {}, Var(np.broadcast_shapes(x.shape, y.shape), result.dtype))
        return Lazy(total.core, s, _plus(graph, t, v), place=graph.place)
    if not _is_static(b):
        return None
    core, scale, shift = _parts(a)
    if scale is None and shift is None:
        value = known_value(core, graph.known)
        if is_mask(value):
            return graph.static("add", b, graph.constant(value))
        if core.op == "add":  # of a value that is masked already
            for x, y in (core.args[:2], core.args[1::-1]):
                value = known_value(y, graph.known) if type(y) is ValueNode else None
                if type(x) is ValueNode and x.dynamic and x.shape == core.shape and is_mask(value):
                    return Lazy(x, None, graph.static("add", b, graph.constant(value)), place=graph.place)
    return Lazy(core, scale, _plus(graph, shift, b), place=graph.place)


def _where(graph: ProgramGraph, result: Var, condition: Any, a: Any, b: Any) -> Any:
    """A selection among parameters and constants by a mask that inputs alone decide."""
    if type(condition) is not Lazy or Lazy in (type(a), type(b)) or not (_is_static(a) or _is_static(b)):
        return None
    value = known_value(graph.node(condition), graph.known)
    if value is None:
        return None
    return graph._new("where", (graph.constant(value), a, b), {}, result.shape, widened(np.dtype(result.dtype)))


def _subtract(graph: ProgramGraph, result: Var, a: Any, b: Any) -> Any:
    if type(a) is Lazy and _is_static(b):
        return _add(graph, result, a, graph.static("negative", b))
    return None


def _multiply(graph: ProgramGraph, result: Var, a: Any, b: Any) -> Any:
    if type(b) is Lazy and type(a) is not Lazy:
        a, b = b, a
    if type(a) is not Lazy:
        return None
    if type(b) is ValueNode and b.size > 1 and _is_zero(b):  # a gate of the first state of a recurrent layer
        return graph.constant(np.zeros(result.shape, widened(np.dtype(result.dtype))))
    if type(b) is Lazy:
        for x, y in ((a, b), (b, a)):
            if _pending(y) and y.shift is None and not _pending(x):
                product = graph.plain("multiply", (x, Lazy(y.core)), {}, _shaped(graph.node(x), y.core))
                return Lazy(product.core, y.scale, place=graph.place)
        return None
    if not _is_static(b):
        return None
    core, scale, shift = _parts(a)
    times = b if scale is None else graph.static("multiply", scale, b)
    return Lazy(core, times, None if shift is None else graph.static("multiply", shift, b), place=graph.place)


def _shaped(a: ValueNode, b: ValueNode) -> Var:
    return Var(np.broadcast_shapes(a.shape, b.shape), a.dtype)


def _divide(graph: ProgramGraph, result: Var, a: Any, b: Any) -> Any:
    if type(a) is Lazy and _is_static(b):
        return _multiply(graph, result, a, graph.static("reciprocal", b))
    return None


def _dot_general(
    graph: ProgramGraph, result: Var, a: Any, b: Any, contract: Any, batch: Any = ((), ()), dtype: Any = None
) -> Any:
    """A product with a static operand has it second; a product of a concatenation is a sum of products."""
    if _is_static(a) and type(b) is Lazy:
        k, nb = len(batch[0]), len(graph.node(b).shape) - len(batch[1]) - len(contract[1])
        na = len(a.shape) - len(batch[0]) - len(contract[0])
        order = (*range(k), *range(k + nb, k + nb + na), *range(k, k + nb))
        swapped = Var(tuple(result.shape[order.index(i)] for i in range(len(order))), result.dtype)
        y = graph.apply("dot_general", (b, a, contract[::-1], batch[::-1]), {}, swapped)
        return graph.apply("permute_dims", (y, order), {}, result)
    if type(a) is not Lazy or not _is_static(b):
        return None
    x = graph.node(a)
    if _is_zero(x):
        return graph.constant(np.zeros(result.shape, widened(np.dtype(result.dtype))))
    (ca, cb), at = contract, 0
    parts, axis = _parted(graph, x)
    if len(parts) > 1 and list(ca) == [axis]:
        total: Any = None
        for part in parts:
            n = part.shape[ca[0]]
            start, stop = [0] * len(b.shape), list(b.shape)
            start[cb[0]], stop[cb[0]] = at, at + n
            shape = tuple(n if i == cb[0] else s for i, s in enumerate(b.shape))
            rows = graph.moved("slice", b, tuple(start), tuple(stop), (1,) * len(shape), shape=shape)
            operand = Lazy(part) if part.dynamic else part
            y = graph.apply("dot_general", (operand, rows, contract, batch), {}, result)
            total = y if total is None else graph.apply("add", (total, y), {}, result)
            at += n
        return total
    return graph.plain("dot_general", (a, b, contract, batch), {}, result)


def _parted(graph: ProgramGraph, x: ValueNode) -> tuple[list[ValueNode], int]:
    """The arrays that one is a concatenation of, and the axis, also where its axes were ordered or cut afterwards."""
    if x.op == "concat":
        return list(x.args[0]), x.kwargs.get("axis", x.args[-1]) % len(x.shape)
    if x.op not in ("permute_dims", "slice", "reshape", "flip") or not x.dynamic:
        return [x], 0
    inner = x.args[0]
    parts, axis = _parted(graph, inner)
    if len(parts) == 1:
        return [x], 0
    if x.op == "permute_dims":
        order = x.args[1]
        moved = [graph.moved("permute_dims", p, order, shape=[p.shape[a] for a in order]) for p in parts]
        return moved, list(order).index(axis)
    if x.op == "flip":
        flipped = [a % len(x.shape) for a in np.atleast_1d(x.args[1]).tolist()]
        moved = [graph.moved("flip", p, x.args[1], shape=p.shape) for p in parts]
        return (moved[::-1] if axis in flipped else moved), axis
    if x.op == "slice":
        start, stop, step = x.args[1:4]
        if (start[axis], stop[axis], step[axis]) != (0, inner.shape[axis], 1):
            return [x], 0
        moved = []
        for p in parts:
            end = tuple(p.shape[a] if a == axis else n for a, n in enumerate(stop))
            shape = [p.shape[a] if a == axis else n for a, n in enumerate(x.shape)]
            moved.append(graph.moved("slice", p, start, end, step, shape=shape))
        return moved, axis
    wide = [n for n in inner.shape if n > 1]
    if wide != [n for n in x.shape if n > 1] or inner.shape[axis] <= 1:
        return [x], 0
    place = [a for a, n in enumerate(x.shape) if n > 1][[a for a, n in enumerate(inner.shape) if n > 1].index(axis)]
    shapes = [tuple(p.shape[axis] if a == place else n for a, n in enumerate(x.shape)) for p in parts]
    return [graph.moved("reshape", p, s, shape=s) for p, s in zip(parts, shapes, strict=True)], place


def _is_zero(x: ValueNode) -> bool:
    return x.value is not None and not x.dynamic and not np.any(x.value)


def _zero_dot(graph: ProgramGraph, result: Var, a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
    """The product of zeros with anything is zeros: the first state of a recurrent layer."""
    for x in (a, b):
        if type(x) is ValueNode and _is_zero(x):
            return graph.constant(np.zeros(result.shape, widened(np.dtype(result.dtype))))
    return _dot_general(graph, result, a, b, *args, **kwargs)


def _convolution(
    graph: ProgramGraph, result: Var, x: Any, w: Any, strides: Any, padding: Any, *rest: Any, **kwargs: Any
) -> Any:
    """Zeros that are added to an image before are padding of the convolution."""
    node = graph.node(x)
    order = None
    if node.op == "permute_dims" and node.dynamic:
        order, node = node.args[1], node.args[0]
    if node.op != "pad" or not node.dynamic or not _pads_with_zeros(node):
        return None
    config = [node.args[2][a] for a in order] if order is not None else list(node.args[2])
    if any(inner or low < 0 or high < 0 for low, high, inner in config) or any(c != (0, 0, 0) for c in config[:2]):
        return None
    image = node.args[0]
    if order is not None:
        image = graph.moved("permute_dims", image, order, shape=[image.shape[a] for a in order])
    wide = tuple((low + a, high + b) for (low, high), (a, b, _) in zip(padding, config[2:], strict=True))
    return graph.plain("convolution", (Lazy(image), w, strides, wide, *rest), kwargs, result)


def _pads_with_zeros(node: ValueNode) -> bool:
    value = _value(node.args[1])
    return bool(np.ndim(value) == 0 and value == 0)


def _dynamic_slice(graph: ProgramGraph, result: Var, x: Any, start: Any, sizes: Any) -> Any:
    """At a place that is known, a slice: the step of a loop that was unrolled."""
    if any(_value(i) is None or (type(i) is not ValueNode and type(i) is Lazy) for i in start):
        return None
    shape = (graph.node(x) if type(x) is Lazy else x).shape
    at = [min(max(int(_value(i)), 0), n - size) for i, n, size in zip(start, shape, sizes, strict=True)]
    stop = tuple(a + n for a, n in zip(at, sizes, strict=True))
    return graph.apply("slice", (x, tuple(at), stop, (1,) * len(at)), {}, result)


def _dynamic_update_slice(graph: ProgramGraph, result: Var, x: Any, update: Any, start: Any) -> Any:
    """At a place that is known, what is before, the update, and what is after, along the one axis that it cuts."""
    if any(type(i) is Lazy or _value(i) is None for i in start):
        return None
    whole, part = (graph.node(v) if type(v) is Lazy else v for v in (x, update))
    axes = [a for a, n in enumerate(whole.shape) if part.shape[a] != n]
    if len(axes) != 1:
        return update if not axes else None
    axis, n = axes[0], part.shape[axes[0]]
    at = min(max(int(_value(start[axis])), 0), whole.shape[axis] - n)
    parts = [_rows(graph, x, whole, axis, 0, at), update, _rows(graph, x, whole, axis, at + n, whole.shape[axis])]
    return graph.apply("concat", ([p for p in parts if p is not None], axis), {}, result)


def _rows(graph: ProgramGraph, x: Any, node: ValueNode, axis: int, start: int, stop: int) -> Any:
    if start == stop:
        return None
    low, high = ([0] * len(node.shape), list(node.shape))
    low[axis], high[axis] = start, stop
    shape = tuple(b - a for a, b in zip(low, high, strict=True))
    return graph.apply("slice", (x, tuple(low), tuple(high), (1,) * len(low)), {}, Var(shape, node.dtype))


def _astype(graph: ProgramGraph, result: Var, x: Any, dtype: Any) -> Any:
    """float32 and float64 are one dtype here."""
    core = x.core if type(x) is Lazy else x
    return x if type(core) is ValueNode and core.dtype == dtype else None


_RULES: dict[str, Callable[..., Any]] = {
    **{op: _movement(op) for op in MOVEMENT},
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": _divide,
    "convolution": _convolution,
    "dot_general": _zero_dot,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "astype": _astype,
    "where": _where,
}
