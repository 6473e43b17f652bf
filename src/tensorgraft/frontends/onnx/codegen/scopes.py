"""The modules of an exported model, from the names of its nodes, and names for its weights.

PyTorch's exporters name a node by the modules around it (`/encoder/layer.0/attn/MatMul`), or state these in the node's
metadata. Weights that an exporter has transposed lose their names (`onnx::MatMul_12`).
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from tensorgraft.codegen.output.expressions import words
from tensorgraft.codegen.recorders.frames import Called
from tensorgraft.codegen.recorders.recording import Scope
from tensorgraft.frontends.onnx.graph import OnnxGraph, OnnxModel, OnnxNode, is_anonymous

_METADATA = ("pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy")


def module_path(node: OnnxNode) -> list[tuple[str, str]]:
    """Return (path, class) of the modules around a node, from outside. The class is guessed from the name where the
    model does not state it."""
    given = {p.key: p.value for p in node.message.metadata_props} if node.message is not None else {}
    if _METADATA[0] in given:
        paths, classes = (_names(given.get(key, "[]")) for key in _METADATA)
        kinds = [c.rpartition(".")[2] for c in classes] + [""] * len(paths)
        return [(path, kind or class_name(path)) for path, kind in zip(paths, kinds, strict=False) if path][:-1]
    parts = [p for p in node.name.split("/")[:-1] if p]
    absolute: list[tuple[str, str]] = []
    for before, part in zip(["", *parts], parts, strict=False):
        outer = absolute[-1][0] if absolute else ""
        if outer and (part == outer or part.startswith(outer + ".")):
            path = part
        elif before and part.startswith(before + "."):  # `layer/layer.0`: a part of an `nn.Sequential`
            path = outer.removesuffix(before) + part
        else:
            path = f"{outer}.{part}" if outer else part
        absolute.append((path, class_name(part)))
    return absolute


def _names(text: str) -> list[str]:
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return []
    return [str(x) for x in found] if isinstance(found, list) else []


def class_name(path: str) -> str:
    """Return a name of a class for a module by its path: `SelfAttention` for `layer.0.self_attention`, `Block` for
    `blocks.3`."""
    parts = path.split(".")
    last = next((p for p in reversed(parts) if not p.isdigit()), "module")
    words = [w for w in re.split(r"[^A-Za-z0-9]+", last) if w]
    if parts[-1].isdigit() and words and len(words[-1]) > 3:
        words[-1] = words[-1].removesuffix("s")
    name = "".join(w[:1].upper() + w[1:] for w in words)
    return name if name[:1].isalpha() else f"Module{name}"


class ModuleScopes:
    """The calls of a model's modules, and the scope of each node among them. `depths`: how many of the modules around
    a node contain it, by its first output, where that is not all. `attributes`: numbers that a module holds, by a node
    that is all of it, and the module's class."""

    def __init__(
        self, depths: Mapping[str, int], attributes: Mapping[OnnxNode, tuple[str, dict[str, int | float]]]
    ) -> None:
        self._depths, self._attributes = depths, attributes
        self.calls: list[Called] = []
        self._numbers: dict[str, int] = {}

    def of(self, node: OnnxNode) -> Scope:
        scope = []
        outer = ""
        for path, kind in module_path(node)[: self._depths.get(node.outputs[0])]:
            if path not in self._numbers:
                self._numbers[path] = len(self.calls)
                name = path.removeprefix(outer + ".") if outer else path
                self.calls.append(Called(kind, path, name, is_module=True))
            scope.append(self._numbers[path])
            outer = path
        if node in self._attributes:
            call = self.calls[scope[-1]]
            call.kind, call.attributes = self._attributes[node]
        return tuple(scope)


