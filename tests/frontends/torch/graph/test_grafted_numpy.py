"""Modules as functions of NumPy arrays: values against PyTorch, files, and other backends."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.utils._pytree import register_pytree_node

import tensorgraft as tg
from tensorgraft.hub import registry

TOKENS = torch.tensor([[1, 2, 3], [3, 10, 0]])


def close(actual, expected, tolerance=1e-5):
    expected = expected.detach().numpy()
    assert isinstance(actual, np.ndarray)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


class Tied(nn.Module):
    """Embedding and output share their weight; the positions are a buffer that is no part of the state."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("positions", torch.linspace(0, 1, 8), persistent=False)

    def forward(self, tokens, mask=None, scale=1.0):
        logits = self.out(self.block(self.embed(tokens) + self.positions)) * scale
        return {"logits": logits, "rest": [(logits[:, -1],), mask, tokens.shape[1]]}


class Looping(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x = torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x.cos(), (x,))
        zero = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 1.5 + 1), (zero, x))


def looped(module, x):
    x = module.linear(x) if x.sum() > 0 else x.cos()
    for _ in range(3):
        x = x * 1.5 + 1
    return x


def networks():
    torch.manual_seed(0)
    perceptron = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2))
    convolutional = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 5)
    )
    convolutional(torch.randn(4, 1, 6, 6))  # statistics
    return [
        (perceptron, torch.randn(5, 3)),
        (convolutional.eval(), torch.randn(3, 1, 6, 6)),
        (nn.Linear(3, 2, dtype=torch.complex128), torch.randn(4, 3, dtype=torch.complex128)),
        (nn.Flatten(), torch.arange(6).reshape(1, 2, 3)),
    ]


@pytest.mark.parametrize(("module", "x"), networks(), ids=["perceptron", "convolutional", "complex", "integers"])
def test_values(module, x):
    f = tg.graft(module, onto="numpy")
    close(f(x.numpy()), module(x))
    assert list(f.weights) == [n for n, _ in [*module.named_parameters(), *module.named_buffers()]]


def test_recurrent():
    torch.manual_seed(0)
    module, x = nn.LSTM(3, 5, 2, batch_first=True, bidirectional=True), torch.randn(2, 7, 3)
    f = tg.graft(module, onto="numpy")
    out, (h, c) = f(x.numpy())
    expected, (eh, ec) = module(x)
    for a, b in ((out, expected), (h, eh), (c, ec)):
        close(a, b)
    again, _ = f(x.numpy(), (h, c))
    close(again, module(x, (eh, ec))[0])
    (program, _) = f.programs.values()
    assert "xp.scan(" in str(program.program)


def test_structures_static_arguments_and_tied_weights():
    module = Tied().eval()
    f = tg.graft(module, onto="numpy")
    assert "out.weight" not in f.weights
    out = f(TOKENS.numpy(), scale=2.0)
    expected = module(TOKENS, scale=2.0)
    close(out["logits"], expected["logits"])
    close(out["rest"][0][0], expected["rest"][0][0])
    assert out["rest"][1:] == [None, 3]
    close(f(TOKENS.numpy())["logits"], module(TOKENS)["logits"])
    assert len(f.programs) == 2


class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second


register_pytree_node(Pair, lambda p: ([p.first, p.second], None), lambda xs, _: Pair(*xs))


def test_containers_that_pytorch_knows_are_lists():
    class Paired(nn.Module):
        def forward(self, x):
            return {"pair": Pair(x + 1, (x, None))}

    x = np.ones(2, np.float32)
    out = tg.graft(Paired(), onto="numpy")(x)
    first, rest = out["pair"]
    np.testing.assert_array_equal(first, x + 1)
    np.testing.assert_array_equal(rest[0], x)
    assert rest[1] is None


def test_weights_are_those_of_the_call_of_graft_and_results_are_ones_own():
    module = nn.Linear(3, 2, device=tg.device("numpy"))
    f = tg.graft(module, onto="numpy")
    x = np.ones((1, 3), np.float32)
    before = f(x).copy()
    with torch.no_grad():
        module.weight.zero_()
    np.testing.assert_array_equal(f(x), before)
    same = tg.graft(nn.Identity(), onto="numpy")
    y = same(x)
    y[:] = 7
    assert (x == 1).all()
    with pytest.raises(ValueError, match="read-only"):
        f.weights["weight"][:] = 0


def test_control_flow_is_recorded(tmp_path):
    module = Looping()
    f = tg.graft(module, onto="numpy")
    x = torch.randn(3, 4).abs()
    f(x.numpy())
    f.save(tmp_path)
    loaded = tg.load(tmp_path)
    for given in (x, -x):
        for g in (f, loaded):
            i, y = g(given.numpy())
            assert i == 3
            np.testing.assert_allclose(y, looped(module, given).detach(), rtol=1e-5)
    text = str(next(iter(f.programs.values())).program)
    assert "xp.cond(" in text
    assert "xp.while_loop(" in text


