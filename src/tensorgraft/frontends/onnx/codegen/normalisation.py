"""Group normalisations of a model, which exporters of PyTorch write as an instance normalisation of groups between
reshapes, a product and a sum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tensorgraft.frontends.onnx.codegen.scopes import module_path
from tensorgraft.frontends.onnx.graph import OnnxModel, OnnxNode
from tensorgraft.frontends.onnx.rule import rule

DOMAIN = "tensorgraft"


def with_group_norms(model: OnnxModel) -> OnnxModel:
    """Return the model with a `GroupNorm` in the place of each of them that has its scale and bias alone."""
    graph = model.graph
    initializers = dict(graph.initializers)
    producers = {name: node for node in graph.nodes for name in node.outputs}
    users: dict[str, list[OnnxNode]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            users.setdefault(name, []).append(node)
    replaced: dict[OnnxNode, OnnxNode] = {}
    for node in graph.nodes:
        found = _group_norm(node, producers, users, initializers) if node.op == "InstanceNormalization" else None
        if found is None:
            continue
        x, moved, weight, bias = found
        path = module_path(node)
        owner = path[-1][0] if path else node.outputs[0]
        names = f"{owner}.weight", f"{owner}.bias"
        groups = len(_value(node.inputs[1], producers, initializers))
        for name, value in zip(names, (weight, bias), strict=True):
            initializers[name] = np.ascontiguousarray(np.reshape(value, -1))
        attributes = {"groups": groups, "epsilon": node.attributes.get("epsilon", 1e-5)}
        replaced[moved] = replace(moved, op="GroupNorm", domain=DOMAIN, inputs=(x, *names), attributes=attributes)
    nodes = used_nodes([replaced.get(node, node) for node in graph.nodes], graph.outputs)
    return replace(model, graph=replace(graph, nodes=nodes, initializers=initializers)) if replaced else model


def used_nodes(nodes: list[OnnxNode], outputs: Any) -> list[OnnxNode]:
    """Return the nodes whose results are used."""
    read, kept = set(outputs), []
    for node in reversed(nodes):
        if not read.isdisjoint(node.outputs):
            read.update(node.inputs, *(graph.captures() for graph in node.graphs()))
            kept.append(node)
    return kept[::-1]


def _value(name: str, producers: dict[str, OnnxNode], initializers: dict[str, Any]) -> Any:
    """Return the array that a name stands for, if it is a constant."""
    node = producers.get(name)
    if node is not None and node.op == "Constant":
        return node.attributes.get("value")
    return initializers.get(name)


def _group_norm(
    node: OnnxNode, producers: dict[str, OnnxNode], users: dict[str, list[OnnxNode]], initializers: dict[str, Any]
) -> tuple[str, OnnxNode, Any, Any] | None:
    """Return (the input, the sum, the scale, the bias) of the group norm around an instance norm."""
    ones, zeros = (_value(name, producers, initializers) for name in node.inputs[1:3])
    grouped = producers.get(node.inputs[0])
    chain = [node]
    for op in ("Reshape", "Mul", "Add"):
        after = users.get(chain[-1].outputs[0], [])
        if len(after) != 1 or after[0].op != op:
            return None
        chain.append(after[0])
    _, back, scaled, moved = chain
    if ones is None or zeros is None or grouped is None or grouped.op != "Reshape" or back.inputs[1] not in producers:
        return None
    shape = producers[back.inputs[1]]
    is_own_shape = shape.op == "Shape" and shape.inputs[0] == grouped.inputs[0] and not shape.attributes.get("start")
    split = _value(grouped.inputs[1], producers, initializers)
    is_split = split is not None and np.ravel(split).tolist() == [0, len(ones), -1]
    (weight,), (bias,) = (
        [_value(n, producers, initializers) for n in step.inputs if n != before.outputs[0]]
        for step, before in ((scaled, back), (moved, scaled))
    )
    if not (is_own_shape and is_split and np.all(ones == 1) and not np.any(zeros)):
        return None
    if any(v is None or v.ndim < 2 or v.size != len(v) or len(v) % len(ones) for v in (weight, bias)):
        return None
    return (grouped.inputs[0], moved, weight, bias) if weight.shape == bias.shape else None


@rule("GroupNorm", domain=DOMAIN)
def group_norm(xp: Any, x: Any, weight: Any, bias: Any, *, groups: int, epsilon: float) -> Any:
    return xp.group_norm(x, groups, weight, bias, eps=epsilon)