def without_shared_names(model: OnnxModel) -> OnnxModel:
    """Return a model in which what an exporter stores once for several parameters of equal values is stored for each:
    `layers.1.norm.weight`, which in the file is an Identity of `layers.0.norm.weight`, or that itself, read by a node
    of `layers.1.norm`; a weight without a name that modules share, for each of them."""
    graph = model.graph
    initializers = dict(graph.initializers)
    remaining = []
    for node in graph.nodes:
        if _is_alias(node, initializers) and node.outputs[0] not in graph.outputs:
            initializers[node.outputs[0]] = initializers[node.inputs[0]]
        else:
            remaining.append(node)
    readers = Counter(name for node in remaining for name in node.inputs)
    shared = {n for n, x in initializers.items() if is_anonymous(n) and readers[n] > 1 and math.prod(x.shape) > 1}
    nodes = []
    for node in remaining:
        path = module_path(node)
        inputs = node.inputs
        if path:
            inputs = tuple(
                _numbered(node, i, path[-1][0], initializers)
                if name in shared
                else _own(node, i, path[-1][0], initializers)
                for i, name in enumerate(inputs)
            )
        node = node if inputs == node.inputs else replace(node, inputs=inputs)
        nodes.append(_in_own_module(node, initializers))
    return replace(model, graph=replace(graph, nodes=nodes, initializers=initializers))


def _in_own_module(node: OnnxNode, initializers: Mapping[str, Any]) -> OnnxNode:
    """Return a convolution that an exporter has put into the batch norm after it, in the module of its weight."""
    path = module_path(node)
    name = node.inputs[1] if node.op in ("Conv", "ConvTranspose", "Gemm") else ""
    owner = name.rpartition(".")[0]
    is_other = owner and path and owner != path[-1][0] and owner.rpartition(".")[0] == path[-1][0].rpartition(".")[0]
    if not is_other or name not in initializers or node.message is None:
        return node
    message = onnx.NodeProto()
    message.CopyFrom(node.message)
    for p, old in ((p, path[-1][0]) for p in message.metadata_props if p.key == _METADATA[0]):
        p.value = str([owner if x == old else x for x in _names(p.value)])
    return replace(node, message=message)


def _is_alias(node: OnnxNode, initializers: Mapping[str, Any]) -> bool:
    """Return True if a node gives an initializer another name of a parameter."""
    is_copy = node.op == "Identity" and not node.domain and node.inputs[0] in initializers
    name = node.outputs[0]
    return is_copy and (is_anonymous(name) or ("." in name and "/" not in name))


def _own(node: OnnxNode, position: int, path: str, initializers: dict[str, Any]) -> str:
    """Return the name of a weight in the module of a node, which the initializers get, if the weight is that of a
    module which is called the same in another place, or has equal elements, as fresh biases and scales have."""
    name = node.inputs[position]
    owner, _, leaf = name.rpartition(".")
    if name not in initializers or not owner or owner == path or path.startswith(owner + "."):
        return name
    if _is_uniform(initializers[name]):
        leaf = _role(node, position)
    elif owner.rpartition(".")[2] != path.rpartition(".")[2]:
        return name
    own = f"{path}.{leaf}"
    return own if initializers.setdefault(own, initializers[name]) is initializers[name] else name


def _is_uniform(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.ndim == 1 and x.dtype.kind == "f" and bool((x == x[:1]).all())


def _numbered(node: OnnxNode, position: int, path: str, initializers: dict[str, Any]) -> str:
    """Return the name that a weight without one has in the module of a node, which the initializers get."""
    own = f"{path}.{_role(node, position)}"
    while own in initializers:
        own += "_"
    initializers[own] = initializers[node.inputs[position]]
    return own


def transposed_weights(model: OnnxModel, weights: Iterable[str]) -> set[str]:
    """Return the weights without names that only `MatMul` reads, on the right: exporters of PyTorch have transposed
    those of linear layers."""
    readers: dict[str, list[bool]] = {}
    for node in model.graph.nodes:
        for i, name in enumerate(node.inputs):
            readers.setdefault(name, []).append(node.op == "MatMul" and i == 1)
    candidates = (w for w in weights if is_anonymous(w) and model.graph.initializers[w].ndim == 2)
    return {w for w in candidates if all(readers.get(w, [False]))}


def weight_names(model: OnnxModel, weights: Iterable[str]) -> dict[str, str]:
    """Return a name for each weight, of words and dots: its own, or, if it is an exporter's number, that of the module
    which reads it alone (`encoder.layer.0.query.weight`)."""
    readers: dict[str, list[tuple[OnnxNode, int]]] = {}
    for node in model.graph.nodes:
        for i, name in enumerate(node.inputs):
            readers.setdefault(name, []).append((node, i))
    names: dict[str, str] = {}
    taken: set[str] = set()
    for w in sorted(weights, key=is_anonymous):
        users = readers.get(w, [])
        path = module_path(users[0][0]) if len(users) == 1 else []
        if not is_anonymous(w):
            name = w
        else:
            name = f"{path[-1][0]}.{_role(*users[0])}" if path else w.removeprefix("onnx::").lower()
        name = ".".join(map(words, name.split(".")))
        while name in taken:
            name += "_"
        taken.add(name)
        names[w] = name
    return names


_ROLES = {
    **dict.fromkeys(("LSTM", "GRU", "RNN"), ("", "weight_ih", "weight_hh", "bias")),
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), ("weight", "weight", "bias")),
    "BatchNormalization": ("", "weight", "bias", "running_mean", "running_var"),
    "LayerNormalization": ("", "weight", "bias"),
    "GroupNormalization": ("", "weight", "bias"),
    "InstanceNormalization": ("", "weight", "bias"),
}


