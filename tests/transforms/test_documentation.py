"""The example of a model in docs/transforms.md runs."""

import pathlib

import numpy as np

import tensorgraft as tg

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "transforms.md"


def test_the_example_of_a_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    section = DOCUMENT.read_text().split("## Models")[1].split("\n## ")[0]
    (program,) = [block.split("```")[0] for block in section.split("```python\n")[1:]]
    names = {"__name__": "example"}
    exec(compile(program, str(DOCUMENT), "exec"), names)
    assert capsys.readouterr().out.startswith("Classifier(\n  body=MLP(")
    assert tg.transforms.tree_equal(names["wider"].scale, names["model"].scale * 2)
    again, _ = names["step"](names["model"], names["x"], names["y"])
    assert float(again) < float(names["value"]) < np.inf
