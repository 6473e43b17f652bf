"""ONNX models as source, and ported to networks of other frameworks."""

from __future__ import annotations

import ast
import io
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from tests.frontends.onnx.models import FLOAT, model, perceptron

import tensorgraft as tg
from tensorgraft.frontends.onnx.codegen.scopes import class_name, module_path, weight_names, without_shared_names
from tensorgraft.frontends.onnx.reading import read


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.fc1, self.fc2 = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc2(torch.nn.functional.gelu(self.fc1(self.norm(x))))


class Tagger(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.layers = torch.nn.ModuleList([Block(8) for _ in range(2)])
        self.head = torch.nn.Linear(8, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + torch.arange(ids.shape[1]).float()[None, :, None]
        for layer in self.layers:
            x = layer(x)
        return torch.softmax(self.head(x), -1)


IDS = np.random.default_rng(0).integers(0, 11, (2, 6))


@pytest.fixture(scope="module")
def exported() -> tuple[Tagger, onnx.ModelProto]:
    torch.manual_seed(0)
    net, file = Tagger().eval(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (torch.from_numpy(IDS),), file, dynamo=False, input_names=["ids"], output_names=["logits"],
            dynamic_axes={"ids": {0: "batch", 1: "length"}}, opset_version=18,
        )  # fmt: skip
    return net, onnx.load_from_string(file.getvalue())


def test_a_network_exported_from_pytorch_is_written_as_its_modules(exported: Any) -> None:
    source = tg.source(exported[1], IDS, onto="torch")
    assert source.report.ok
    for line in ("nn.LayerNorm(8)", "self.fc1 = nn.Linear(8, 16)", "self.embed = nn.Embedding(11, 8)",
                 "return x + self.fc2(F.gelu(self.fc1(self.norm(x))))",
                 "nn.ModuleList([Layer() for _ in range(2)])"):  # fmt: skip
        assert line in source.text
    assert set(source.weights) == set(exported[0].state_dict())
    for name, x in exported[0].state_dict().items():
        np.testing.assert_array_equal(source.weights[name], x)


@pytest.mark.parametrize("onto", ["jax", "numpy"])
def test_other_targets(exported: Any, onto: str) -> None:
    assert tg.source(exported[1], IDS, onto=onto).report.ok


def test_weights_are_carried_to_the_network_that_was_exported(exported: Any) -> None:
    result = tg.port(exported[1], Tagger().eval(), IDS)
    assert result.ok, str(result)
    for name, x in exported[0].state_dict().items():
        np.testing.assert_allclose(result.weights[name], x, rtol=1e-6)


def test_modules_are_read_from_names_of_nodes() -> None:
    def node(name: str) -> Any:
        return read(
            model([onnx.helper.make_node("Relu", ["x"], ["y"], name=name)], {"x": (FLOAT, [1])}, {"y": (FLOAT, [1])})
        ).graph.nodes[0]

    assert module_path(node("/encoder/layer.0/attention/MatMul")) == [
        ("encoder", "Encoder"), ("encoder.layer.0", "Layer"), ("encoder.layer.0.attention", "Attention"),
    ]  # fmt: skip
    assert [path for path, _ in module_path(node("/encoder/layer/layer.0/Conv"))] == [
        "encoder", "encoder.layer", "encoder.layer.0",
    ]  # fmt: skip
    assert module_path(node("Relu_3")) == []
    assert class_name("blocks.3") == "Block"
    assert class_name("self_attn") == "SelfAttn"


def test_numbers_of_exporters_become_names() -> None:
    weights = {"onnx::MatMul_9": np.ones((2, 3), np.float32), "fc.bias": np.ones(3, np.float32)}
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "onnx::MatMul_9"], ["a"], name="/fc/MatMul"),
        onnx.helper.make_node("Add", ["fc.bias", "a"], ["y"], name="/fc/Add"),
    ]
    net = read(model(nodes, {"x": (FLOAT, ["n", 2])}, {"y": (FLOAT, ["n", 3])}, weights))
    assert weight_names(net, weights) == {"onnx::MatMul_9": "fc.weight", "fc.bias": "fc.bias"}
    assert without_shared_names(net).graph.initializers.keys() == weights.keys()


class Stack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Normalised() for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Normalised(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 3, 3, padding=1, bias=False), torch.nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)))


