"""Models of LiteRT: products of int8, and what is in a file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorgraft as tg
from tensorgraft.cli.convert import inspect_file
from tensorgraft.exporting.inspection import inspect

torch = pytest.importorskip("torch")
pytest.importorskip("tensorflow")

X = torch.from_numpy(np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32))


def _network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 16)).eval()


@pytest.mark.parametrize(
    ("scheme", "batches"), [("int8_dynamic", None), ("int8_static_asymmetric", [X, (X + 0.1,), X - 0.1])]
)
def test_int8(scheme: str, batches: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network, path = _network(), tmp_path / "f.tflite"
    report = tg.export(network, X, to="litert", path=path, quantize=scheme, calibrate=batches)
    assert report.ok and report.inputs[0].shape == ["batch", 64]
    assert f"{scheme}: 2 products with int8 weights; a result may differ by 4e-02" in "\n".join(report.notes)
    assert 1e-4 < report.rows[0].error < 4e-2
    assert report.options["quantize"] == scheme
    assert inspect_file(str(path)) == 0
    printed = capsys.readouterr().out
    assert "input   input: float32[?, 64]" in printed and "FULLY_CONNECTED 2" in printed
    assert "bytes; tensorgraft does not run models of LiteRT" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": "int4"}, "a model of LiteRT has one of 'int8_dynamic', 'int8_static_asymmetric'"),
        ({"quantize": "int8_static_asymmetric"}, r"expected calibrate=\[batch, ...\]"),
        ({"quantize": "int8_dynamic", "calibrate": [X]}, "leave out calibrate"),
        ({"calibrate": [X]}, "quantize=None: a model of LiteRT has one of"),
    ],
)
def test_schemes_that_it_lacks(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        tg.export(_network(), X, to="litert", path=tmp_path / "f.tflite", **options)
    with pytest.raises(ValueError, match="to='onnx' takes no"):
        tg.export(_network(), X, to="onnx", path=tmp_path / "f.onnx", **options)


def test_a_damaged_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content in (b"", b"no model of any kind", b"\xff\xff\xff\xffTFL3" + b"\xff" * 40):
        (tmp_path / "f.tflite").write_bytes(content)
        assert inspect_file(str(tmp_path / "f.tflite")) == 2
        assert "is not a model of LiteRT, or is damaged" in capsys.readouterr().err


def test_tables_that_are_the_same_bytes(tmp_path: Path) -> None:
    """A graph, or a tensor, may be listed as often as the file is long, at 4 bytes each."""
    import flatbuffers
    from tensorflow.lite.python import schema_py_generated as schema

    model, graph = schema.ModelT(), schema.SubGraphT()
    tensor = schema.TensorT()
    tensor.name, tensor.shape = b"x", [2]
    graph.tensors, graph.inputs, graph.outputs, graph.operators = [tensor] * 50, [0], [0], []
    model.version, model.subgraphs, model.buffers = 3, [graph], [schema.BufferT()]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    content = bytearray(builder.Output())
    (tmp_path / "f.tflite").write_bytes(content)
    assert inspect(tmp_path / "f.tflite").inputs[0].shape == [2]
    count = content.index((50).to_bytes(4, "little"))
    content[count : count + 4] = (2**20).to_bytes(4, "little")
    (tmp_path / "f.tflite").write_bytes(content)
    with pytest.raises(ValueError, match=r"f\.tflite is not a model of LiteRT.*1,048,576 tensors and operators in"):
        inspect(tmp_path / "f.tflite")


class _Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def test_state_is_an_argument_and_a_result(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    tf: Any = pytest.importorskip("tensorflow")
    path = tmp_path / "f.tflite"
    report = tg.export(_Counting().train(), X[:, :3], to="litert", path=path)
    assert report.ok and report.inputs[0].shape == ["batch", 3]
    assert {row.what for row in report.rows} == {"results", "state"}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\s*Warning: tf.lite.Interpreter is deprecated", UserWarning)
        interpreter = tf.lite.Interpreter(model_path=str(path))
    signature = interpreter.get_signature_runner()
    assert {"norm_running_mean", "norm_running_var", "x"} <= set(signature.get_input_details())
    assert {"norm_running_mean_new", "norm_running_var_new"} <= set(signature.get_output_details())
    assert (tmp_path / "f.state.safetensors").exists()
