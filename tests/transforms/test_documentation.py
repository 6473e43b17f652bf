"""The examples of docs/transforms.md and docs/array_api.md run, one after the other."""

import pathlib
import re

import numpy as np
import pytest

import tensorgraft as tg

DOCUMENTS = pathlib.Path(__file__).parents[2] / "docs"


def test_transforms(tmp_path, monkeypatch, capsys):
    for package in ("equinox", "jax", "tensorflow", "torch"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names = run("transforms.md")
    assert capsys.readouterr().out.startswith("Classifier(\n  body=MLP(")
    assert tg.transforms.tree_equal(names["wider"].scale, names["model"].scale * 2)
    again, _ = names["step"](names["model"], np.ones((4, 8), np.float32), np.eye(3, dtype=np.float32)[[0, 1, 2, 0]])
    assert float(again) < float(names["value"]) < np.inf
    assert names["gradient"].tolist() == [3.0, 12.0] and names["row"].tolist() == [1.0, 2.0]


def test_array_api():
    for package in ("jax", "torch"):
        pytest.importorskip(package)
    assert run("array_api.md")["y"].device == "numpy"


def run(page):
    names = {"__name__": "example"}
    for program in re.findall(r"```python\n(.*?)```", (DOCUMENTS / page).read_text(), re.DOTALL):
        exec(compile(program, page, "exec"), names)
    return names
