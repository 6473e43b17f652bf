"""SavedModels: exports of Keras, graphs of TensorFlow 1, models that TensorFlow refuses, tables, frozen graphs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.saved_model import loader_impl
from tests.frontends.tensorflow.common import difference
from tests.frontends.tensorflow.samples import numbers

import tensorgraft as tg

v1 = tf.compat.v1
Signatures = Mapping[str, tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]]
ONTO = ("numpy", "torch", "jax")


def saved(where: Path, make: Callable[[], Signatures]) -> str:
    """A SavedModel of a graph of TensorFlow 1, with variables by reference and frames for loops."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.disable_control_flow_v2()
        v1.disable_resource_variables()
        try:
            signatures = make()
        finally:
            v1.enable_control_flow_v2()
            v1.enable_resource_variables()
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        builder = v1.saved_model.Builder(str(where))
        described = {k: v1.saved_model.predict_signature_def(*ends) for k, ends in signatures.items()}
        builder.add_meta_graph_and_variables(session, ["serve"], described, main_op=v1.tables_initializer())
        builder.save()
    return str(where)


def judged(where: str, name: str, feeds: Mapping[str, np.ndarray], calls: int) -> list[dict[str, np.ndarray]]:
    with tf.Graph().as_default(), v1.Session() as session:
        signature = loader_impl.SavedModelLoader(where).load(session, ["serve"]).signature_def[name]
        fetches = {k: t.name for k, t in signature.outputs.items()}
        fed = {signature.inputs[k].name: x for k, x in feeds.items()}
        return [session.run(fetches, fed) for _ in range(calls)]


def agree(where: str, name: str, feeds: Mapping[str, np.ndarray], onto: str, calls: int = 2) -> Any:
    """A signature does, call by call, what a session does."""
    wanted = judged(where, name, feeds, calls)
    f = tg.graft(where, onto=onto)[name]
    buffers = getattr(f, "buffers", None)
    for want in wanted:
        if onto == "torch":
            got = {k: y.detach().numpy() for k, y in f(**{k: torch.tensor(x) for k, x in feeds.items()}).items()}
        elif onto == "jax":
            got, buffers = jax.jit(f.apply)(f.params, buffers, **feeds)
        else:
            got = f(**feeds)
        wrong = {k: difference(np.asarray(got[k]), np.asarray(w)) for k, w in want.items()}
        assert not any(wrong.values()), wrong
    return f


def loops_and_branches() -> Signatures:
    x = v1.placeholder(tf.float32, [None, 3], name="x")
    w = v1.get_variable("w", initializer=numbers((3, 2)))
    n = v1.get_variable("n", initializer=0, trainable=False)
    count = v1.assign_add(n, 1)
    with tf.control_dependencies([count]):
        h = tf.matmul(x, w)
    y = v1.cond(tf.reduce_sum(h) > 0, lambda: h * 2, lambda: h - 1)

    def step(i: tf.Tensor, a: tf.Tensor) -> Any:
        return i + 1, a * 1.5 + v1.cond(i > 1, lambda: a, lambda: tf.tanh(-a))

    z = v1.while_loop(lambda i, _: i < 3, step, [0, y])[1]
    slope = v1.gradients(tf.reduce_sum(z**2), w)[0]
    return {"serve": ({"x": x}, {"z": z, "n": count}), "slope": ({"x": x}, {"slope": slope})}


@pytest.mark.parametrize("onto", ONTO)
def test_loops_and_branches(onto: str, tmp_path: Path) -> None:
    where = saved(tmp_path / "model", loops_and_branches)
    x = numbers((4, 3))
    f = agree(where, "serve", {"x": x}, onto)
    agree(where, "serve", {"x": -x}, onto, 1)
    want = judged(where, "slope", {"x": x}, 1)[0]["slope"]
    if onto == "torch":
        assert (list(dict(f.named_parameters())), list(dict(f.named_buffers()))) == (["w"], ["n"])
        f(x=torch.tensor(x))["z"].square().sum().backward()
        assert not difference(f.w.grad.numpy(), want)
    if onto == "jax":
        got = jax.grad(lambda p: (f.apply(p, f.buffers, x=x)[0]["z"] ** 2).sum())(f.params)
        assert not difference(np.asarray(got["w"]), want)
        with pytest.raises(ValueError, match=r"writes n: call \.apply"):
            f(x=x)


