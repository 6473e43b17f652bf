"""Modules as `tf.Module`s: values, derivatives, state, training and SavedModel against PyTorch."""

from __future__ import annotations

import copy
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tensorgraft as tg

tf = pytest.importorskip("tensorflow")

MODES = ["eager", "function", "compiled"]


def in_mode(fn, mode):
    return fn if mode == "eager" else tf.function(fn, jit_compile=mode == "compiled")


def close(actual, expected, tolerance=1e-5):
    expected = expected.detach().numpy()
    scale = max(float(np.abs(expected).max(initial=0)), 1.0)
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=tolerance, atol=tolerance * scale)
    assert np.asarray(actual).dtype == expected.dtype


def parameters_of(module, variables):
    """The module's parameters in the order of TensorFlow's variables."""
    named = dict(module.named_parameters())
    return [named[v.name.removesuffix(":0")] for v in variables]


def convolutional():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 5), nn.LayerNorm(5)
    )


class Tied(nn.Module):
    """Embedding and output share their weight; the positions are a buffer that is no part of the state."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("positions", torch.linspace(0, 1, 8), persistent=False)

    def forward(self, tokens, mask=None):
        logits = self.out(self.block(self.embed(tokens) + self.positions))
        return {"logits": logits, "last": (logits[:, -1], mask)}


TOKENS = torch.tensor([[1, 2, 3], [3, 10, 0]])


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_values_gradients_and_buffers(mode):
    module = convolutional()
    m = tg.graft(module, onto="tensorflow")
    here = copy.deepcopy(module)

    def loss(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = m(x)
            value = tf.reduce_sum(tf.sin(out))
        return out, tape.gradient(value, [x, *m.trainable_variables])

    step = in_mode(loss, mode)
    for k in range(2):
        x = torch.randn(3, 1, 6, 6, requires_grad=True)
        here.zero_grad()
        expected = here(x)
        expected.sin().sum().backward()
        out, (dx, *gradients) = step(tf.constant(x.detach().numpy()))
        close(out, expected)
        close(dx, x.grad)
        for p, g in zip(parameters_of(here, m.trainable_variables), gradients, strict=True):
            close(g, p.grad)
        for name, b in here.named_buffers():
            close(m.state[name], b)
        assert m.state["1.num_batches_tracked"].numpy() == k + 1
    assert not module[1].num_batches_tracked  # the module itself is left as it is


def test_state_is_named_as_in_state_dict():
    module = Tied()
    module.block.norm1.weight.requires_grad_(False)
    m = tg.graft(module, onto="tensorflow")
    assert isinstance(m, tf.Module)
    assert m.name.partition("_")[0] == "Tied"
    assert set(m.state) == {n for n, _ in module.named_parameters()} | {"positions"}  # the tied one once
    assert all(m.state[name].name == f"{name}:0" for name in m.state)
    assert {v.name for v in m.non_trainable_variables} == {"positions:0", "block.norm1.weight:0"}
    assert len(m.trainable_variables) == len(m.state) - 2
    assert isinstance(m.state["embed.weight"], tf.Variable)


def test_modes_are_asked_for_at_each_call_and_random_numbers_come_from_a_seed():
    module = Tied()
    m = tg.graft(module, onto="tensorflow")
    tokens = tf.constant(TOKENS.numpy())
    first, again, other = (m(tokens, seed=s)["logits"] for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    in_graph = tf.function(lambda seed: m(tokens, seed=seed)["logits"])
    np.testing.assert_allclose(in_graph(tf.constant([0, 1])), first, rtol=1e-4, atol=1e-5)
    with pytest.raises(tg.TracedValueError, match=r"draws random numbers: call the function with seed=\.\.\."):
        m(tokens)
    with pytest.raises(TypeError, match="a seed that is an int or an array of two integers"):
        m(tokens, seed="no")
    module.eval()
    out = m(tokens)
    expected = module(TOKENS)
    close(out["logits"], expected["logits"])
    close(out["last"][0], expected["last"][0])
    assert out["last"][1] is None
    dropped = tg.graft(nn.Dropout(0.25), onto="tensorflow")(tf.ones(4000), seed=0)
    assert abs(float(tf.reduce_mean(dropped)) - 1) < 0.06


def test_recurrent():
    torch.manual_seed(0)
    module = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)
    m = tg.graft(module, onto="tensorflow")
    x = torch.randn(2, 5, 3)

    def loss(x):
        with tf.GradientTape() as tape:
            out, (h, c) = m(x)
            value = tf.reduce_sum(out * out) + tf.reduce_sum(tf.sin(h) + c)
        return out, h, tape.gradient(value, m.trainable_variables)

    out, h, gradients = in_mode(loss, "compiled")(tf.constant(x.numpy()))
    expected, (eh, ec) = module(x)
    ((expected**2).sum() + (eh.sin() + ec).sum()).backward()
    close(out, expected)
    close(h, eh)
    for p, g in zip(parameters_of(module, m.trainable_variables), gradients, strict=True):
        close(g, p.grad)


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_training(mode):
    """Steps of gradient descent, batch statistics included."""
    module = convolutional()
    m = tg.graft(module, onto="tensorflow")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def train(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, m(x)))
        for v, g in zip(m.trainable_variables, tape.gradient(loss, m.trainable_variables), strict=True):
            v.assign_sub(0.1 * g)
        return loss

    train = in_mode(train, mode)
    for _ in range(4):
        x, y = torch.randn(8, 1, 6, 6), torch.randint(0, 5, (8,))
        loss = F.cross_entropy(module(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        close(train(tf.constant(x.numpy()), tf.constant(y.numpy())), loss, 1e-4)
    for name, t in module.state_dict().items():
        close(m.state[name], t, 1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_second_derivatives(mode):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    m = tg.graft(module, onto="tensorflow")
    weights = [m.state["0.weight"], m.state["2.weight"]]

    def penalty(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = tf.reduce_sum(m(x))
            g = inner.gradient(value, x)
            square = tf.reduce_sum(g * g)
        return outer.gradient(square, [x, *weights])

    x = torch.randn(5, 3, requires_grad=True)
    (g,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    expected = torch.autograd.grad((g * g).sum(), [x, module[0].weight, module[2].weight])
    for a, b in zip(in_mode(penalty, mode)(tf.constant(x.detach().numpy())), expected, strict=True):
        close(a, b)


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_forward_mode_and_third_derivatives(mode):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    m = tg.graft(module, onto="tensorflow")
    run = in_mode(lambda x: m(x), mode)
    x, v = torch.randn(4, 3), torch.randn(4, 3)
    tx, tv = tf.constant(x.numpy()), tf.constant(v.numpy())
    with tf.autodiff.ForwardAccumulator(tx, tv) as forward:
        with tf.GradientTape() as tape:
            tape.watch(tx)
            out = run(tx)
            value = tf.reduce_sum(tf.sin(out))
        g = tape.gradient(value, tx)

    def sines(x):
        return module(x).sin().sum()

    close(forward.jvp(out), torch.func.jvp(module, (x,), (v,))[1])
    close(forward.jvp(g), torch.func.jvp(torch.func.grad(sines), (x,), (v,))[1])

    def third(x):
        with tf.GradientTape() as first:
            first.watch(x)
            with tf.GradientTape() as second:
                second.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    value = tf.reduce_sum(run(x))
                a = tf.reduce_sum(inner.gradient(value, x) ** 2)
            b = tf.reduce_sum(second.gradient(a, x) ** 2)
        return first.gradient(b, x)

    def square(fn):
        return lambda x: (torch.func.grad(fn)(x) ** 2).sum()

    close(third(tx), torch.func.grad(square(square(lambda x: module(x).sum())))(x), 1e-4)


def test_the_derivative_is_pytorchs():
    """At the kinks TensorFlow would differentiate what computes it; PyTorch has a formula."""
    m = tg.graft(nn.Hardtanh(), onto="tensorflow")
    x = torch.tensor([-1.0, 0.5, 1.0, 2.0], requires_grad=True)
    nn.Hardtanh()(x).sum().backward()
    v = tf.Variable(x.detach().numpy())
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(m(v))
    close(tape.gradient(value, v), x.grad)


class Rotation(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))

    def forward(self, z):
        return (self.weight * z).real, z.dtype.is_complex


def test_complex_gradients_follow_each_framework():
    """TensorFlow's are conjugated, as PyTorch's are; JAX's are not."""
    module = Rotation()
    z = torch.tensor([1 - 1j, 0.5 + 2j], requires_grad=True)
    out, flag = module(z)
    (out**2).sum().backward()
    m = tg.graft(module, onto="tensorflow")
    v = tf.Variable(z.detach().numpy())
    with tf.GradientTape() as tape:
        made, is_complex = m(v)
        value = tf.reduce_sum(made**2)
    dz, dw = tape.gradient(value, [v, m.state["weight"]])
    close(dz, z.grad)
    close(dw, module.weight.grad)
    assert (flag, is_complex) == (True, True)
    jax = pytest.importorskip("jax")
    apply, params, buffers = tg.graft(module, onto="jax")
    gradient = jax.grad(lambda p: (apply(p, buffers, jax.numpy.asarray(z.detach().numpy()))[0][0] ** 2).sum())(params)
    close(gradient["weight"], module.weight.grad.conj().resolve_conj())


