"""Recurrent layers of a model in the layout of PyTorch's, as source is written: a weight (gates, in) and (gates, H) for
each direction, biases apart, and the gates in PyTorch's order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensorgraft.frontends.onnx.codegen.normalisation import DOMAIN, used_nodes
from tensorgraft.frontends.onnx.codegen.scopes import module_path
from tensorgraft.frontends.onnx.graph import OnnxGraph, OnnxModel, OnnxNode, ValueType
from tensorgraft.frontends.onnx.planning import OnnxPlanner
from tensorgraft.frontends.onnx.rule import rule
from tensorgraft.hub import registry

FLOATS = ValueType("tensor", np.dtype(np.float32))
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
    nodes = used_nodes(nodes, graph.outputs)
    return _with_modules(replace(model, graph=replace(graph, nodes=nodes, initializers=initializers)))


def _is_zero(name: str, initializers: dict[str, Any], producers: dict[str, OnnxNode]) -> bool:
    """Return whether a value is zeros, as exporters write the states that a program leaves out."""
    node = producers.get(name)
    if node is None:
        return name in initializers and not np.any(initializers[name])
    if node.op in ("Expand", "Slice", "Reshape", "Transpose"):
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


# ---- modules of several layers ---------------------------------------------------------------------------------------


def _with_modules(model: OnnxModel) -> OnnxModel:
    """Return the model with a `RecurrentModule` in the place of all nodes of a module that are what PyTorch's LSTM or
    GRU of several layers computes: this is compared on numbers."""
    graph = model.graph
    inner: dict[str, list[OnnxNode]] = {}
    for node in graph.nodes:
        for path, _ in module_path(node)[-1:]:
            inner.setdefault(path, []).append(node)
    modules = [found for nodes in inner.values() if (found := _module(model, nodes)) is not None]
    placed = {next(n for n in nodes if n.op == "Layer"): module for module, nodes in modules}
    left = {n for _, nodes in modules for n in nodes} - placed.keys()
    kept = [placed.get(node, node) for node in graph.nodes if node not in left]
    return replace(model, graph=replace(graph, nodes=kept)) if modules else model


def _module(model: OnnxModel, nodes: list[OnnxNode]) -> tuple[OnnxNode, list[OnnxNode]] | None:
    """Return (a node that computes what the nodes of a module do, these nodes), if it is an LSTM or GRU."""
    graph = model.graph
    layers = [n for n in nodes if n.op == "Layer" and n.domain == DOMAIN]
    if not layers or layers[0].attributes["kind"] not in ("LSTM", "GRU"):
        return None
    first, kinds = layers[0], {tuple(n.attributes.values()) for n in layers}
    states = [name for n in layers for name in n.inputs[1:3]]
    direction = first.attributes["direction"]
    if len(kinds) != 1 or any(states) or direction == "reverse" or len({len(n.inputs) for n in layers}) != 1:
        return None
    inner_names = {name for n in nodes for name in n.outputs}
    constants = [n for n in graph.nodes if n.op == "Constant" and n not in nodes]
    known = {*graph.initializers, *(name for n in constants for name in n.outputs), ""}
    outside = {name for n in nodes for name in n.inputs if name not in inner_names and name not in known}
    users = [
        name
        for n in graph.nodes
        if n not in nodes
        for name in (*n.inputs, *(c for g in n.graphs() for c in g.captures()))
    ]
    results = [name for name in dict.fromkeys((*users, *graph.outputs)) if name in inner_names]
    if len(outside) != 1 or not 1 <= len(results) <= 2:
        return None
    (x,) = outside
    weights = tuple(name for n in layers for name in n.inputs[3:])
    attributes = {"kind": first.attributes["kind"], "direction": direction, "layers": len(layers)}
    body = OnnxGraph("module", [*constants, *nodes], {x: FLOATS}, dict.fromkeys(results, FLOATS), graph.initializers)
    values = [np.asarray(graph.initializers[name]) for name in weights]
    for batch_first in (0, 1):
        attributes["batch_first"] = batch_first
        places = [_places(model, body, x, results, values, attributes, shape) for shape in ((3, 2), (2, 5))]
        if places[0] is None or places[0] != places[1]:
            continue
        outputs = [""] * 2
        for name, i in zip(results, places[0], strict=True):
            outputs[i] = name
        return replace(
            first, op="RecurrentModule", inputs=(x, *weights), outputs=tuple(outputs), attributes=attributes
        ), nodes
    return None


def _places(
    model: OnnxModel, body: OnnxGraph, x: str, results: Sequence[str], weights: Sequence[np.ndarray],
    attributes: dict[str, Any], shape: tuple[int, int],
) -> list[int] | None:  # fmt: skip
    """Return which results of a recurrent module are those of a graph, on an input of numbers; None if some are not."""
    xp = registry.get("numpy")
    width = weights[0].shape[1]
    numbers = np.cos(np.arange(shape[0] * shape[1] * width)).reshape(*shape, width).astype(weights[0].dtype)
    with xp.scope():
        try:
            found = OnnxPlanner(model.functions, model.opsets).plan_graph(body, [x], body.initializers)(
                xp, numbers, None
            )
        except (ValueError, TypeError, IndexError):  # of other shapes than those of the model
            return None
        module = recurrent_module(xp, numbers, *weights, **attributes)
    places = []
    for y in map(np.asarray, found):
        equal = [i for i, z in enumerate(module) if y.shape == z.shape and np.allclose(y, z, 1e-5, 1e-6)]
        places += equal[:1]
    return places if len(set(places)) == len(results) else None


@rule("RecurrentModule", domain=DOMAIN)
def recurrent_module(
    xp: Any, x: Any, *weights: Any, kind: str, direction: str, layers: int, batch_first: int
) -> Sequence[Any]:
    """Return (every h of the last layer (T, N, directions H), the last h of each layer and direction)."""
    x = xp.permute_dims(x, (1, 0, 2)) if batch_first else x
    each, ends = len(weights) // layers, []
    for i in range(layers):
        own = weights[i * each : (i + 1) * each]
        every, end, *_ = layer(xp, x, None, None, *own, kind=kind, direction=direction, activation="tanh")
        t, d, n, h = every.shape
        x = xp.reshape(xp.permute_dims(every, (0, 2, 1, 3)), (t, n, d * h))
        ends.append(end)
    return [xp.permute_dims(x, (1, 0, 2)) if batch_first else x, xp.concat(ends, axis=0)]


def module_attributes(node: OnnxNode, weights: dict[str, Any]) -> dict[str, int | float]:
    """Return the numbers that PyTorch's class of a `RecurrentModule` holds, and which results of it are used."""
    attributes = node.attributes
    w_ih, w_hh = (weights[name] for name in node.inputs[1:3])
    return {
        "input_size": w_ih.shape[1], "hidden_size": w_hh.shape[1], "num_layers": attributes["layers"],
        "batch_first": attributes["batch_first"], "output": int(bool(node.outputs[0])), "h": int(bool(node.outputs[1])),
    }  # fmt: skip
