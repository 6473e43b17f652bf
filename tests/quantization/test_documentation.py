"""The examples of docs/quantization.md run, one after the other."""

import re
from pathlib import Path

import pytest

import tensorgraft as tg

TEXT = (Path(__file__).parents[2] / "docs" / "quantization.md").read_text()


def test_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for program in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(program, "docs/quantization.md", "exec"), names)
    assert names["w"].is_graft_quantized and names["w"][8:24, 5:70].t().is_graft_quantized
    assert names["y"].shape == (5, 64)
    assert [m.weight.is_graft_quantized for m in names["model"] if hasattr(m, "weight")] == [True, False]


@pytest.mark.parametrize("name", re.findall(r"`((?:u?int\d|float8|nf4)\w*)`", TEXT))
def test_names_of_schemes(name):
    from tensorgraft.quantization.scheme import scheme_of

    assert str(scheme_of(name)).startswith(name.partition("_per")[0])
    assert tg.quantization.Scheme