def test_other_dtypes():
    module = nn.Sequential(nn.Linear(3, 2), nn.GELU()).to(torch.bfloat16)
    m = tg.graft(module, onto="tensorflow")
    x = torch.randn(4, 3, dtype=torch.bfloat16)
    out = m(tf.cast(tf.constant(x.float().numpy()), tf.bfloat16))
    assert out.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(out, tf.float32), module(x).float().detach().numpy(), rtol=2e-2, atol=1e-2)
    wide = tg.graft(nn.Linear(3, 2).double(), onto="tensorflow")
    assert wide(tf.zeros((1, 3), tf.float64)).dtype == tf.float64
    indices = tg.graft(nn.MaxPool1d(2, return_indices=True), onto="tensorflow")(tf.zeros((1, 1, 4)))[1]
    assert indices.dtype == tf.int64


def test_arguments_of_numpy_and_static_ones():
    class Scaled(nn.Module):
        def forward(self, x, *, twice=False, more=None):
            return x * 2 if twice else x, more

    m = tg.graft(Scaled(), onto="tensorflow")
    x = np.ones((1, 3), np.float32)
    with tf.GradientTape():
        out, more = m(x, twice=True, more={"a": 1, "b": [tf.ones(2)]})
    close(out, torch.full((1, 3), 2.0))
    close(more["b"][0], torch.ones(2))
    assert more["a"] == 1
    close(tf.function(lambda: m(x)[0])(), torch.ones(1, 3))
    close(tf.function(m)(tf.Variable(x))[0], torch.ones(1, 3))


