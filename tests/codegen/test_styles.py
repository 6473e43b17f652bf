"""Styles of classes: what is written for small modules, and that it does what they do."""

from __future__ import annotations

import ast

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ruff")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from tensorgraft.codegen.generation import GeneratedSource  # noqa: E402
from tensorgraft.transforms.source import source  # noqa: E402


class Block(nn.Module):
    """A block with a way around it."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.fc = nn.Linear(width, hidden)
        self.proj = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.proj(F.gelu(self.fc(self.ln(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.blocks = nn.ModuleList([Block(8, 16) for _ in range(3)])
        self.wide = Block(8, 32)
        self.scale = nn.Parameter(torch.ones(8))
        self.head = nn.Linear(8, 8, bias=False)
        self.other = nn.Linear(8, 8)
        self.other.weight = self.head.weight

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stem(image).mean((2, 3))
        for block in self.blocks:
            x = block(x)
        return self.other(self.head(self.wide(x) * self.scale))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(12, 5)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, (h, _) = self.lstm(self.embed(tokens))
        return self.out(y), h


class Attention(nn.Module):
    """Uses the parameters of a layer that it does not call, and a state that it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.output = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x.detach().sum((0, 1)))
        return F.linear(self.output(x), self.proj.weight.T, self.proj.bias)


class Scaled(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[0](x) * 2 + self[2](x)


def image() -> torch.Tensor:
    return torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def structure(s: GeneratedSource) -> dict[str, ast.ClassDef]:
    classes = [n for n in ast.parse(s.text).body if isinstance(n, ast.ClassDef)]
    assert len({c.name for c in classes}) == len(classes)
    return {c.name: c for c in classes}


def helpers(s: GeneratedSource) -> set[str]:
    return {n.name for n in ast.parse(s.text).body if isinstance(n, ast.FunctionDef)}


def test_torch_classes() -> None:
    torch.manual_seed(0)
    s = source(Net().train(), image(), onto="torch")
    assert s.report.ok, s.report
    assert list(structure(s)) == ["Block", "Net"]
    assert helpers(s) == {"load_weights", "save_weights"}
    for line in (
        "nn.Sequential(",
        "nn.BatchNorm2d(8)",
        "self.blocks = nn.ModuleList([Block(16) for _ in range(3)])",
        "for block in self.blocks:",
        "self.fc = nn.Linear(8, out_features)",
        "self.head = nn.Linear(8, 8, bias=False)",
        "self.other.weight = self.head.weight",
        "self.scale = nn.Parameter(torch.ones(8))",
        '"""A block with a way around it."""',
    ):
        assert line in s.text, line


def test_torch_files_load_their_checkpoint(tmp_path: object) -> None:
    model = Tagger().eval()
    tokens = torch.arange(12).reshape(2, 6)
    s = source(model, tokens, onto="torch", check=False)
    assert "self.lstm = nn.LSTM(8, 6, num_layers=2, batch_first=True, bidirectional=True)" in s.text
    assert "(" in s.text and list(structure(s)) == ["Tagger"]
    path = f"{tmp_path}/model"
    s.save(f"{path}.py")
    module: dict[str, object] = {}
    exec(s.text, module)
    made = module["load_weights"](f"{path}.safetensors")  # type: ignore[operator]
    made.load_state_dict(model.state_dict())
    for a, b in zip(made(tokens), model(tokens), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    module["save_weights"](made, f"{path}2.safetensors")  # type: ignore[operator]
    module["load_weights"](f"{path}2.safetensors")  # type: ignore[operator]


def test_torch_writes_state_in_place_and_holds_what_is_not_called() -> None:
    s = source(Attention(), torch.randn(2, 3, 4), onto="torch", check=False)
    module: dict[str, object] = {}
    exec(s.text, module)
    made, model = module["Attention"](), Attention()  # type: ignore[operator]
    made.load_state_dict(model.state_dict())
    x = torch.randn(5, 7, 4)
    torch.testing.assert_close(made(x), model(x))
    torch.testing.assert_close(made.seen, model.seen)
    assert "self.seen.copy_(" in s.text and "self.proj = nn.Linear(4, 4)" in s.text


def test_torch_modules_in_a_row() -> None:
    net = nn.Sequential(
        nn.Linear(4, 6), nn.Dropout(0.25), nn.Tanh(), Scaled(nn.Linear(6, 2), nn.ReLU(), nn.Linear(6, 2))
    )
    s = source(net.train(), torch.randn(3, 4), onto="torch", check=False)
    classes = structure(s)
    assert ast.unparse(classes["Sequential"].bases[0]) == "nn.Sequential" == ast.unparse(classes["Scaled"].bases[0])
    assert [n.name for n in classes["Sequential"].body if isinstance(n, ast.FunctionDef)] == ["__init__"]
    assert "nn.Dropout(0.25)" in s.text and "key" not in s.text
    module: dict[str, object] = {}
    exec(s.text, module)
    made = module["Sequential"]()  # type: ignore[operator]
    made.load_state_dict(net.state_dict())
    x = torch.randn(5, 4)
    torch.testing.assert_close(made.eval()(x), net.eval()(x))


@pytest.mark.slow
@pytest.mark.parametrize("style", ["equinox", "flax"])
def test_jax_classes(style: str) -> None:
    pytest.importorskip(style)
    torch.manual_seed(0)
    s = source(Net().train(), image(), onto="jax", style=style)
    assert s.report.ok, s.report
    classes = structure(s)
    assert {"Block", "Net", "BatchNorm2d"} < set(classes)
    assert ast.unparse(classes["Net"].bases[0]) == {"equinox": "eqx.Module", "flax": "nnx.Module"}[style]
    assert "for block in self.blocks:" in s.text


@pytest.mark.slow
@pytest.mark.parametrize("style", [None, "keras"])
def test_tensorflow_classes(style: str | None) -> None:
    pytest.importorskip("tensorflow")
    torch.manual_seed(0)
    s = source(Net().train(), image(), onto="tensorflow", style=style)
    assert s.report.ok, s.report
    assert "self.blocks = [Block(16) for _ in range(3)]" in s.text
    assert ast.unparse(structure(s)["Net"].bases[0]) == ("keras.Model" if style else "tf.Module")


@pytest.mark.slow
def test_names_that_keras_has_itself() -> None:
    s = source(Attention(), torch.randn(2, 3, 4), onto="tensorflow", style="keras", check=False)
    assert "self.output_ = Linear()" in s.text and "rstrip" in s.text


def test_numbers_are_no_names_of_attributes() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    s = source(net, torch.randn(3, 4), onto="jax", style="equinox", check=False)
    assert '"layer0.weight": "0.weight"' in s.text and "self.layer2 = " in s.text


@pytest.mark.parametrize(("style", "base"), [("equinox", "eqx.Module"), ("flax", "nnx.Module")])
def test_jax_structure(style: str, base: str) -> None:
    s = source(Net().train(), image(), onto="jax", style=style, check=False)
    assert {ast.unparse(c.bases[0]) for c in structure(s).values()} == {base}
    assert "Block(16, " in s.text and "for block in self.blocks:" in s.text


def test_styles_that_a_target_lacks_are_told() -> None:
    with pytest.raises(ValueError, match="'functions', 'equinox', 'flax'"):
        source(nn.Linear(2, 2), torch.randn(1, 2), onto="jax", style="keras")
