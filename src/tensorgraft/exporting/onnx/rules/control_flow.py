"""Loops and branches: `If`, `Loop` and `Scan`, whose bodies use arrays from around them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tensorgraft.exporting.onnx.graph import Name, element_type
from tensorgraft.exporting.onnx.rule import GraphBuilder, rule
from tensorgraft.hub.recorded.block import Block, Var, variables


def _tree(template: Any, names: list[Name]) -> Any:
    """Return names in the structure of the results."""
    if isinstance(template, Var):
        return names.pop(0)
    return tuple(_tree(t, names) for t in template)


@rule("cond")
def cond(g: GraphBuilder, predicate: Any, true_fn: Block, false_fn: Block, operands: Any = ()) -> Any:
    bodies = []
    for block, name in ((true_fn, "then"), (false_fn, "else")):
        bodies.append(_branch(g, block, name, list(variables([operands]))))
    outputs = list(variables(g.results))
    names_of_results = g.op("If", predicate, outputs=len(outputs), then_branch=bodies[0], else_branch=bodies[1])
    return _tree(g.results, [names_of_results] if len(outputs) == 1 else list(names_of_results))


def _branch(g: GraphBuilder, block: Block, name: str, operands: list[Var]) -> Any:
    names = [g(x) for x in operands]
    with g.scope() as nodes:
        for v, n in zip(variables(block.parameters), names, strict=True):
            g.names[v] = n
        g.run(block.calls)
        results = [*variables(block.result)]
        infos = [(str(g.op("Identity", v)), v) for v in results]
        return helper.make_graph(nodes, name, [], [_info(n, v) for n, v in infos])


def _info(name: Name, v: Any) -> Any:
    return helper.make_tensor_value_info(name, element_type(v.dtype), [None] * len(v.shape))


@rule("while_loop")
def while_loop(g: GraphBuilder, condition: Block, body: Block, init: Any) -> Any:
    """A `Loop` whose body computes the condition of the next step."""
    carried = list(variables([init]))
    first = _inline(g, condition, carried)
    with g.scope() as nodes:
        step, going = g.fresh("step"), g.fresh("going")
        parameters = list(variables(body.parameters))
        arguments = _declared(g, parameters)
        g.run(body.calls)
        results = [*variables(body.result)]
        after = [str(g.op("Identity", v)) for v in results]
        for v, n in zip(variables(condition.parameters), after, strict=True):
            g.names[v] = n
        g.run(condition.calls)
        (test,) = variables(condition.result)
        again = str(g.op("Identity", test))
        inputs = [helper.make_tensor_value_info(step, element_type(np.int64), []),
                  helper.make_tensor_value_info(going, element_type(np.bool_), []), *arguments]  # fmt: skip
        outputs = [_info(again, test), *(_info(n, v) for n, v in zip(after, results, strict=True))]
        graph = helper.make_graph(nodes, "body", inputs, outputs)
    names_of_results = g.op("Loop", None, first, *carried, outputs=len(carried), body=graph)
    return _tree(g.results, [names_of_results] if len(carried) == 1 else list(names_of_results))


def _declared(g: GraphBuilder, parameters: list[Var]) -> list[Any]:
    infos = []
    for v in parameters:
        g.names[v] = g.fresh("carried")
        infos.append(_info(g.names[v], v))
    return infos


def _inline(g: GraphBuilder, block: Block, operands: list[Var]) -> Name:
    """Write a block in the place of a call; its one result."""
    for v, x in zip(variables(block.parameters), operands, strict=True):
        g.names[v] = g(x)
    g.run(block.calls)
    (result,) = variables(block.result)
    return g(result)


@rule("scan")
def scan(g: GraphBuilder, body: Block, init: Any, xs: Any, length: Any, reverse: bool = False) -> Any:
    carried, rows = list(variables([init])), list(variables([xs]))
    names = [g(x) for x in (*carried, *rows)]
    carry_result, row_result = body.result
    with g.scope() as nodes:
        parameters = list(variables(body.parameters))
        arguments = _declared(g, parameters)
        extra = []
        if not rows:  # a Scan has one row at least
            counter = g.fresh("row")
            extra = [helper.make_tensor_value_info(counter, element_type(np.int64), [])]
        g.run(body.calls)
        results = [*variables([carry_result]), *variables([row_result])]
        infos = [_info(str(g.op("Identity", v)), v) for v in results]
        graph = helper.make_graph(nodes, "body", [*arguments, *extra], infos)
    if not rows:
        names.append(g.op("Range", g(0, np.int64), g(length, np.int64), g(1, np.int64)))
    count, stacked = len(names) - len(carried), len(results) - len(carried)
    names_of_results = g.op("Scan", *names, outputs=len(results), body=graph, num_scan_inputs=count,
                scan_input_directions=[int(reverse)] * count,
                scan_output_directions=[int(reverse)] * stacked if stacked else None)  # fmt: skip
    return _tree(g.results, [names_of_results] if len(results) == 1 else list(names_of_results))