@pytest.mark.filterwarnings("ignore:.*deprecated:")  # capturing looks at everything
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_exported_programs():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls.add_(1)
            return torch.cond(x[0, 0] > 0, torch.sin, torch.cos, (self.linear(x),)) + torch.arange(4)

    torch.manual_seed(0)
    module, x = Model(), torch.randn(3, 4)
    m = tg.graft(torch.export.export(module, (x,)), onto="tensorflow")
    run = tf.function(m)
    for given in (x, -x):
        y = module.linear(given)
        expected = (y.sin() if given[0, 0] > 0 else y.cos()) + torch.arange(4)
        close(run(tf.constant(given.numpy())), expected)
    assert m.state["calls"].numpy() == [2.0]


RELOAD = """
import sys
import types
import numpy as np, tensorflow as tf

given = np.load("arrays.npz")
loaded = tf.saved_model.load("saved")
tokens = tf.constant(given["tokens"])
np.testing.assert_allclose(loaded(tokens)["logits"], given["logits"], rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(loaded.signatures["serving_default"](tokens=tokens)["logits"], given["logits"], rtol=1e-4, atol=1e-5)
weight = loaded.state["embed.weight"]
with tf.GradientTape() as tape:
    value = tf.reduce_sum(tf.sin(loaded(tokens)["logits"]))
np.testing.assert_allclose(tf.convert_to_tensor(tape.gradient(value, weight)), given["gradient"], rtol=1e-3, atol=1e-4)

norm = tf.saved_model.load("norm")
norm(tf.constant(given["x"]))
np.testing.assert_allclose(norm.state["running_mean"], given["running_mean"], rtol=1e-5, atol=1e-6)
assert not {"torch", "tensorgraft"} & set(sys.modules)
"""  # noqa: E501


