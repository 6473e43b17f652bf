"""Recurrent layers of a model in the layout of PyTorch's, as source is written: a weight (gates, in) and (gates, H) for
each direction, biases apart, and the gates in PyTorch's order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensorgraft.frontends.onnx.codegen.scopes import module_path
from tensorgraft.frontends.onnx.graph import OnnxModel, OnnxNode
from tensorgraft.frontends.onnx.rule import rule

DOMAIN = "tensorgraft"
GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}  # PyTorch's gates as places among ONNX's
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def with_recurrent_layers(model: OnnxModel) -> OnnxModel:
    """Return the model with a `Layer` in the place of each recurrent operator that PyTorch's layers can compute."""
    graph = model.graph
    initializers = dict(graph.initializers)
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    producers = {name: node for node in graph.nodes for name in node.outputs}
    numbers: Counter[str] = Counter()
    nodes = []
    for node in graph.nodes:
        if not _is_layer(node, initializers, readers):
            nodes.append(node)
            continue
        path = module_path(node)[-1][0] if module_path(node) else node.op.lower()
        weights = []
        for name, value in _weights(node, initializers, f"_l{numbers[path]}"):
            weights.append(f"{path}.{name}")
            initializers[weights[-1]] = value
        numbers[path] += 1
        for name in node.inputs[1:4]:
            initializers.pop(name, None)
        x, *rest = (*node.inputs, *[""] * 8)
        states = ["" if _is_zero(name, initializers, producers) else name for name in rest[4:6]]
        direction = node.attributes.get("direction", "forward")
        attributes = {"kind": node.op, "direction": direction, "activation": _activation(node)}
        inputs = (x, *states, *weights)
        nodes.append(replace(node, op="Layer", domain=DOMAIN, inputs=inputs, attributes=attributes))
    return replace(model, graph=replace(graph, nodes=nodes, initializers=initializers))


def _is_zero(name: str, initializers: dict[str, Any], producers: dict[str, OnnxNode]) -> bool:
    """Return whether a value is zeros, as exporters write the states that a program leaves out."""
    node = producers.get(name)
    if node is None:
        return name in initializers and not np.any(initializers[name])
    if node.op == "Expand":
        return _is_zero(node.inputs[0], initializers, producers)
    return node.op in ("Constant", "ConstantOfShape") and not np.any(node.attributes.get("value", 0.0))


def _activation(node: OnnxNode) -> str:
    return str((node.attributes.get("activations") or ("Tanh",))[-1]).lower()


def _is_layer(node: OnnxNode, initializers: dict[str, Any], readers: Counter[str]) -> bool:
    """Return whether a node has its weights alone, and no option that PyTorch's layers lack."""
    if node.domain or node.op not in GATES:
        return False
    weights = [name for name in node.inputs[1:4] if name]
    lengths_or_peepholes = [name for name in (*node.inputs[4:5], *node.inputs[7:]) if name]
    options = node.attributes
    directions = 2 if options.get("direction") == "bidirectional" else 1
    usual = [ACTIVATIONS[node.op] * directions]
    usual += [("Relu",) * directions] if node.op == "RNN" else []
    return (
        all(name in initializers and readers[name] == 1 for name in weights)
        and not lengths_or_peepholes
        and not any(options.get(key) for key in ("clip", "input_forget", "layout"))
        and (node.op != "GRU" or bool(options.get("linear_before_reset")))
        and (not options.get("activations") or tuple(options["activations"]) in usual)
    )


def _weights(node: OnnxNode, initializers: dict[str, Any], suffix: str) -> list[tuple[str, np.ndarray]]:
    """Return the name and value of each weight, in the order of a layer's parameters."""
    order = GATES[node.op]
    w, r, *biases = (np.asarray(initializers[name]) for name in node.inputs[1:4] if name)

    def reordered(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.split(x, len(order))[i] for i in order])

    found = []
    for d in range(len(w)):
        ends = "_reverse" if d == 1 or node.attributes.get("direction") == "reverse" else ""
        values = [("weight_ih", w[d]), ("weight_hh", r[d])]
        for b in biases:
            values += zip(("bias_ih", "bias_hh"), np.split(b[d], 2), strict=True)
        found += [(f"{name}{suffix}{ends}", reordered(value)) for name, value in values]
    return found


@rule("Layer", domain=DOMAIN)
def layer(
    xp: Any, x: Any, initial_h: Any, initial_c: Any, *weights: Any, kind: str, direction: str, activation: str
) -> Sequence[Any]:
    """Return (every h (T, directions, N, H), the last states (directions, N, H))."""
    directions = 2 if direction == "bidirectional" else 1
    each = len(weights) // directions
    options = {"activation": activation} if kind == "RNN" else {}
    outputs, ends = [], []
    for d in range(directions):
        own = weights[d * each : (d + 1) * each]
        start = []
        for state in (initial_h, initial_c)[: STATES[kind]]:
            if state is None:
                start.append(xp.zeros((x.shape[1], own[1].shape[1]), xp.dtype_of(x)))
            else:
                start.append(xp.squeeze(xp.take_slice(state, 0, d, d + 1), 0))
        backwards = direction == "reverse" or d == 1
        every, *last = getattr(xp, kind.lower())(x, *start, *own, reverse=backwards, **options)
        outputs.append(xp.expand_dims(every, 1))
        ends.append(last)
    stacked = outputs[0] if directions == 1 else xp.concat(outputs, axis=1)
    return [stacked, *(xp.stack(list(states), axis=0) for states in zip(*ends, strict=True))]
