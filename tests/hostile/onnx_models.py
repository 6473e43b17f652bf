"""ONNX models, with a file of weights beside them, and what strangers do to their fields."""

from __future__ import annotations

import functools
import math
import os
import signal
import warnings
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tests.hostile.mutations import LENGTHS, NAMES, of_bytes

WORDS = (
    "", "x", "y", "w", "If", "Loop", "Scan", "Constant", "Identity", "ConstantOfShape", "Cast", "SequenceConstruct",
    "Twice", "Attention", "TreeEnsembleClassifier", "acme", "com.microsoft", "ai.onnx.ml", "ai.onnx", "eval", "\0key",
)  # fmt: skip


def make_onnx(folder: Path) -> None:
    """A model with external data, functions, branches, loops, sequences, strings, sparse values and trees."""
    import onnx
    from onnx import TensorProto, helper

    node, tensor = helper.make_node, onnx.numpy_helper.from_array
    value = helper.make_tensor_value_info
    float_, int64 = TensorProto.FLOAT, TensorProto.INT64
    branches = [
        helper.make_graph([node(op, ["h", "w"], [f"{op}_y"])], op, [], [value(f"{op}_y", float_, ["n", 3])])
        for op in ("Add", "Sub")
    ]
    body = helper.make_graph(
        [node("Twice", ["state"], ["next"], domain="acme"), node("Identity", ["go"], ["again"])],
        "body",
        [value("turn", int64, []), value("go", TensorProto.BOOL, []), value("state", float_, ["n", 3])],
        [value("again", TensorProto.BOOL, []), value("next", float_, ["n", 3])],
    )
    twice = helper.make_function(
        "acme", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 21)]
    )
    trees = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [0.5, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "class_treeids": [0, 0],
        "class_nodeids": [1, 2], "class_ids": [0, 0], "class_weights": [0.5, -1.0], "classlabels_strings": ["a", "b"],
        "post_transform": "LOGISTIC",
    }  # fmt: skip
    nodes = [
        node("MatMul", ["x", "weight"], ["h"]),
        node("ReduceSum", ["h"], ["total"], keepdims=0),
        node("Greater", ["total", "zero"], ["is_positive"]),
        node("If", ["is_positive"], ["chosen"], then_branch=branches[0], else_branch=branches[1]),
        node("Loop", ["trips", "", "chosen"], ["looped"], body=body),
        node("DequantizeLinear", ["codes", "scale", ""], ["w2"]),
        node("Add", ["looped", "w2"], ["sum"]),
        node("SequenceConstruct", ["sum", "looped"], ["sequence"]),
        node("ConcatFromSequence", ["sequence"], ["y"], axis=1),
        node("Constant", [], ["shape"], value_ints=[2, -1]),
        node("Reshape", ["y", "shape"], ["z"]),
        node("BiasGelu", ["looped", "w"], ["g"], domain="com.microsoft"),
        node("LayerNormalization", ["g", "w"], ["q"]),
        node("TreeEnsembleClassifier", ["q"], ["label", "scores"], domain="ai.onnx.ml", **trees),
    ]
    rng = np.random.default_rng(0)
    weights = {
        "weight": rng.normal(size=(4, 3)).astype(np.float32), "w": np.ones(3, np.float32),
        "zero": np.zeros((), np.float32), "trips": np.array(2), "codes": np.array([1, 2, 3], np.int8),
        "scale": np.array(0.5, np.float32),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes, "net", [value("x", float_, ["n", 4])],
        [value("z", float_, [2, "m"]), value("label", TensorProto.STRING, ["n"]), value("scores", float_, None)],
        [tensor(w, name) for name, w in weights.items()],
    )  # fmt: skip
    graph.sparse_initializer.append(
        helper.make_sparse_tensor(tensor(np.ones(2, np.float32), "sparse"), tensor(np.array([1, 5])), [2, 4])
    )
    graph.initializer.append(helper.make_tensor("words", TensorProto.STRING, [2], [b"a", b"b"]))
    domains = {"": 21, "acme": 1, "com.microsoft": 1, "ai.onnx.ml": 3}
    imports = [helper.make_opsetid(*d) for d in domains.items()]
    net = helper.make_model(graph, opset_imports=imports, functions=[twice], ir_version=10)
    onnx.save(net, folder / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=16)


def load_onnx(folder: Path) -> Any:
    """Return the weights, and the operators of the plan, which is not run."""
    import tensorgraft as tg

    net = tg.graft(folder / "model.onnx", onto="numpy")
    plan = net._direct.planned.plan
    return str(net._direct.planned), net.weights, [step.name for step in plan.steps], len(plan.constants)


# ---- operators -------------------------------------------------------------------------------------------------------

SECONDS = 2.0  # of computing: a loop may have as many turns as it says
LARGEST = 1 << 16  # elements of an input


