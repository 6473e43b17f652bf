"""Files as programs: grafted, exported again, converted and inspected on the command line."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import export, lax

import tensorgraft as tg
from tensorgraft.cli.convert import convert, inspect_file
from tensorgraft.frontends.jax import stablehlo
from tensorgraft.frontends.jax.stablehlo import UnsupportedStableHLOError

X = jnp.asarray(np.random.default_rng(0).standard_normal((4, 3)), jnp.float32)


def _windows(x: Any) -> Any:
    image = lax.conv_general_dilated(x[None, None], jnp.ones((2, 1, 2, 2)), (1, 1), "SAME")
    return image, lax.reduce_window(x, -jnp.inf, lax.max, (2, 1), (2, 1), "VALID")


def _indexed(x: Any) -> Any:
    return x[jnp.array([0, 2])], x.at[jnp.array([1, 1])].add(1.0), x.at[1].set(0.0)


def _sorted(x: Any) -> Any:
    return jnp.sort(x, 0), jnp.argsort(x, 1), jnp.argmax(x, 1), jnp.cumsum(x, 0), lax.top_k(x, 2)


def _loops(x: Any) -> Any:
    scanned = lax.scan(lambda c, r: (jnp.tanh(c + r), c), jnp.zeros(3), x)
    branched = lax.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, x)
    return scanned, branched, lax.fori_loop(0, 3, lambda i, y: y + i, x), lax.switch(2, [jnp.sin, jnp.cos, jnp.tan], x)


def _elementwise(x: Any) -> Any:
    narrow = x.astype(jnp.bfloat16), x.astype(jnp.int32) % 3
    return jax.nn.gelu(x), jax.nn.softmax(x), lax.erf(x), jnp.round(x), (x > 0) & (x < 1), lax.lgamma(x), narrow


def _random(x: Any) -> Any:
    return jax.random.normal(jax.random.key(0), x.shape) + x


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("fn", [_windows, _indexed, _sorted, _loops, _elementwise, _random])
def test_stablehlo_operation_by_operation(fn: Any, is_open: bool) -> None:
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("b, 3") if is_open else (4, 3), jnp.float32)
    exported = export.deserialize(bytearray(export.export(jax.jit(fn))(spec).serialize()))
    found, wanted = jax.jit(stablehlo.function_of(exported, "f.stablehlo"))(X), fn(X)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=1e-5, atol=1e-6)


def _written(path: Path, fn: Any) -> Path:
    shape = export.symbolic_shape("b, 3")
    path.write_bytes(export.export(jax.jit(fn))(jax.ShapeDtypeStruct(shape, jnp.float32)).serialize())
    return path


def test_graft_a_stablehlo_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    f = tg.graft(_written(tmp_path / "f.stablehlo", lambda x: jnp.tanh(x).sum(1)), onto="torch")
    x = torch.from_numpy(np.array(X)).requires_grad_()
    out = f(x)
    torch.testing.assert_close(out, torch.tanh(x).sum(1))
    out.sum().backward()
    torch.testing.assert_close(x.grad, 1 - torch.tanh(x.detach()) ** 2)


def test_arguments_of_a_stablehlo_file(tmp_path: Path) -> None:
    f = tg.graft(_written(tmp_path / "f.stablehlo", jnp.tanh), onto="numpy")
    with pytest.raises(TypeError, match=r"tanh: int32\(4, 3\) is given, expected float32\[b,3\]"):
        f(np.ones((4, 3), np.int32))


def test_a_stablehlo_file_without_an_attribute(tmp_path: Path) -> None:
    """The parser accepts any dictionary as the attributes of a composite."""
    path = _written(tmp_path / "f.stablehlo", lambda x: lax.top_k(x, 2)[0])
    path.write_bytes(path.read_bytes().replace(b"\0k\0", b"\0j\0"))
    with pytest.raises(ValueError, match=r"f\.stablehlo is not a file of jax\.export: KeyError"):
        tg.graft(path, onto="numpy")(X)


def test_sizes_that_a_stablehlo_file_does_not_accept(tmp_path: Path) -> None:
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("b, 3", constraints=["b >= 5"]), jnp.float32)
    path = tmp_path / "f.stablehlo"
    path.write_bytes(export.export(jax.jit(jnp.tanh))(spec).serialize())
    with pytest.raises(ValueError, match=r"f\.stablehlo: .*b >= 5"):
        tg.graft(path, onto="numpy")(X)


def test_an_operation_without_a_rule(tmp_path: Path) -> None:
    exported = export.export(jax.jit(jnp.linalg.cholesky))(jax.ShapeDtypeStruct((3, 3), jnp.float32))
    path = tmp_path / "f.stablehlo"
    path.write_bytes(exported.serialize())
    with pytest.raises(UnsupportedStableHLOError, match="StableHLO's custom_call lapack_spotrf_ffi"):
        tg.graft(path, onto="numpy")
    assert inspect_file(str(path)) == 1


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        tg.graft(tmp_path / "f.pt2", onto="jax")
    assert inspect_file(str(tmp_path / "f.onnx")) == 2
    for name, kind in (("f.pt2", "torch.export"), ("f.stablehlo", "jax.export")):
        (tmp_path / name).write_bytes(b"no program")
        with pytest.raises(ValueError, match=f"is not a file of {kind}"):
            tg.graft(tmp_path / name, onto="numpy")
    (tmp_path / "f.txt").write_text("")
    assert inspect_file(str(tmp_path / "f.txt")) == 2


def test_a_file_of_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.GELU()).eval()
    path = tmp_path / "f.pt2"
    torch.export.save(torch.export.export(module, (torch.ones(4, 3),)), path)
    apply, params, buffers = tg.graft(path, onto="jax")
    out, _ = apply(params, buffers, X)
    np.testing.assert_allclose(out, module(torch.from_numpy(np.array(X))).detach(), rtol=1e-5, atol=1e-6)
    report = tg.export(path, torch.ones(4, 3), to="onnx", path=tmp_path / "f.onnx")
    assert report.ok
    assert inspect_file(str(path)) == 0
    assert "parameters: 8 elements in 2 arrays" in capsys.readouterr().out
    assert inspect_file(str(tmp_path / "f.onnx")) == 0
    assert "operators: Gelu 1, Gemm 1, Identity 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "edit",
    [
        lambda p: p["graph_module"]["module_call_graph"][0]["signature"]["forward_arg_names"].append("a b"),
        lambda p: p["graph_module"]["graph"]["nodes"][0].update(name="a b"),
        lambda p: p["graph_module"]["graph"]["tensor_values"].update({"a b": {}}),
        lambda p: p["graph_module"]["graph"]["inputs"][0]["as_tensor"].update(name="a b"),
        lambda p: p["guards_code"].append("a b"),
    ],
)
def test_names_in_a_file_of_pytorch_are_no_code(edit: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PyTorch writes them into the source of a function, which it executes."""
    torch = pytest.importorskip("torch")
    path, changed = tmp_path / "f.pt2", tmp_path / "g.pt2"
    torch.export.save(torch.export.export(torch.nn.Tanh(), (torch.ones(4, 3),)), path)
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(changed, "w") as archive:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("models/model.json"):
                program = json.loads(content)
                edit(program)
                content = json.dumps(program).encode()
            archive.writestr(name, content)
    with pytest.raises(ValueError, match=r"g\.pt2 is not a file of torch\.export: (the text|it has a guard)"):
        tg.graft(changed, onto="torch")
    assert capsys.readouterr().out == ""


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = _written(tmp_path / "f.stablehlo", jnp.tanh)
    options: dict[str, Any] = {"style": None, "weights": None, "training": False, "check_file": False}
    out = tmp_path / "g.stablehlo"
    assert convert(str(source), to="stablehlo", out=str(out), inputs=["4x3"], **options) == 0
    assert "x0: float32[batch, 3]" in capsys.readouterr().out and out.exists()
    assert convert(str(source), to="stablehlo", out=str(out), inputs=["4"], **options) == 2
    assert "Nothing was written" in capsys.readouterr().err
    assert inspect_file(str(out)) == 0
    assert "stablehlo.tanh 1" in capsys.readouterr().out


