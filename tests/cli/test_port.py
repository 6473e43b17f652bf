"""`tensorgraft port`, `convert-weights`, and `compare` of two programs."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

PROGRAM = """
    import jax, torch, numpy as np
    from torch import nn

    torch.manual_seed(0)

    class Source(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.norm, self.two = nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 3)
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.two(self.drop(self.norm(torch.tanh(self.one(x)))))

    def network(params, x, eps=1e-5):
        h = jax.numpy.tanh(x @ params["in"]["kernel"] + params["in"]["bias"])
        h = (h - h.mean(-1, keepdims=True)) / jax.numpy.sqrt(h.var(-1, keepdims=True) + eps)
        h = h * params["norm"]["scale"] + params["norm"]["bias"]
        return h @ params["out"]["kernel"] + params["out"]["bias"]

    def other(params, x):
        return network(params, x, 1e-3)

    WEIGHTS = {
        "in": {"kernel": np.ones((5, 8), "f"), "bias": np.ones(8, "f")},
        "norm": {"scale": np.ones(8, "f"), "bias": np.zeros(8, "f")},
        "out": {"kernel": np.ones((8, 3), "f"), "bias": np.zeros(3, "f")},
    }
    source = Source().eval()
    target = network, WEIGHTS
    another = other, WEIGHTS
    changed = Source()
    changed.load_state_dict(source.state_dict())
    changed.norm.eps = 1e-2
    same = Source()
    same.load_state_dict(source.state_dict())
    unlike = (lambda params, x: x @ params["w"], {"w": np.ones((5, 3), "f")})
"""


def test_a_mapping_and_a_checkpoint(tensorgraft, script, tmp_path):
    path = script(PROGRAM)
    rng = np.random.default_rng(0)
    shapes = {"one.weight": (8, 5), "one.bias": (8,), "norm.weight": (8,), "norm.bias": (8,), "two.weight": (3, 8),
              "two.bias": (3,)}  # fmt: skip
    arrays = {name: rng.standard_normal(shape).astype("f") for name, shape in shapes.items()}
    save_file(arrays, tmp_path / "in.safetensors")
    done = tensorgraft(
        "port", f"{path}:source", f"{path}:target", "--input", "4x5", "--save", "mapping.json", "--converter",
        "convert.py", "--checkpoint", "in.safetensors", "--out", "out.safetensors", "--table",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "one.weight.T" in done.stdout and "equal to rounding" in done.stdout
    out = load_file(tmp_path / "out.safetensors")
    assert len(out) == 6
    by_shape = {(5, 8): "one.weight", (8, 3): "two.weight"}
    for x in out.values():
        if x.shape in by_shape:
            np.testing.assert_array_equal(x, arrays[by_shape[x.shape]].T)
    assert "def convert(source)" in (tmp_path / "convert.py").read_text()

    again = tensorgraft("convert-weights", "mapping.json", "in.safetensors", "--out", "again.safetensors")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "out.safetensors").read_bytes()

    del arrays["two.bias"]
    save_file(arrays, tmp_path / "less.safetensors")
    refused = tensorgraft("convert-weights", "mapping.json", "less.safetensors", "--out", "none.safetensors")
    assert refused.returncode == 2 and "lacks two.bias" in refused.stderr
    assert not (tmp_path / "none.safetensors").exists()
    assert json.loads((tmp_path / "mapping.json").read_text())["entries"]


def test_what_differs_is_said(tensorgraft, script, tmp_path):
    path = script(PROGRAM)
    done = tensorgraft("port", f"{path}:source", f"{path}:another", "--input", "4x5")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "first difference" in done.stdout and "0.001 here, 1e-05 there" in done.stdout
    done = tensorgraft("compare", f"{path}:source", f"{path}:changed", "--input", "4x5")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "first difference" in done.stdout and "0.01 here, 1e-05 there" in done.stdout
    done = tensorgraft("compare", f"{path}:source", f"{path}:same", "--input", "4x5", "--table")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DIFFERS" not in done.stdout and "equal to rounding" in done.stdout


def test_unmatched_parameters(tensorgraft, script, tmp_path):
    path = script(PROGRAM)
    done = tensorgraft("port", f"{path}:source", f"{path}:unlike", "--input", "4x5", "--converter", "convert.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "(unmatched)" in done.stdout and "nothing is converted" in done.stderr
    assert not (tmp_path / "convert.py").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["port", "{}:source", "{}:target"], "needs an example of its arguments"),
        (["port", "{}:source", "{}:missing", "--input", "4x5"], "has no 'missing'"),
        (["port", "{}:source", "{}:target", "--input", "4x5", "--hint", "x"], "expected TARGET=SOURCE"),
        (
            ["port", "{}:source", "{}:target", "--input", "4x5", "--hint", "x=y"],
            "hints name x, which the target has not",
        ),
        (["port", "{}:source", "{}:target", "--input", "4x5", "--out", "o.safetensors"], "go together"),
        (["port", "{}:source", "{}:target", "--input", "x=4x5"], "by position"),
        (["compare", "{}:source", "--input", "4x5"], "are for two programs"),
        (["compare", "{}:source", "{}:same", "{}:same", "--input", "4x5"], "not more"),
        (["convert-weights", "{}", "in", "--out", "out"], "script.py is no mapping"),
    ],
)
def test_wrong_usage(tensorgraft_here, script, args, message):
    path = script(PROGRAM)
    done = tensorgraft_here(*(a.format(path) for a in args))
    assert done.exit_code == 2, done.stdout + done.stderr
    words = " ".join(done.stderr.replace("│", " ").split())
    assert message in words and "Traceback" not in words