def make_operators(folder: Path) -> None:
    """One model for each of ONNX's node tests."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():  # the tests' own computations overflow
        warnings.simplefilter("ignore")
        for case in load_model_tests(kind="node"):
            if case.model.ByteSize() < 1 << 15:
                (folder / f"{case.name}.onnx").write_bytes(case.model.SerializeToString())


_contents: dict[str, tuple[int, bytes]] = {}  # file -> when it was written, and its content
_results: dict[str, str] = {}  # file -> what it computes


def load_operators(folder: Path) -> Any:
    """Return what models compute on small inputs that were changed. Others are run once."""
    changed = {}
    for entry in os.scandir(folder):
        written = entry.stat().st_mtime_ns
        held = _contents.get(entry.name)
        if held is not None and held[0] == written:
            continue
        content = Path(entry.path).read_bytes()
        if held is None or held[1] == content:
            _contents[entry.name] = written, content
        if held is None:
            _results[entry.name] = _computed(Path(entry.path))
        elif held[1] != content:
            changed[entry.name] = _computed(Path(entry.path))
    return {name: text for name, text in changed.items() if text != _results[name]}


def _computed(path: Path) -> str:
    """Return what the model in a file computes, or that this takes too long."""
    import tensorgraft as tg

    net = tg.graft(path, onto="numpy")
    inputs = [_input(declared) for declared in net._direct.planned.inputs.values()]
    if any(x is _NONE for x in inputs):
        return "no input"
    seed = {"seed": 0} if net._direct.planned.draws else {}
    is_first = path.name not in _results
    signal.setitimer(signal.ITIMER_VIRTUAL, 1000 if is_first else SECONDS)
    try:
        return repr(net._direct(net.weights, *inputs, **seed))[:1000]
    except _Late:
        return "takes too long"
    except Exception:
        if is_first:  # of inputs that are not the test's
            return "fails"
        raise
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


class _Late(BaseException):
    pass


def _late(*_: Any) -> None:
    raise _Late


signal.signal(signal.SIGVTALRM, _late)
_NONE = object()


def _input(declared: Any) -> Any:
    if declared.kind == "optional":
        return None
    if declared.kind == "sequence":
        return [_input(declared.element)]
    if declared.kind != "tensor" or declared.dtype is None:
        return _NONE
    shape = [n if isinstance(n, int) else 2 for n in declared.shape or ()]
    if math.prod(shape) > LARGEST or len(shape) > 32:
        return _NONE
    ramp = np.arange(math.prod(shape)).reshape(shape)
    return (ramp % 2).astype(str).astype(object) if declared.dtype == object else (ramp % 3).astype(declared.dtype)


# ---- messages --------------------------------------------------------------------------------------------------------


def _messages(message: Any, found: list[Any]) -> list[Any]:
    """Append a message, and those in it."""
    found.append(message)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                _messages(inner, found)
    return found


def _another(rng: Random, field: Any, words: tuple[str, ...]) -> Any:
    if field.enum_type is not None:
        return rng.choice([v.number for v in field.enum_type.values])
    kind = field.cpp_type
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e38, float("nan"), float("inf")))
    if kind == field.CPPTYPE_STRING:
        text = rng.choice(words)
        return text.encode() if field.type == field.TYPE_BYTES else text
    bits = 32 if kind in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    number = rng.choice((*LENGTHS, *range(-3, 30))) & (2**bits - 1)
    is_signed = kind in (field.CPPTYPE_INT32, field.CPPTYPE_INT64)
    return number - 2**bits if is_signed and number >= 2 ** (bits - 1) else number


def _edit(rng: Random, messages: list[Any], words: tuple[str, ...]) -> None:
    """Give a field another value, take it away, repeat it, or put a message of its type from elsewhere there."""
    message = rng.choice(messages)
    field = rng.choice(message.DESCRIPTOR.fields)
    if rng.random() < 0.2:
        message.ClearField(field.name)
    elif field.message_type is None:
        value = _another(rng, field, words)
        if not field.is_repeated:
            setattr(message, field.name, value)
            return
        values = getattr(message, field.name)
        if len(values) and rng.random() < 0.7:
            values[rng.randrange(len(values))] = value
        else:
            values.extend([value] * rng.choice((1, 1, 2, 100)))
    else:
        others = [m for m in messages if m.DESCRIPTOR is field.message_type and m.ByteSize() < 1 << 16]
        if not others:
            return
        copy = type(others[0])()
        copy.CopyFrom(rng.choice(others))
        held = getattr(message, field.name)
        if not field.is_repeated:
            held.CopyFrom(copy)
        elif len(held) and rng.random() < 0.3:
            del held[rng.randrange(len(held))]
        elif len(held) and rng.random() < 0.6:
            held[rng.randrange(len(held))].CopyFrom(copy)
        else:
            held.append(copy)


@functools.cache
def _words() -> tuple[str, ...]:
    import onnx

    return (*WORDS, *NAMES, *sorted({s.name for s in onnx.defs.get_all_schemas()}))


def _field(number: int, content: bytes) -> bytes:
    """Return a field of bytes as it is written: what protobuf's own writer does not nest as deep."""
    out, length = bytearray([number << 3 | 2]), len(content)
    while length > 127:
        out.append(length & 127 | 128)
        length >>= 7
    return bytes(out) + bytes([length]) + content


def _nested(net: Any, times: int) -> bytes:
    graph = net.graph.SerializeToString()
    net.ClearField("graph")
    for _ in range(times):
        attribute = _field(1, b"body") + b"\xa0\x01\x05" + _field(6, graph)  # of the type GRAPH
        graph = _field(1, _field(4, b"Loop") + _field(5, attribute)) + _field(2, b"net")
    return bytes(net.SerializeToString()) + _field(7, graph)


def of_onnx(rng: Random, data: bytes) -> bytes:
    """Fields of a model are others; its graph stands in itself, many deep."""
    import onnx
    from google.protobuf.message import DecodeError

    net = onnx.ModelProto()
    try:
        net.ParseFromString(data)
    except DecodeError:
        return of_bytes(rng, data)
    if rng.random() < 0.02:
        return _nested(net, rng.choice((2, 20, 30, 70, 1000)))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _edit(rng, _messages(net, []), _words())
    try:
        return net.SerializeToString()
    except (ValueError, RuntimeError):  # a message in itself, or of more than 2 GiB
        return of_bytes(rng, data)
