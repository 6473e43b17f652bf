"""Programs of every front end, exported to every format, run in its own runtime."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.exporting.programs import PROGRAMS

import tensorgraft as tg

FORMATS = ("stablehlo", "onnx", "saved_model", "pt2", "litert")
# what LiteRT does not express: programs that write their state
UNWRITTEN = {"litert": ("torch_batch_norm", "keras_step")}
# that take a second or two each; the others are slow
QUICK = {
    "litert": ("keras_mlp",),
    "onnx": (
        "torch_cnn",
        "bert",
        "nnx_cnn",
        "keras_mlp",
        "array_api",
        "equinox_mlp",
        "jax_step",
        "torch_step",
        "torch_batch_norm",
        "keras_step",
    ),
    "stablehlo": ("torch_cnn", "torch_batch_norm", "bert", "equinox_mlp", "keras_step", "array_api", "jax_step"),
    "saved_model": ("array_api", "keras_step"),
    "pt2": ("torch_cnn", "torch_batch_norm", "nnx_cnn", "array_api", "torch_step"),
}


@pytest.mark.parametrize(
    ("name", "to"),
    [
        pytest.param(name, to, marks=() if name in QUICK[to] else pytest.mark.slow)
        for to in FORMATS
        for name in PROGRAMS
        if name not in UNWRITTEN.get(to, ())
    ],
)
def test_export(name: str, to: str, tmp_path: Path) -> None:
    program, args, kwargs = PROGRAMS[name]()
    path = tmp_path / f"program.{to}"
    report = tg.export(program, *args, to=to, path=path, **kwargs)
    assert report.ok and report.rows, report
    assert path.exists()
    written = json.loads((tmp_path / "program.export.json").read_text())
    assert written["ok"] and written["format"] == to
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".part")]
    open_in_file = {n for x in report.inputs for n in x.shape if isinstance(n, str)}
    assert open_in_file, report