def _role(node: OnnxNode, position: int) -> str:
    """Return the name that PyTorch's layers have for an input of a node."""
    roles = _ROLES.get(node.op, ())
    if roles:
        return roles[position] if position < len(roles) else f"input_{position}"
    return "bias" if node.op in ("Add", "Sub") else "weight"


# ---- modules that share values ---------------------------------------------------------------------------------------


def with_shared_values(graph: OnnxGraph) -> tuple[OnnxGraph, dict[str, int]]:
    """Return the graph with values that several modules use before the first of them, and how many of the modules
    around such a node contain it, by its first output. Exporters compute equal values once, in the first module."""
    paths = {node: tuple(path for path, _ in module_path(node)) for node in graph.nodes}
    weights = {
        n for n, x in graph.initializers.items() if math.prod(x.shape) > 1 and np.dtype(x.dtype).kind not in "ib"
    }
    fixed = {node for node in graph.nodes if not weights.isdisjoint(node.inputs) or any(node.graphs())}
    producers = {name: node for node in graph.nodes for name in node.outputs}
    while True:
        moved = _moved_outwards(graph, paths, fixed)
        stuck = {
            node
            for node, at in moved.items()
            for inner in [paths[node][: len(at) + 1]]
            for source in (producers[n] for n in node.inputs if n in producers)
            if moved.get(source, paths[source])[: len(inner)] == inner
        }
        if not stuck:
            break
        fixed |= stuck
    nodes: list[OnnxNode] = []
    for node in graph.nodes:
        nodes.insert(_place(node, nodes, paths, moved), node)
    return replace(graph, nodes=nodes), {node.outputs[0]: len(at) for node, at in moved.items()}


Path = tuple[str, ...]


def _moved_outwards(graph: OnnxGraph, paths: dict[OnnxNode, Path], fixed: set[OnnxNode]) -> dict[OnnxNode, Path]:
    """Return the modules around each node whose result is used in its module and outside, or by such nodes alone."""
    users: dict[str, list[Path]] = {name: [()] for name in graph.outputs}
    insiders: dict[str, list[Path]] = {}  # the modules in which values are used, or were before nodes were moved
    moved: dict[OnnxNode, Path] = {}
    for node in reversed(graph.nodes):
        own = paths[node]
        common = own
        for user in (user for name in node.outputs for user in users.get(name, ())):
            common = _common(common, user)
        inner = own[: len(common) + 1]
        is_used_inside = any(u[: len(inner)] == inner for name in node.outputs for u in insiders.get(name, ()))
        if common != own and is_used_inside and node not in fixed:
            moved[node] = common
        for name in (*node.inputs, *(name for body in node.graphs() for name in body.captures())):
            users.setdefault(name, []).append(moved.get(node, own))
            insiders.setdefault(name, []).append(own)
    return moved


def _common(a: Path, b: Path) -> Path:
    """Return the modules that both paths begin with."""
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:n]


def _place(node: OnnxNode, nodes: list[OnnxNode], paths: dict[OnnxNode, Path], moved: dict[OnnxNode, Path]) -> int:
    """Return where a node is put among those before it: before the module that it leaves, after what it reads."""
    if node not in moved:
        return len(nodes)
    inner = paths[node][: len(moved[node]) + 1]
    first = next((i for i, n in enumerate(nodes) if moved.get(n, paths[n])[: len(inner)] == inner), len(nodes))
    return max([first, *(i + 1 for i, n in enumerate(nodes) if not set(n.outputs).isdisjoint(node.inputs))])