def test_training_mode():
    norm = nn.BatchNorm1d(3)
    f = tg.graft(norm, onto="numpy")
    x = torch.randn(4, 3)
    with pytest.raises(ValueError, match=r"BatchNorm1d writes its buffers \(running_mean, .*: call \.eval\(\)"):
        f(x.numpy())
    norm.eval()
    close(f(x.numpy()), norm(x))
    dropout = nn.Dropout(0.5)
    g = tg.graft(dropout, onto="numpy")
    ones = np.ones(1000, np.float32)
    with pytest.raises(tg.TracedValueError, match=r"draws random numbers: call the function with seed=\.\.\."):
        g(ones)
    first, again, other = (g(ones, seed=s) for s in (1, (0, 1), 2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, g(ones, seed=np.array([0, 1])))
    assert (first != other).any()
    assert abs((first == 0).mean() - 0.5) < 0.06
    dropout.eval()
    assert g(ones).all()


RELOAD = """
import sys
import numpy as np
import tensorgraft as tg

f = tg.load("saved")
given = np.load("arrays.npz")
np.testing.assert_allclose(f(given["tokens"], scale=2.0)["logits"], given["logits"], rtol=1e-5, atol=1e-6)
assert not {"torch", "jax", "tensorflow", "scipy"} & set(sys.modules)
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("function")
    module = Tied().eval()
    f = tg.graft(module, onto="numpy")
    f(TOKENS.numpy(), scale=2.0)
    f(TOKENS.numpy()[:1])
    f.save(directory / "saved")
    logits = module(TOKENS, scale=2.0)["logits"].detach().numpy()
    np.savez(directory / "arrays.npz", tokens=TOKENS.numpy(), logits=logits)
    return directory, f, logits


def test_saved_functions_need_numpy_alone(saved):
    directory, _, _ = saved
    done = subprocess.run([sys.executable, "-c", RELOAD], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_saved_files(saved):
    directory, f, _ = saved
    assert sorted(p.name for p in (directory / "saved").iterdir()) == ["constants.npz", "function.json", "weights.npz"]
    with np.load(directory / "saved" / "weights.npz") as weights:
        assert sorted(weights.files) == sorted(f.weights)
        for name in weights.files:
            np.testing.assert_array_equal(weights[name], f.weights[name])
    assert json.loads((directory / "saved" / "function.json").read_text())["name"] == "Tied"


@pytest.mark.parametrize("name", ["torch", "jax", "tensorflow"])
def test_saved_functions_run_on_every_backend(saved, name):
    if name not in registry.backends():
        pytest.skip(f"{name} is not installed")
    directory, _, logits = saved
    f = tg.load(directory / "saved", onto=name)
    made = f(TOKENS.numpy(), scale=2.0)["logits"]
    assert registry.get(name).is_array(made)
    np.testing.assert_allclose(np.asarray(made), logits, rtol=1e-4, atol=1e-5)


def test_bfloat16(tmp_path):
    module, x = nn.Linear(3, 2).to(torch.bfloat16), torch.randn(4, 3)
    f = tg.graft(module, onto="numpy")
    import ml_dtypes

    out = f(x.numpy().astype(ml_dtypes.bfloat16))
    f.save(tmp_path)
    assert out.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(tg.load(tmp_path)(x.numpy().astype(ml_dtypes.bfloat16)), out)
    expected = module(x.to(torch.bfloat16)).float().detach().numpy()
    np.testing.assert_allclose(out.astype(np.float32), expected, rtol=2e-2, atol=1e-2)


@pytest.mark.filterwarnings("ignore:.*deprecated:")  # capturing looks at everything
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_exported_programs():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return torch.cond(x[0, 0] > 0, torch.sin, torch.cos, (self.linear(x),)) + torch.arange(4)

    module, x = Model(), torch.randn(3, 4)
    f = tg.graft(torch.export.export(module, (x,)), onto="numpy")
    for given in (x, -x):
        y = module.linear(given)
        close(f(given.numpy()), (y.sin() if given[0, 0] > 0 else y.cos()) + torch.arange(4))


class Asking(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_errors(saved, tmp_path):
    directory, _, _ = saved
    loaded = tg.load(directory / "saved")
    known = r"Recorded signatures:\n  Tied\(int64\[2, 3\], scale=2.0\)\n  Tied\(int64\[1, 3\]\)"
    with pytest.raises(TypeError, match=rf"Tied\(int64\[1, 2\], n=3\) was not recorded. {known}"):
        loaded(TOKENS.numpy()[:1, :2], n=3)
    linear = tg.graft(nn.Linear(3, 2), onto="numpy")
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        linear(np.ones((1, 4), np.float32))
    with pytest.raises(RuntimeError, match="same dtype"):
        linear(np.ones((1, 3)))
    with pytest.raises(TypeError, match=r"Linear: expected arrays, None, numbers, .* got a torch\.Tensor"):
        linear(torch.ones(1, 3))
    with pytest.raises(ValueError, match="Linear has not been called yet"):
        tg.graft(nn.Linear(3, 2), onto="numpy").save(tmp_path)
    with pytest.raises(tg.TracedValueError, match="needs the value of a"):
        tg.graft(Asking(), onto="numpy")(np.ones(3, np.float32))
    with pytest.raises(FileNotFoundError):
        tg.load(tmp_path / "nothing")
    with pytest.raises(tg.BackendNotAvailableError, match="there is no backend 'caffe'"):
        tg.load(directory / "saved", onto="caffe")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=2), "version 2; this tensorgraft reads 1"),
        (lambda d: d.update(format="tensorgraft program"), "is not a tensorgraft function"),
        (lambda d: d["weights"].pop("embed.weight"), "uses weights that the file does not have"),
        (lambda d: d["weights"]["embed.weight"].__setitem__(1, [1, 1]), "is float32"),
        (lambda d: d["signatures"][0].update(results=["list"]), "more arrays than"),
        (lambda d: d["signatures"][0].update(results=["set", 1]), "'set' is not a kind of container"),
        (lambda d: d["signatures"][0]["program"]["calls"][0].__setitem__(0, "compile"), "is not an operation"),
    ],
)
def test_broken_files_are_refused(saved, tmp_path, change, message):
    _, f, _ = saved
    f.save(tmp_path)
    data = json.loads((tmp_path / "function.json").read_text())
    change(data)
    (tmp_path / "function.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=message):
        tg.load(tmp_path)