def training() -> Signatures:
    a = v1.placeholder(tf.float32, [None, 3], name="a")
    w = v1.get_variable("w", initializer=numbers((3, 2)))
    rows = v1.get_variable("rows", initializer=numbers((4, 2)))
    y = tf.matmul(a, w) + tf.gather(rows, [2, 0, 2])
    loss = tf.reduce_mean(tf.square(y - 1))
    steps = v1.train.get_or_create_global_step()
    with tf.control_dependencies([v1.train.AdamOptimizer(0.1).minimize(loss, global_step=steps)]):
        scattered = v1.scatter_add(rows, [1, 3, 1], tf.ones((3, 2)))
        with tf.control_dependencies([scattered]):
            return {"train": ({"a": a}, {"loss": tf.identity(loss), "rows": rows.read_value(), "w": w.read_value()})}


@pytest.mark.parametrize("onto", ["torch", "jax"])
def test_a_training_step(onto: str, tmp_path: Path) -> None:
    f = agree(saved(tmp_path / "model", training), "train", {"a": numbers((3, 3))}, onto)
    names = dict(f.named_parameters()) if onto == "torch" else f.buffers
    assert {"w", "rows"} <= set(names)
    assert onto == "torch" or "w_Adam" in names


def normalised() -> Signatures:
    a = v1.placeholder(tf.float32, [None, 4, 4, 3])
    train = v1.placeholder_with_default(False, [])
    scale = v1.get_variable("scale", initializer=numbers((3,)))
    mean = v1.get_variable("mean", initializer=numbers((3,)), trainable=False)
    h = a
    for _ in range(2):  # of one predicate, one after the other

        def learning(h: tf.Tensor = h) -> Any:
            return tf.raw_ops.FusedBatchNorm(x=h, scale=scale, offset=scale, mean=[], variance=[])[:2]

        def serving(h: tf.Tensor = h) -> Any:
            y = tf.raw_ops.FusedBatchNorm(
                x=h, scale=scale, offset=scale, mean=mean, variance=scale**2, is_training=False
            )
            return y[0], tf.identity(mean)

        h, batch = v1.cond(train, learning, serving)
        with tf.control_dependencies([v1.assign_sub(mean, (mean - batch) * 0.1)]):
            h = tf.nn.relu(h)
    return {"serve": ({"a": a}, {"h": h}), "train": ({"a": a, "train": train}, {"h": h})}


@pytest.mark.parametrize(("onto", "name"), [("numpy", "serve"), ("jax", "train")])
def test_batch_normalisation(onto: str, name: str, tmp_path: Path) -> None:
    where = saved(tmp_path / "model", normalised)
    feeds = {"a": numbers((2, 4, 4, 3)), **({"train": np.array(True)} if name == "train" else {})}
    agree(where, name, feeds, onto)


def recurrent() -> Signatures:
    a, n = v1.placeholder(tf.float32, [None, 3, 2]), v1.placeholder(tf.int32, [None])
    w = v1.get_variable("w", initializer=numbers((4, 2)))
    inputs = tf.TensorArray(tf.float32, size=3).unstack(tf.transpose(a, [1, 0, 2]))

    def step(i: tf.Tensor, s: tf.Tensor, out: tf.TensorArray) -> Any:
        new = tf.tanh(tf.matmul(tf.concat([inputs.read(i), s], 1), w))
        new = tf.where(tf.tile((i < n)[:, None], [1, 2]), new, s)
        _, new = v1.while_loop(lambda j, _: j < i, lambda j, s: (j + 1, s * 0.9), [0, new])
        return i + 1, new, out.write(i, new)

    start = [0, tf.zeros([tf.shape(a)[0], 2]), tf.TensorArray(tf.float32, size=3)]
    _, state, out = v1.while_loop(lambda i, *_: i < 3, step, start)
    return {"serve": ({"a": a, "n": n}, {"state": state, "all": out.stack()})}


@pytest.mark.parametrize("onto", ["torch", "jax"])
def test_tensor_arrays(onto: str, tmp_path: Path) -> None:
    feeds = {"a": numbers((2, 3, 2)), "n": np.array([3, 1], np.int32)}
    agree(saved(tmp_path / "model", recurrent), "serve", feeds, onto, 1)


