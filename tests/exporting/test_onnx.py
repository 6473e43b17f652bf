"""Models of ONNX: names, weights, opsets, control flow, state, and what is refused."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tensorgraft as tg
from tensorgraft.codegen.recorders.calls import NotExpressibleError

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")
from tensorgraft.exporting.formats import onnx as onnx_format  # noqa: E402

X = jnp.asarray(np.random.default_rng(0).standard_normal((4, 3)), jnp.float32)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 400), torch.nn.GELU(), torch.nn.LayerNorm(400)).eval()


def test_names(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    tg.export(model(), torch.ones(4, 3), to="onnx", path=path)
    graph = onnx.load(path).graph
    assert {"0.weight", "0.bias", "2.weight"} <= {t.name for t in graph.initializer}
    (x,) = graph.input
    assert x.name == "input" and x.type.tensor_type.shape.dim[0].dim_param == "batch"
    assert [node.op_type for node in graph.node] == ["Gemm", "Gelu", "LayerNormalization", "Identity"]


def test_weights_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_format, "EXTERNAL", 0)
    path = tmp_path / "model.onnx"
    report = tg.export(model(), torch.ones(4, 3), to="onnx", path=path)
    assert "the weights are in model.onnx.data" in str(report)
    assert {p.name for p in tmp_path.iterdir()} == {"model.onnx", "model.onnx.data", "model.export.json"}
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    np.testing.assert_array_equal(weights["0.weight"], model()[0].weight.detach().numpy())


@pytest.mark.parametrize("opset", [18, 24])
def test_opsets(opset: int, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    tg.export(model(), torch.ones(4, 3), to="onnx", path=path, opset=opset)
    loaded = onnx.load(path)
    assert loaded.opset_import[0].version == opset
    assert ("Gelu" in {node.op_type for node in loaded.graph.node}) == (opset >= 20)
    with pytest.raises(ValueError, match="opset=7: expected 18 to 24"):
        tg.export(model(), torch.ones(4, 3), to="onnx", path=path, opset=7)


def _scanned(x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda c, r: (jnp.tanh(c + r), c), jnp.zeros(x.shape[1:]), x, reverse=True)


def _counted(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 5, lambda i, y: y * 0.5 + i, x)


def _until(x: jax.Array) -> jax.Array:
    return jax.lax.while_loop(lambda c: c[1] < 10.0, lambda c: (c[0] + 1, c[1] + jnp.abs(c[0]).sum()), (x, 0.0))


def _branched(x: jax.Array) -> jax.Array:
    return jax.lax.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, x)


@pytest.mark.parametrize(
    ("fn", "operator"), [(_scanned, "Scan"), (_counted, "Scan"), (_until, "Loop"), (_branched, "If")]
)
def test_control_flow(fn: object, operator: str, tmp_path: Path) -> None:
    path = tmp_path / "f.onnx"
    report = tg.export(fn, X, to="onnx", path=path)
    assert report.ok and report.inputs[0].shape == ["batch", "length"]
    assert operator in {node.op_type for node in onnx.load(path).graph.node}


@pytest.mark.slow
def test_recurrent_layers(tmp_path: Path) -> None:
    lstm = torch.nn.LSTM(3, 5, 2, batch_first=True, bidirectional=True).eval()
    report = tg.export(lstm, torch.randn(2, 4, 3), to="onnx", path=tmp_path / "f.onnx")
    assert report.ok and report.inputs[0].shape == ["batch", "length", 3]


def test_an_operation_that_onnx_lacks(tmp_path: Path) -> None:
    with pytest.raises(NotExpressibleError, match=r"lgamma cannot be written in onnx \(test_onnx.py:\d+\)"):
        tg.export(lambda x: jax.lax.lgamma(x) + 1, X, to="onnx", path=tmp_path / "f.onnx")
    assert not [*tmp_path.iterdir()]


def test_state_is_an_input_and_a_result(tmp_path: Path) -> None:
    module, path = torch.nn.Sequential(torch.nn.BatchNorm1d(3)).train(), tmp_path / "f.onnx"
    x = torch.randn(4, 3)
    report = tg.export(module, x, to="onnx", path=path)
    assert [row.what for row in report.rows] == ["results", "state"] * 2
    session = onnxruntime.InferenceSession(path)
    state: dict[str, np.ndarray] = {}  # the first state is in the file
    for _ in range(2):
        out, *new = session.run(None, {"input": x.numpy(), **state})
        state = {x.name.removesuffix("_new"): v for x, v in zip(session.get_outputs()[1:], new, strict=True)}
        np.testing.assert_allclose(out, module(x).detach(), rtol=1e-5, atol=1e-6)
    for name, b in module.named_buffers():
        np.testing.assert_allclose(state[name], b, rtol=1e-5)
    assert state["0.num_batches_tracked"] == 2


def test_a_counter_of_random_numbers_that_are_not_drawn(tmp_path: Path) -> None:
    """A recurrent layer of Flax counts the keys that it asks for, for an initial state of zeros."""
    nnx = pytest.importorskip("flax.nnx")
    rnn = nnx.RNN(nnx.GRUCell(3, 5, rngs=nnx.Rngs(0)))
    report = tg.export(rnn, np.ones((2, 4, 3), np.float32), to="onnx", path=tmp_path / "f.onnx")
    assert report.ok and report.inputs[0].shape == ["batch", "length", 3]


def test_bits_of_float32(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    powers = np.ldexp(np.float32(1), np.arange(-149, 128)).astype(np.float32)
    edges = np.array([0.0, np.inf, 1.1754942e-38, 3.4028235e38, 7.9999995], np.float32)
    x = np.concatenate([edges, -edges, powers, -powers, np.nextafter(powers, np.float32(0))])
    for given, dtype in ((x, np.int32), (x.view(np.int32), np.float32)):
        path = str(tmp_path / "bits.onnx")
        tg.export(lambda x, dtype=dtype: jax.lax.bitcast_convert_type(x, dtype), given, to="onnx", path=path)
        session = onnxruntime.InferenceSession(path)
        (found,) = session.run(None, {session.get_inputs()[0].name: given})
        np.testing.assert_array_equal(found.view(np.int32), x.view(np.int32))
