"""Grafted JAX programs that have state: Flax's nnx modules, as modules and as arguments; what cannot be kept."""

import copy
import io
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import tensorgraft as tg

nnx = pytest.importorskip("flax.nnx")
tf = pytest.importorskip("tensorflow")

X = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
NATIVE = {"torch": torch.from_numpy, "tensorflow": tf.constant, "numpy": np.asarray}


class Net(nnx.Module):
    """Batch statistics, random streams, a layer at two places, a number that is counted."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first, self.norm = nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
        self.drop, self.layers = nnx.Dropout(0.5, rngs=rngs), nnx.List([nnx.Linear(4, 4, rngs=rngs)])
        self.tied, self.calls = self.layers[0], nnx.Variable(0)

    def __call__(self, x):
        self.calls.set_value(self.calls.get_value() + 1)
        return self.tied(self.drop(self.norm(self.layers[0](self.first(x)))))


def close(got, want):
    np.testing.assert_allclose(got.detach() if isinstance(got, torch.Tensor) else got, want, rtol=1e-4, atol=1e-5)


def state_of(net):
    return dict(net.named_buffers()) if isinstance(net, torch.nn.Module) else net.state


@pytest.mark.parametrize("onto", NATIVE)
def test_state_is_written(onto):
    ref, net, x = Net(), tg.graft(Net(), onto=onto), NATIVE[onto](X)
    for _ in range(3):
        close(net(x), ref(X))
    state = state_of(net)
    close(np.asarray(state["norm.mean"]), ref.norm.mean[...])
    assert int(np.asarray(state["calls"])) == 3 and int(np.asarray(state["drop.rngs.count"])) == 3
    if onto == "tensorflow":
        assert len(net.trainable_variables) == 6 and not state["norm.var"].trainable
        close(tf.function(net.__call__)(x), ref(X))


def test_parameters_are_trained_on_pytorch():
    ref, net, x = Net(), tg.graft(Net(), onto="torch"), torch.from_numpy(X)
    names = {"first", "norm", "layers.0"}
    assert {name.rpartition(".")[0] for name, _ in net.named_parameters()} == names and len(list(net.parameters())) == 6
    gradient = nnx.grad(lambda m: (m(X) ** 2).sum())(ref)
    (net(x) ** 2).sum().backward()
    close(net.get_parameter("layers.0.kernel").grad, gradient["layers"][0]["kernel"][...])
    (net(x) ** 2).sum().backward()  # what was written is not what the second pass has kept


def test_modes_are_those_of_the_modules():
    ref, net, x = Net(), tg.graft(Net(), onto="torch"), torch.from_numpy(X)
    ref.norm.eval()
    net.norm.eval()
    close(net(x), ref(X))
    ref.eval()
    close(net.eval()(x), ref(X))
    ref.train()
    close(net.train()(x), ref(X))
    evaluated = Net()
    evaluated.eval()
    assert not tg.graft(evaluated, onto="torch").training
    on_numpy = tg.graft(evaluated, onto="numpy")  # has no modes, and asks the model
    close(on_numpy(X), evaluated(X))
    evaluated.train()
    assert not np.array_equal(on_numpy(X), on_numpy(X))


def test_copies_and_files():
    net, x = tg.graft(Net(), onto="torch"), torch.from_numpy(X)
    net(x)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    others = [torch.load(file, weights_only=False), copy.deepcopy(net), pickle.loads(pickle.dumps(net))]
    for _ in range(2):
        want = net(x)
        assert all(torch.equal(other(x), want) for other in others)
    on_numpy = tg.graft(Net(), onto="numpy")
    assert np.array_equal(pickle.loads(pickle.dumps(on_numpy))(X), on_numpy(X))


@pytest.mark.parametrize("onto", NATIVE)
def test_model_and_optimizer_as_arguments(onto):
    def train(model, optimizer, x):
        loss, gradient = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
        optimizer.update(model, gradient)
        return loss

    model, ref = Net(), Net()
    own, right = (nnx.Optimizer(m, optax.sgd(1e-2, momentum=0.9), wrt=nnx.Param) for m in (model, ref))
    step = tg.graft(train, onto=onto)
    for _ in range(3):
        close(step(model, own, NATIVE[onto](X)), train(ref, right, X))
    for got, want in zip(jax.tree.leaves(nnx.state(model)), jax.tree.leaves(nnx.state(ref)), strict=True):
        assert isinstance(got, jax.Array)
        if not jnp.issubdtype(got.dtype, jax.dtypes.prng_key):
            close(got, want)
    assert int(own.step[...]) == 3 and model.tied is model.layers[0]


def test_what_is_new_is_seen_of_an_argument_and_refused_of_a_module():
    class Sows(nnx.Module):
        def __init__(self):
            self.seen = 0

        def __call__(self, x):
            self.seen += 1
            self.last = nnx.Intermediate(x.sum())
            return x

    model, call = Sows(), tg.graft(lambda m, x: m(x), onto="torch")
    for _ in range(2):
        call(model, torch.ones(3))
    assert model.seen == 2 and float(model.last[...]) == 3
    with pytest.raises(tg.TracedValueError, match="changes more of itself"):
        tg.graft(Sows(), onto="torch")(torch.ones(3))
    frozen, x = nnx.BatchNorm(3, rngs=nnx.Rngs(0)), tf.constant(X)
    with pytest.raises(tg.TracedValueError, match="there are no values yet"):
        tf.function(lambda x: tg.graft(lambda m, x: m(x), onto="tensorflow")(frozen, x), autograph=False)(x)


def test_streams_and_caches():
    rngs, net = nnx.Rngs(0), tg.graft(nnx.Dropout(0.5), onto="torch")
    one, two = (net(torch.ones(64), rngs=rngs) for _ in range(2))
    assert not torch.equal(one, two) and int(rngs.default.count[...]) == 2
    heads = [nnx.MultiHeadAttention(2, 4, decode=True, rngs=nnx.Rngs(0)) for _ in range(2)]
    for head in heads:
        head.init_cache((1, 3, 4))
    attend = tg.graft(heads[0], onto="torch")
    for x in np.random.default_rng(0).standard_normal((3, 1, 1, 4)).astype(np.float32):
        close(attend(torch.from_numpy(x)), heads[1](x))


def test_what_is_shown():
    text = str(tg.graft(Net(), onto="torch"))
    assert "(first): Linear(bias=float32[4], kernel=float32[3,4], in_features=3" in text and text.startswith("Net(")


def test_on_the_device_of_jax():
    ref, net = Net(), tg.graft(Net(), onto="torch").to(tg.device("jax"))
    x = torch.from_numpy(X).to(tg.device("jax"))
    for _ in range(2):
        close(net(x).cpu(), ref(X))
    close(net.norm.mean.cpu(), ref.norm.mean[...])


@pytest.mark.parametrize("onto", NATIVE)
def test_split_and_merge(onto):
    """The functional way: the model is made of its state inside, and its new state is a result."""
    graph, state = nnx.split(Net())

    def call(state, x):
        net = nnx.merge(graph, state)
        y = net(x)
        return y, nnx.state(net, nnx.BatchStat)

    # native values first: outside of jit nnx writes the state that it was given
    want, statistics = jax.jit(call)(state, X)
    got, written = tg.graft(call, onto=onto)(state, NATIVE[onto](X))
    close(got, want)
    for a, b in zip(jax.tree.leaves(written), jax.tree.leaves(statistics), strict=True):
        close(np.asarray(a.detach() if isinstance(a, torch.Tensor) else a), b)