def test_what_an_exporter_stores_once_is_written_for_each_module() -> None:
    file, x = io.BytesIO(), torch.ones(1, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Stack().eval(), (x,), file, dynamo=False, opset_version=18)
    net = onnx.load_from_string(file.getvalue())
    names = [t.name for t in net.graph.initializer]
    assert len(names) == 3  # two kernels, and a bias of zeros
    source = tg.source(net, x.numpy(), onto="torch", check=False)
    assert "self.conv = nn.Conv2d(3, 3, 3, padding=1)" in source.text
    assert sorted(source.weights) == [f"blocks.{i}.conv.{n}" for i in (0, 1) for n in ("bias", "weight")]


def test_positions_up_to_a_length_are_made_at_the_length() -> None:
    table = np.arange(32, dtype=np.int64)[None]
    nodes = [
        onnx.helper.make_node("Shape", ["ids"], ["n"], start=1),
        onnx.helper.make_node("Slice", ["table", "zero", "n", "one"], ["positions"]),
        onnx.helper.make_node("Gather", ["embed", "positions"], ["p"]),
        onnx.helper.make_node("Gather", ["embed", "ids"], ["x"]),
        onnx.helper.make_node("Add", ["x", "p"], ["y"]),
    ]
    weights = {
        "table": table, "zero": np.zeros(1, np.int64), "one": np.ones(1, np.int64),
        "embed": np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32),
    }  # fmt: skip
    net = model(nodes, {"ids": (onnx.TensorProto.INT64, ["b", "n"])}, {"y": (FLOAT, ["b", "n", 4])}, weights)
    source = tg.source(net, IDS, onto="numpy")
    assert source.report.ok
    assert "6" not in source.text.partition("def ")[2].partition("def load")[0]  # the length of the example


def test_a_file_of_tg_export_is_written_as_the_modules_it_came_from(tmp_path: Any) -> None:
    torch.manual_seed(0)
    net, path = Tagger().eval(), tmp_path / "tagger.onnx"
    tg.export(net, torch.from_numpy(IDS), to="onnx", path=path, check=False)
    source = tg.source(path, IDS, onto="torch", check=False)
    for line in ("self.fc1 = nn.Linear(8, 16)", "nn.ModuleList([Layer() for _ in range(2)])", "nn.Embedding(11, 8)"):
        assert line in source.text
    assert set(source.weights) == set(net.state_dict())


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_written_as_layers_with_weights_of_their_names(kind: str) -> None:
    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = getattr(torch.nn, kind)(4, 3, 2, bidirectional=kind != "LSTM")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rnn(x)[0]

    net, file, x = Net().eval(), io.BytesIO(), torch.randn(5, 2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (x,), file, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "length", 1: "batch"}},
            opset_version=18,
        )  # fmt: skip
    written = tg.source(onnx.load_from_string(file.getvalue()), x.numpy(), onto="torch")
    assert written.report.ok and written.report.lines < 200
    names = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    assert set(written.weights) == set(names)
    for name, value in written.weights.items():
        np.testing.assert_array_equal(value, names[name])


@pytest.mark.parametrize("onto", ["torch", "jax"])
def test_names_in_a_model_are_no_code(onto: str) -> None:
    """A graph's name is in the docstring, weights are attributes, and the written file is executed."""
    proto = perceptron()
    proto.graph.name = 'x"""\nraise SystemExit(1)\n"""y'
    proto.graph.initializer[0].name = proto.graph.node[0].input[1] = "a'\nraise SystemExit(1)\n#"
    source = tg.source(proto, np.ones((4, 3), np.float32), onto=onto)
    assert source.report.ok
    assert not any(isinstance(node, ast.Raise) for node in ast.walk(ast.parse(source.text)))


def _with_metadata(node: onnx.NodeProto, *modules: tuple[str, str]) -> onnx.NodeProto:
    """Return a node that states its modules, (path, class), as PyTorch's newer exporter does."""
    names, kinds = [*(path for path, _ in modules), node.op_type], [*(kind for _, kind in modules), "aten"]
    for key, value in (("name_scopes", names), ("class_hierarchy", kinds)):
        node.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=str(value))
    return node


