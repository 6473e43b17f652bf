"""The examples of README.md run, one after the other."""

import re
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

TEXT = (Path(__file__).parents[1] / "README.md").read_text()


def test_examples(capsys, tmp_path, monkeypatch):
    pytest.importorskip("tensorflow")
    monkeypatch.chdir(tmp_path)  # it writes a file
    model = eqx.nn.MLP(4, 3, 8, 1, key=jax.random.key(0))
    names: dict = {"jax_function": jnp.sin, "equinox_model": model}
    for program in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(program, "README.md", "exec"), names)
    assert names["loss"].item() < 10 and "linear" in capsys.readouterr().out
    np.testing.assert_array_equal(np.asarray(names["x"])[1:, 0], 1.0)  # written by `inplace_update`
    assert names["model"].weight.is_graft_quantized
    torch = names["torch"]
    assert torch.allclose(names["f"](torch.ones(3)), torch.ones(3).sin())
    assert {name for name, _ in names["net"].named_parameters()} >= {"layers.0.weight", "layers.1.bias"}


def test_examples_of_tiers():
    text = (Path(__file__).parents[1] / "docs" / "tiers.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(program, "tiers.md", "exec"), {})
