"""Models of one node, here and in onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from ecosystem.onnx.backend import Prepared
from onnx import ModelProto, helper

ML, MICROSOFT = "ai.onnx.ml", "com.microsoft"
VERSIONS = {"": 21, ML: 3, MICROSOFT: 1}
Inputs = Sequence[np.ndarray | None]


def single(
    op: str, inputs: Inputs, attributes: dict[str, Any] | None = None, *, domain: str = "", outputs: int = 1,
    opset: int | None = None, constants: Sequence[int] = (),
) -> ModelProto:  # fmt: skip
    """Return a model of one node. `constants`: the positions of inputs that are initializers."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    given = [(i, n, x) for i, (n, x) in enumerate(zip(names, inputs, strict=True)) if x is not None]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], domain=domain, **(attributes or {}))
    dtype = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info(n, dtype(x.dtype), x.shape) for i, n, x in given if i not in constants],
        [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)],
        [onnx.numpy_helper.from_array(x, n) for i, n, x in given if i in constants],
    )
    versions = {**VERSIONS, domain: opset} if opset else VERSIONS
    imports = [helper.make_opsetid(d, v) for d, v in versions.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def reference(model: ModelProto, inputs: Inputs) -> list[Any]:
    """Return onnxruntime's results. Raises one of its exceptions for what it refuses."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, {i.name: inputs[int(i.name[1:])] for i in session.get_inputs()})


def actual(model: ModelProto, inputs: Inputs, on: str) -> list[Any]:
    return list(Prepared(model, on).run([x for i, x in enumerate(inputs) if f"x{i}" in _inputs(model)]))


def _inputs(model: ModelProto) -> set[str]:
    return {v.name for v in model.graph.input}


def check(
    model: ModelProto, inputs: Inputs, on: Sequence[str] = ("numpy", "jax"), rtol: float = 1e-5, atol: float = 1e-6,
) -> None:  # fmt: skip
    """Compare values, shapes and dtypes of all results. An integer of a quantised value may differ by one (`atol`)."""
    wanted = reference(model, inputs)
    for name in on:
        for got, want in zip(actual(model, inputs, name), wanted, strict=True):
            equal(got, want, name, rtol, atol)


def equal(got: Any, want: Any, name: str, rtol: float, atol: float) -> None:
    if isinstance(want, list):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            equal(g, w, name, rtol, atol)
        return
    if isinstance(want, dict):
        assert got.keys() == want.keys()
        np.testing.assert_allclose([got[k] for k in want], list(want.values()), rtol, atol, err_msg=name)
        return
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"{name}: shape {got.shape}, onnxruntime's {want.shape}"
    if want.dtype.kind in "OSU":
        np.testing.assert_array_equal(got, want)
        return
    assert got.dtype == want.dtype, f"{name}: {got.dtype}, onnxruntime's {want.dtype}"
    wide = np.float64 if want.dtype.kind != "c" else want.dtype
    np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol, atol, err_msg=name)