def test_saved_models_need_tensorflow_alone(tmp_path):
    module = Tied().eval()
    m = tg.graft(module, onto="tensorflow")
    spec = tf.TensorSpec((2, 3), tf.int64, name="tokens")
    serving = tf.function(lambda tokens: {"logits": m(tokens)["logits"]}).get_concrete_function(spec)
    m.get_concrete_function(spec)
    tf.saved_model.save(m, str(tmp_path / "saved"), signatures=serving)
    logits = module(TOKENS)["logits"]
    logits.sin().sum().backward()

    norm = nn.BatchNorm1d(3)
    n = tg.graft(norm, onto="tensorflow")
    signature = n.get_concrete_function(tf.TensorSpec((5, 3), tf.float32))
    tf.saved_model.save(n, str(tmp_path / "norm"), signatures=signature)
    x = torch.randn(5, 3)
    norm(x)
    np.savez(
        tmp_path / "arrays.npz",
        tokens=TOKENS.numpy(),
        logits=logits.detach().numpy(),
        gradient=module.embed.weight.grad.numpy(),
        x=x.numpy(),
        running_mean=norm.running_mean.numpy(),
    )
    done = subprocess.run([sys.executable, "-c", RELOAD], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_checkpoints(tmp_path):
    module = nn.Linear(3, 2)
    m = tg.graft(module, onto="tensorflow")
    path = tf.train.Checkpoint(m).write(str(tmp_path / "checkpoint"))
    other = tg.graft(nn.Linear(3, 2), onto="tensorflow")
    tf.train.Checkpoint(other).read(path).assert_consumed()
    close(other.state["weight"], module.weight)


class Asking(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_errors():
    m = tg.graft(nn.Linear(3, 2), onto="tensorflow")
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        m(tf.ones((1, 4)))
    with pytest.raises(RuntimeError, match="same dtype"):
        m(tf.ones((1, 3), tf.float64))
    with pytest.raises(ValueError, match=r"an argument of Linear has the shape \(None, 3\)"):
        m.get_concrete_function(tf.TensorSpec((None, 3)))
    for odd in (torch.ones(1, 3), tf.ragged.constant([[1.0]])):
        with pytest.raises(TypeError, match=f"an argument of Linear is a .*{type(odd).__name__}: expected arrays of"):
            m(odd)
    with pytest.raises(tg.TracedValueError, match="needs the value of a"):
        tg.graft(Asking(), onto="tensorflow")(tf.ones(3))
    with pytest.raises(TypeError, match=r"a torch\.nn\.Module onto 'jax', 'tensorflow' or 'numpy', not onto 'torch'"):
        tg.graft(nn.Linear(3, 2), onto="torch")
    with pytest.raises(tg.BackendNotAvailableError, match="there is no backend 'caffe'"):
        tg.graft(nn.Linear(3, 2), onto="caffe")
    with pytest.raises(ValueError, match="the backend tensorflow has 1 device here"):
        tg.graft(nn.Linear(3, 2), onto="tensorflow:7")


@pytest.mark.parametrize("name", ["max", "median", "prod", "cumprod"])
def test_derivatives_ask_for_no_values(name):
    class Module(torch.nn.Module):
        def forward(self, x):
            return getattr(x, name)(*([0] if name == "cumprod" else [])).sum()

    x = torch.tensor([1.0, 3.0, 3.0, 0.0], requires_grad=True)
    Module()(x).backward()
    variable, module = tf.Variable(x.detach().numpy()), tg.graft(Module(), onto="tensorflow")
    with tf.GradientTape() as tape:
        y = module(variable)
    np.testing.assert_allclose(tape.gradient(y, variable), x.grad, rtol=1e-6)


def test_results_that_are_objects_are_made_anew():
    class Module(torch.nn.Linear):
        def forward(self, x):
            return types.SimpleNamespace(y=super().forward(x))

    m = tg.graft(Module(2, 2), onto="tensorflow")
    with tf.GradientTape() as tape:
        first = m(tf.ones((1, 2)))
        total = tf.reduce_sum(first.y)
    second = m(2 * tf.ones((1, 2)))
    assert first is not second and tf.is_tensor(first.y) and not np.allclose(first.y, second.y)
    assert [g.numpy().tolist() for g in tape.gradient(total, m.trainable_variables)] == [[[1, 1], [1, 1]], [1, 1]]