def test_a_terminal_shows_the_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(_written(tmp_path / "f.stablehlo", jnp.tanh))
    options: dict[str, Any] = {"style": None, "weights": None, "training": False, "check_file": False}
    options |= {"to": "stablehlo", "out": str(tmp_path / "g.stablehlo"), "inputs": ["4x3"]}
    assert convert(source, **options) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    assert convert(source, **options) == 0
    assert "running the file" in capsys.readouterr().err  # steps of less than a tenth of a second may be left out


# ---- files that are broken, or are not trusted -----------------------------------------------------------------------


class Doubled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: Any) -> Any:
        return x[: x.shape[0] - 1] * self.w


def _rewritten(path: Path, change: Any) -> None:
    """Write an archive anew, with members that `change(name, content)` returns."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, change(name, content))


def _pt2(folder: Path) -> Path:
    path = folder / "f.pt2"
    sizes = ({0: torch.export.Dim("n", min=3, max=9)},)
    torch.export.save(torch.export.export(Doubled(), (torch.ones(4, 3),), dynamic_shapes=sizes), path)
    return path


class Marked:
    """Writes a file where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def test_a_program_of_torch_runs_no_pickle(tmp_path: Path) -> None:
    path, marker = _pt2(tmp_path), tmp_path / "run"
    out = io.BytesIO()
    torch.save(((Marked(marker),), {}), out)
    _rewritten(path, lambda name, content: out.getvalue() if name.endswith("model.pt") else content)
    with pytest.raises(
        ValueError, match=r"f\.pt2 is not a file of torch.export: data/sample_inputs.*torch.export.load"
    ):
        tg.graft(path, onto="numpy")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (r'"target": "torch.ops[^"]*"', '"target": "torch.os.getpid"', "calls 'torch.os.getpid', which is no operator"),
        (r'"target": "torch.ops[^"]*"', '"target": "torch.ops.load_library"', "which is no operator"),
        (r'"expr_str": "[^"]*"', '"expr_str": "__import__(\'os\').getpid()"', "no expression of sizes"),
        (r'"expr_str": "[^"]*"', '"expr_str": "Pow(Integer(2), Integer(3))"', "no expression of sizes"),
        (r"builtins.tuple", "collections.defaultdict", "to be imported"),
        (r'"name": "x"', '"name": "x\'"', "no name"),
    ],
)
def test_a_program_of_torch_calls_nothing_but_operators(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = _pt2(tmp_path)
    assert tg.graft(path, onto="numpy")(np.ones((4, 3), np.float32)).shape == (3, 3)
    text = re.compile(old)
    assert any(text.search(x.decode(errors="replace")) for x in _members(path))
    _rewritten(path, lambda name, x: text.sub(lambda _: new, x.decode()).encode() if "models/" in name else x)
    with pytest.raises(ValueError, match=words):
        tg.graft(path, onto="numpy")


def _members(path: Path) -> list[bytes]:
    with zipfile.ZipFile(path) as archive:
        return [archive.read(name) for name in archive.namelist()]


def test_a_compressed_program_of_torch(tmp_path: Path) -> None:
    path = _pt2(tmp_path)
    contents = zipfile.ZipFile(path)
    with zipfile.ZipFile(tmp_path / "g.pt2", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in contents.namelist():
            archive.writestr(name, contents.read(name) + bytes(1 << 20 if "weight_0" in name else 0))
    with pytest.raises(ValueError, match="larger than the file"):
        tg.graft(tmp_path / "g.pt2", onto="numpy")


def test_a_broken_module_of_stablehlo(tmp_path: Path) -> None:
    path = tmp_path / "f.stablehlo"
    data = export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((3,), jnp.float32)).serialize()
    start = data.find(b"ML\xefR")
    path.write_bytes(data[: start + 40] + bytes(40) + data[start + 80 :])
    with pytest.raises(ValueError, match=r"f\.stablehlo is not a file of jax.export: .*does not read its module"):
        tg.graft(path, onto="numpy")