# ---- models of TensorFlow 2 ------------------------------------------------------------------------------------------


def test_an_export_of_keras(tmp_path: Path) -> None:
    model = keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Dense(4, name="first"), keras.layers.BatchNormalization(name="norm")]
    )
    where = tmp_path / "model"
    model.export(where, verbose=False)
    x = numbers((5, 3))
    want = model(x).numpy()
    module = tg.graft(where, onto="torch")
    assert list(module) == ["serve", "serving_default"]
    ((dtype, shape),) = module.inputs("serve").values()
    assert (dtype, shape) == (np.float32, (None, 3))
    f = module["serving_default"]
    (y,) = f(torch.tensor(x)).values()
    assert not difference(y.detach().numpy(), want)
    assert list(dict(f.named_buffers())) == ["norm.moving_mean", "norm.moving_variance"]
    y.sum().backward()
    assert not difference(f.get_parameter("first.bias").grad.numpy(), np.full(4, 5 / np.sqrt(1.001), np.float32))
    other = module["serve"]  # of the same memory
    with torch.no_grad():
        f.get_parameter("first.bias").add_(1.0)
    assert torch.equal(other.get_parameter("first.bias"), f.get_parameter("first.bias"))

    program = tg.graft(where, onto="numpy")["serve"]
    program(x), program(x[:2])
    program.save(tmp_path / "program")
    np.save(tmp_path / "x.npy", x)
    script = f"""
import sys, numpy as np, tensorgraft as tg
sys.modules["tensorflow"] = sys.modules["keras"] = None
f = tg.load({str(tmp_path / "program")!r})
(y,) = f(np.load({str(tmp_path / "x.npy")!r})).values()
np.save({str(tmp_path / "y.npy")!r}, y)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert not difference(np.load(tmp_path / "y.npy"), want)


class Refused(tf.Module):
    def __init__(self) -> None:
        self.w = tf.Variable(numbers((2, 2)), name="kernel")
        self.slot = tf.Variable(tf.zeros((2, 2)), trainable=False, name="kernel/m")
        self.calls = tf.Variable(0, trainable=False, name="calls")
        self.optimizer = tf.Module()
        rows = tf.lookup.KeyValueTensorInitializer(tf.constant([5, 7], tf.int64), tf.constant([1, 0], tf.int64))
        self.table = tf.lookup.StaticHashTable(rows, -1)

    @tf.function(input_signature=[tf.TensorSpec((None, 2), name="x"), tf.TensorSpec((None,), tf.int64, name="k")])
    def serve(self, x: tf.Tensor, k: tf.Tensor) -> dict[str, tf.Tensor]:
        self.calls.assign_add(1)
        for _ in tf.range(2):
            x = tf.tanh(x @ self.w) if tf.reduce_sum(x) > 0 else -x
        return {"y": x + self.slot, "found": self.table.lookup(k)}


def test_a_model_with_slots_that_tensorflow_refuses(tmp_path: Path) -> None:
    model = Refused()
    where = tmp_path / "model"
    tf.saved_model.save(model, where, {"serve": model.serve})
    proto = saved_model_pb2.SavedModel.FromString((where / "saved_model.pb").read_bytes())
    nodes = proto.meta_graphs[0].object_graph_def.nodes
    places = {child.local_name: child.node_id for child in nodes[0].children}
    nodes[places["optimizer"]].slot_variables.add(
        original_variable_node_id=places["w"], slot_name="m", slot_variable_node_id=places["slot"]
    )
    (where / "saved_model.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(AttributeError, match="add_slot"):
        tf.saved_model.load(where)
    f = tg.graft(where, onto="torch")["serve"]
    assert list(dict(f.named_parameters())) == ["kernel"]
    assert sorted(dict(f.named_buffers())) == ["calls", "kernel_m"]
    x, k = numbers((2, 2), low=0.1, high=1), np.array([7, 9, 5])
    got, want = f(x=torch.tensor(x), k=torch.tensor(k)), model.serve(tf.constant(x), tf.constant(k))
    assert not any(difference(got[name].detach().numpy(), want[name].numpy()) for name in want)
    assert f.calls.item() == 1


# ---- tables ----------------------------------------------------------------------------------------------------------


def looked_up() -> Signatures:
    keys = v1.placeholder(tf.int64, [None, 2])
    rows = v1.lookup.KeyValueTensorInitializer(tf.constant([9, 3, 4], tf.int64), tf.constant([0.5, 2.0, 4.0]))
    return {"serve": ({"k": keys}, {"v": v1.lookup.StaticHashTable(rows, -1.0).lookup(keys)})}


@pytest.mark.parametrize("onto", ONTO)
def test_a_table(onto: str, tmp_path: Path) -> None:
    where = saved(tmp_path / "model", looked_up)
    agree(where, "serve", {"k": np.array([[3, 10], [9, -1], [4, 5]])}, onto, 1)


def test_tables_of_keras(tmp_path: Path) -> None:
    words = keras.layers.Input((), dtype="string")
    model = keras.Model(words, keras.layers.Embedding(4, 2)(keras.layers.StringLookup(vocabulary=["a", "b"])(words)))
    model.export(tmp_path / "model", verbose=False)
    asked = np.array(["b", "z", "a"], object)
    (got,) = tg.graft(tmp_path / "model", onto="numpy")["serving_default"](asked).values()
    assert not difference(got, model(tf.constant(asked)).numpy())
    with pytest.raises(TypeError, match=r"takes strings .* graft onto 'numpy'"):
        tg.graft(tmp_path / "model", onto="torch")["serving_default"]
    layer = keras.layers.IntegerLookup()
    layer.adapt(np.array([5, 5, 7]))
    lookup = tg.graft(keras.Sequential([keras.layers.Input((), dtype="int64"), layer]), onto="jax")
    numbers_ = np.array([7, 1, 5])
    got, _ = jax.jit(lookup.apply)(lookup.params, lookup.buffers, numbers_)
    assert np.asarray(got).tolist() == layer(numbers_).numpy().tolist()


def test_a_table_that_is_written() -> None:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    fixed = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(["a"]), tf.constant([3], tf.int64)), 0
    )
    f = tf.function(lambda k: table.lookup(k) + table.size() + fixed.lookup(tf.constant("a")))
    g, k = tg.graft(f, onto="jax"), np.array([1, 5])
    assert np.asarray(g(k)).tolist() == f(k).numpy().tolist()
    table.insert(tf.constant([5], tf.int64), tf.constant([9], tf.int64))
    assert np.asarray(g(k)).tolist() == f(k).numpy().tolist() == [3, 13]
    with pytest.raises(tg.errors.TracedValueError, match="StaticHashTable"):
        tg.jit(g)(k)


# ---- frozen graphs, and errors ---------------------------------------------------------------------------------------


def test_a_frozen_graph(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        a, scale = v1.placeholder(tf.float32, [None, 3], name="a"), v1.placeholder(tf.float32, [], name="scale")
        y = tf.nn.relu(tf.matmul(a, tf.constant(numbers((3, 2)))), name="y")
        tf.reduce_sum(y * scale, name="total")
    file = tmp_path / "graph.pb"
    file.write_bytes(graph.as_graph_def().SerializeToString())
    model, x = tg.graft(file, onto="torch"), numbers((4, 3))
    want = np.maximum(x @ numbers((3, 2)), 0)
    total = model(a=torch.tensor(x), scale=torch.tensor(2.0))["total"]
    assert not difference(total.numpy(), np.float32(2 * want.sum()))
    assert not difference(model.function({"x": "a"}, {"y": "y:0"})(torch.tensor(x))["y"].numpy(), want)
    with pytest.raises(ValueError, match=r"placeholder 'scale' \(float32\) .* is not an input of the signature"):
        model.function({"x": "a"}, {"y": "total"})
    with pytest.raises(ValueError, match="no tensor 'other'"):
        model.function({"x": "other"}, {"y": "y"})
    with pytest.raises(TypeError, match=r"graph\(a: float32\(None, 3\), scale: float32\(\)\) got a of shape"):
        model(a=torch.ones(2, 2), scale=torch.tensor(1.0))
    with pytest.raises(TypeError, match="expects arrays by name, got b"):
        model(b=torch.ones(2, 3))
    with pytest.raises(ValueError, match="is not a GraphDef"):
        tg.graft(__file__, onto="torch")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere.*saved_model\.pb"):
        tg.graft(str(tmp_path / "nowhere"), onto="numpy")
