"""Small ONNX models for the tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def model(
    nodes: list[Any],
    inputs: dict[str, tuple[int, list[Any] | None]],
    outputs: dict[str, tuple[int, list[Any] | None]],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 20,
    functions: list[Any] | None = None,
    domains: dict[str, int] | None = None,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(n, *t) for n, t in inputs.items()],
        [helper.make_tensor_value_info(n, *t) for n, t in outputs.items()],
        [numpy_helper.from_array(x, n) for n, x in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (domains or {}).items())]
    return helper.make_model(graph, opset_imports=imports, functions=functions or [], ir_version=10)


def perceptron() -> ModelProto:
    """relu(x w1 + b1) w2, of x (batch, 3), with names as exporters write them."""
    rng = np.random.default_rng(0)
    weights = {
        "layers.0.weight": rng.normal(size=(3, 5)).astype(np.float32),
        "layers.0.bias": rng.normal(size=5).astype(np.float32),
        "onnx::MatMul_7": rng.normal(size=(5, 2)).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "layers.0.weight"], ["a"]),
        helper.make_node("Add", ["a", "layers.0.bias"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "onnx::MatMul_7"], ["y"]),
    ]
    return model(nodes, {"x": (FLOAT, ["batch", 3])}, {"y": (FLOAT, ["batch", 2])}, weights)


def flattened() -> ModelProto:
    """Rows of x (batch, ...), by arithmetic on its shape."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], end=1),
        helper.make_node("Constant", [], ["rest"], value_ints=[-1]),
        helper.make_node("Concat", ["s", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["x", "to"], ["y"]),
    ]
    return model(nodes, {"x": (FLOAT, ["batch", "n", 2])}, {"y": (FLOAT, ["batch", "m"])})


def branching() -> ModelProto:
    """x + 1 where the sum of x is positive, else x - 1."""
    branches = []
    for op in ("Add", "Sub"):
        node = helper.make_node(op, ["x", "one"], [f"{op}_y"])
        branches.append(helper.make_graph([node], op, [], [helper.make_tensor_value_info(f"{op}_y", FLOAT, ["n"])]))
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["is_positive"]),
        helper.make_node("If", ["is_positive"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    weights = {"one": np.ones((), np.float32), "zero": np.zeros((), np.float32)}
    return model(nodes, {"x": (FLOAT, ["n"])}, {"y": (FLOAT, ["n"])}, weights)


def looping(trips: int | None) -> ModelProto:
    """Double x until its sum is 100 or more, or as often as `trips` says."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "state"], ["next"]),
            helper.make_node("ReduceSum", ["next"], ["total"], keepdims=0),
            helper.make_node("Less", ["total", "limit"], ["again"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", INT64, []),
            helper.make_tensor_value_info("go", BOOL, []),
            helper.make_tensor_value_info("state", FLOAT, ["n"]),
        ],
        [helper.make_tensor_value_info("again", BOOL, []), helper.make_tensor_value_info("next", FLOAT, ["n"])],
    )
    nodes = [helper.make_node("Loop", ["trips" if trips is not None else "", "", "x"], ["y"], body=body)]
    weights = {"limit": np.array(100, np.float32)}
    if trips is not None:
        weights["trips"] = np.array(trips, np.int64)
    return model(nodes, {"x": (FLOAT, ["n"])}, {"y": (FLOAT, ["n"])}, weights)
