"""Adam with moments of 8 bits for arrays: against Optax's, and against the class for PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optree
import pytest
import torch

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft import nn
from tensorgraft.quantization import adam8bit
from tensorgraft.transforms import apply_updates, filter, filter_jit, filter_value_and_grad, is_inexact_array

ON = pytest.mark.parametrize("backend", ["numpy", "torch", "jax", "tensorflow"])
RNG = np.random.default_rng(0)
TREE = {"w": RNG.standard_normal((70, 90)).astype(np.float32), "b": RNG.standard_normal(90).astype(np.float32)}
GRADS = [
    {k: (RNG.standard_normal(v.shape) * np.logspace(-6, 0, 90)).astype(np.float32) for k, v in TREE.items()}
    for _ in range(6)
]


@pytest.fixture(autouse=True)
def graphs_run_as_they_are(monkeypatch):
    """Inductor takes seconds a program."""
    monkeypatch.setattr("tensorgraft.backends.torch.program.compiler", lambda: "none")


def steps(init, update, params, grads, place):
    """All updates, as NumPy arrays, and the last state."""
    params = optree.tree_map(place, params)
    state, found = init(params), []
    for g in grads:
        updates, state = update(optree.tree_map(place, g), state, params)
        params = optree.tree_map(lambda p, u: p + u, params, updates)
        found.append(optree.tree_map(np.asarray, updates))
    return found, state


def near(found, want, rtol):
    for a, b in zip(optree.tree_leaves(found), optree.tree_leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * np.abs(b).max())


@pytest.mark.parametrize(
    ("backend", "compiled"), [("numpy", False), ("torch", True), ("jax", False), ("jax", True), ("tensorflow", True)]
)
def test_the_numbers_are_those_of_the_class_for_pytorch(backend, compiled):
    init, update = adam8bit(0.01, weight_decay=0.1)
    update = tg.jit(update) if compiled else update
    found, state = steps(init, update, TREE, GRADS, lambda a: xp.asarray(a, device=backend))
    assert str(state.mu["w"].codes.dtype) == "uint8" and str(state.mu["w"].codes.device).startswith(backend)
    assert state.mu["b"].shape == (90,) and int(state.count) == len(GRADS)

    params = {k: torch.nn.Parameter(torch.tensor(TREE[k])) for k in sorted(TREE)}
    optimizer = tg.quantization.Adam8bit(params.values(), 0.01, weight_decay=0.1, decoupled_weight_decay=True)
    for grads, updates in zip(GRADS, found, strict=True):
        before = {k: p.detach().clone() for k, p in params.items()}
        for k, p in params.items():
            p.grad = torch.tensor(grads[k])
        optimizer.step()
        near(updates, {k: (p.detach() - before[k]).numpy() for k, p in params.items()}, 2e-4)
    moment = optimizer.state[params["w"]]
    assert np.mean(np.asarray(state.mu["w"].codes) != moment["exp_avg"].numpy()) < 1e-3
    assert np.mean(np.asarray(state.nu["w"].codes) != moment["root_exp_avg_sq"].numpy()) < 1e-3


def test_small_arrays_are_optaxs_adam():
    small = {"b": TREE["b"]}
    grads = [{"b": g["b"]} for g in GRADS]
    found, _ = steps(*adam8bit(0.01), small, grads, lambda a: xp.asarray(a, device="numpy"))
    want, _ = steps(*optax.adam(0.01), small, grads, jnp.asarray)
    near(found, want, 1e-4)  # Optax takes 1 - 0.999^n of float32 numbers


@pytest.mark.parametrize("compiled", [False, True])
def test_arrays_of_jax_in_a_chain_of_optax(compiled):
    def schedule(count):
        return 0.01 / (1 + count)

    chain = optax.chain(optax.clip_by_global_norm(1.0), adam8bit(schedule, weight_decay=0.1))
    update = jax.jit(chain.update) if compiled else chain.update
    found, state = steps(chain.init, update, TREE, GRADS, jnp.asarray)
    dense = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.1))
    want, _ = steps(dense.init, dense.update, TREE, GRADS, jnp.asarray)
    near([u["b"] for u in found], [u["b"] for u in want], 1e-4)
    for a, b in zip(
        found, want, strict=True
    ):  # a code is 6 to 12 percent; of gradients below 2^-15 of the greatest, more
        assert np.abs(a["w"] - b["w"])[:, 45:].max() < 0.2 * np.abs(b["w"]).max()
        assert np.abs(a["w"] - b["w"])[:, 45:].mean() < 0.03 * np.abs(b["w"]).max()
    assert isinstance(state[1].mu["w"].codes, jax.Array)


def test_native_arrays():
    ours, _ = steps(*adam8bit(0.01), TREE, GRADS, lambda a: xp.asarray(a, device="numpy"))
    for place in (np.asarray, torch.tensor):
        found, state = steps(*adam8bit(0.01), TREE, GRADS, place)
        near(found, ours, 1e-5)
        assert type(state.nu["w"].codes) is type(place(TREE["w"]))


@ON
def test_a_module_is_trained(backend):
    key = tg.random.key(0, device=backend)
    model = nn.MLP(32, 4, 128, 1, activation=nn.gelu, key=key)
    x = tg.random.normal(tg.random.key(1, device=backend), (64, 32))
    y = x[:, :4] * x[:, 4:8]

    def fit(transformation, steps=12):
        init, update = transformation

        @filter_jit
        def step(model, state):
            loss, grads = filter_value_and_grad(lambda m: xp.mean((m(x) - y) ** 2))(model)
            updates, state = update(grads, state)
            return loss, apply_updates(model, updates), state

        trained, state, losses = model, init(filter(model, is_inexact_array)), []
        for _ in range(steps):
            loss, trained, state = step(trained, state)
            losses.append(float(loss))
        return np.array(losses), state

    found, state = fit(adam8bit(0.01))
    dense, _ = fit(adam8bit(0.01, smallest=10**9))
    assert found[-1] < 0.7 * found[0]
    np.testing.assert_allclose(found, dense, rtol=0.01)
    kept = sum(a.nbytes for a in optree.tree_leaves((state.mu.layers[0].weight, state.nu.layers[0].weight)))
    assert kept < 0.26 * 8 * model.layers[0].weight.size


def test_slow_averages_are_kept():
    """A mean of gradients that moves by less than half a code a step arrives where it should."""
    n = 4096
    params, ones = xp.zeros((n,), device="numpy"), xp.ones((n,), device="numpy")
    init, update = adam8bit(1.0, b1=0.9, b2=0.99)
    state = init(params)
    scale = xp.asarray(np.where(np.arange(n) % 2, 1.0, 0.5).astype(np.float32), device="numpy")
    for k in range(1200):
        updates, state = update(ones if k < 200 else ones * scale, state)
    ratio = -np.asarray(updates)  # of gradients that do not change, mean / root mean square
    assert abs(ratio[::2].mean() - 1) < 0.02 and np.abs(ratio[::2] - 1).max() < 0.25


def test_seeds():
    def last(seed):
        found, _ = steps(*adam8bit(0.01, seed=seed), TREE, GRADS, np.asarray)
        return found[-1]["w"]

    assert np.array_equal(last(3), last(3)) and not np.array_equal(last(3), last(4))


def test_errors():
    with pytest.raises(ValueError, match=r"adam8bit: expected b2 of at least 0 and less than 1, got 1\.0"):
        adam8bit(0.01, b2=1.0)
    with pytest.raises(ValueError, match="adam8bit: expected learning_rate of at least 0, got -1"):
        adam8bit(-1)
    init, update = adam8bit(0.01, weight_decay=0.1)
    with pytest.raises(ValueError, match="adam8bit: there is no floating-point array"):
        init({"n": np.arange(3)})
    with pytest.raises(TypeError, match="adam8bit: expected real parameters, got complex64"):
        init(np.ones(3, np.complex64))
    with pytest.raises(TypeError, match="adam8bit: expected arrays of one framework, got jax, numpy"):
        init([jnp.ones(3), np.ones(3)])
    state = init(TREE)
    with pytest.raises(ValueError, match="adam8bit: weight decay requires the parameters: call update"):
        update(TREE, state)
    with pytest.raises(ValueError, match=r"adam8bit: an update of shape \(3,\) does not match its moments"):
        update({"w": TREE["w"], "b": np.ones(3, np.float32)}, state, TREE)
    with pytest.raises(ValueError, match="adam8bit: the updates do not have the structure of the parameters"):
        update([TREE["w"]], state, TREE)
    quantised = tg.quantize(xp.ones((8, 32), device="numpy"), "int8_per_channel")
    with pytest.raises((TypeError, ValueError), match="adam8bit: "):
        init([quantised.codes])