def test_what_modules_share_is_computed_before_them() -> None:
    rng, zeros = np.random.default_rng(0), np.zeros(8, np.float32)
    make, nodes, x = onnx.helper.make_node, [], "x"
    weights: dict[str, np.ndarray] = {"blocks.0.proj.bias": zeros, "none": np.float32(0)}
    for i in range(2):
        weights[f"blocks.{i}.proj.weight"] = rng.normal(size=(8, 8)).astype(np.float32)
        block = [("blocks", "ModuleList"), (f"blocks.{i}", "net.Masked")]
        if i == 0:
            nodes += [
                _with_metadata(make("Shape", ["x"], ["n"], start=1, end=2), *block),
                _with_metadata(make("Concat", ["n", "n"], ["nn"], axis=0), *block),
                _with_metadata(make("Expand", ["yes", "nn"], ["ones"]), *block),
                _with_metadata(make("Trilu", ["ones"], ["lower"], upper=0), *block),
                _with_metadata(make("Not", ["lower"], ["hidden"]), *block),
            ]
            weights["yes"] = np.ones((1, 1), np.bool_)
        nodes += [
            _with_metadata(make("Transpose", [x], [f"t{i}"], perm=[0, 2, 1]), *block),
            _with_metadata(make("MatMul", [x, f"t{i}"], [f"s{i}"]), *block),
            _with_metadata(make("Where", ["hidden", "none", f"s{i}"], [f"m{i}"]), *block),
            _with_metadata(make("MatMul", [f"m{i}", x], [f"v{i}"]), *block),
            _with_metadata(
                make("MatMul", [f"v{i}", f"blocks.{i}.proj.weight"], [f"p{i}"]), *block, (f"blocks.{i}.proj", "Linear")
            ),
            _with_metadata(
                make("Add", [f"p{i}", "blocks.0.proj.bias"], [f"y{i}"]), *block, (f"blocks.{i}.proj", "Linear")
            ),
        ]
        x = f"y{i}"
    net = model(nodes, {"x": (FLOAT, ["b", "n", 8])}, {x: (FLOAT, ["b", "n", 8])}, weights)
    source = tg.source(net, rng.normal(size=(2, 5, 8)).astype(np.float32), onto="torch")
    assert source.report.ok, str(source.report)
    assert source.text.count("class Masked") == 1 and source.text.count("tril()") == 1
    assert "nn.ModuleList([Masked() for _ in range(2)])" in source.text
    names = {f"blocks.{i}.proj.{n}" for i in (0, 1) for n in ("bias", "weight")}
    assert set(source.weights) == {*names, "none"}


class Segmenter(torch.nn.Module):
    """Convolutions with group norms, resizing and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.GroupNorm(2, 8), torch.nn.SiLU())
        self.qkv, self.head = torch.nn.Linear(8, 24), torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.avg_pool2d(self.body(x), 2)
        y = torch.nn.functional.interpolate(y, size=x.shape[2:], mode="bilinear")
        b, c, h, w = y.shape
        q, k, v = self.qkv(y.flatten(2).transpose(1, 2)).reshape(b, h * w, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(h * w, h * w))
        return self.head(a.transpose(1, 2).reshape(b, h * w, c))


def test_layers_that_exporters_decompose_are_written_as_layers() -> None:
    torch.manual_seed(0)
    net, file, x = Segmenter().eval(), io.BytesIO(), torch.randn(2, 3, 4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (x,), file, dynamo=False, input_names=["x"], opset_version=18,
            dynamic_axes={"x": {0: "batch", 2: "height", 3: "width"}},
        )  # fmt: skip
    source = tg.source(onnx.load_from_string(file.getvalue()), x.numpy(), onto="torch")
    assert source.report.ok, str(source.report)
    for text in ("nn.GroupNorm(2, 8)", "size=(height, width)", 'mode="bilinear"', "F.scaled_dot_product_attention("):
        assert text in source.text
    assert set(source.weights) == set(net.state_dict())


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("ends", [False, True])
def test_recurrent_modules_are_those_of_pytorch(kind: str, ends: bool) -> None:
    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = getattr(torch.nn, kind)(4, 3, 2, bidirectional=True, batch_first=True)
            self.head = torch.nn.Linear(3 if ends else 6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, state = self.rnn(x)
            return self.head((state[0] if kind == "LSTM" else state) if ends else y)

    net, file, x = Net().eval(), io.BytesIO(), torch.randn(2, 5, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (x,), file, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "batch", 1: "length"}},
            opset_version=18,
        )  # fmt: skip
    written = tg.source(onnx.load_from_string(file.getvalue()), x.numpy(), onto="torch")
    assert written.report.ok
    assert f"nn.{kind}(4, 3, num_layers=2, batch_first=True, bidirectional=True)" in written.text
    assert set(written.weights) == set(net.state_dict())
