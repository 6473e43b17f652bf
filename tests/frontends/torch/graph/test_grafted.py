"""Modules as pure JAX functions: values, derivatives, buffers and random numbers against PyTorch."""

import copy
import types

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tensorgraft as tg


@pytest.fixture(params=[False, True], ids=["32-bit", "64-bit"], autouse=True)
def x64(request):
    with jax.enable_x64(request.param):
        yield request.param


def close(actual, expected, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(actual), expected.detach().numpy(), rtol=tolerance, atol=tolerance)


class Tied(nn.Module):
    """Embedding and output share their weight; the positions are a buffer that is no part of the state."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.block = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True)
        self.out = nn.Linear(6, 11, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("positions", torch.linspace(0, 1, 6), persistent=False)

    def forward(self, tokens, mask=None):
        logits = self.out(self.block(self.embed(tokens) + self.positions))
        return {"logits": logits, "last": logits[:, -1], "mask": mask, "n": tokens.shape[1]}


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 5), nn.LayerNorm(5)
    )


def test_values_gradients_and_buffers():
    torch.manual_seed(0)
    module = convolutional()
    apply, params, buffers = tg.graft(module, onto="jax")
    here = copy.deepcopy(module)
    x, target = torch.randn(3, 1, 6, 6), torch.tensor([0, 4, 2])

    def loss(params, x, buffers):
        out, buffers = apply(params, buffers, x)
        return -jnp.take_along_axis(jax.nn.log_softmax(out), jnp.asarray(target.numpy())[:, None], 1).mean(), buffers

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    for _ in range(2):
        leaf = x.clone().requires_grad_()
        here.zero_grad()
        expected = F.cross_entropy(here(leaf), target)
        expected.backward()
        (value, buffers), (grads, dx) = step(params, jnp.asarray(x.numpy()), buffers)
        close(value, expected)
        close(dx, leaf.grad)
        for name, p in here.named_parameters():
            close(grads[name], p.grad)
        for name, b in here.named_buffers():
            close(buffers[name], b)
    assert not module[1].num_batches_tracked  # the module itself is left as it is


def test_the_derivative_is_pytorchs():
    """At the kink of a shrinkage JAX would differentiate what computes it; PyTorch has a formula."""
    module = nn.Hardtanh()
    apply, params, buffers = tg.graft(module, onto="jax")
    x = torch.tensor([-1.0, 0.5, 1.0, 2.0], requires_grad=True)
    module(x).sum().backward()
    close(jax.grad(lambda x: apply(params, buffers, x)[0].sum())(jnp.asarray(x.detach().numpy())), x.grad)


@pytest.mark.slow_with("64-bit")
def test_tied_weights_integers_structures_and_tokens(x64):
    torch.manual_seed(0)
    module = Tied()
    apply, params, buffers = tg.graft(module, onto="jax")
    assert set(params) == {n for n, _ in module.named_parameters()}
    tokens = torch.tensor([[1, 2, 3], [3, 10, 0]])
    expected = module(tokens)
    out, _ = apply(params, buffers, jnp.asarray(tokens.numpy()))
    close(out["logits"], expected["logits"])
    close(out["last"], expected["last"])
    assert (out["mask"], out["n"]) == (None, 3)
    expected["logits"].sin().sum().backward()
    grads = jax.grad(lambda p: jnp.sin(apply(p, buffers, jnp.asarray(tokens.numpy()))[0]["logits"]).sum())(params)
    close(grads["embed.weight"], module.embed.weight.grad, 1e-4)
    index = tg.graft(nn.Flatten(), onto="jax").apply({}, {}, jnp.asarray(tokens.numpy()))[0]
    assert index.dtype == (np.int64 if x64 else np.int32)


@pytest.mark.slow_with("64-bit")
def test_batching_and_export():
    torch.manual_seed(0)
    module = convolutional().eval()
    apply, params, buffers = tg.graft(module, onto="jax")
    x = torch.randn(4, 1, 6, 6)
    array = jnp.asarray(x.numpy())

    def one(image):
        return apply(params, buffers, image[None])[0][0]

    close(jax.vmap(one)(array), module(x))
    close(jax.jit(jax.vmap(one))(array), module(x))
    per_sample = jax.vmap(jax.grad(lambda p, image: apply(p, buffers, image[None])[0].sum()), (None, 0))(params, array)
    module.zero_grad()
    module(x).sum().backward()
    close(per_sample["4.weight"].sum(0), module[4].weight.grad, 1e-4)
    exported = jax.export.export(jax.jit(lambda x: apply(params, buffers, x)[0]))(
        jax.ShapeDtypeStruct(array.shape, array.dtype)
    )
    close(exported.call(array), module(x))


def test_random_numbers_come_from_a_key():
    apply, params, buffers = tg.graft(nn.Dropout(0.5), onto="jax")
    x = jnp.ones(1000)
    run = jax.jit(lambda key: apply(params, buffers, x, key=key)[0])
    first, again, other = run(jax.random.key(1)), run(jax.random.key(1)), run(jax.random.key(2))
    assert (first == again).all()
    assert (first != other).any()
    assert abs(float((first == 0).mean()) - 0.5) < 0.06
    with pytest.raises(tg.TracedValueError, match=r"draws random numbers: call the function with key="):
        apply(params, buffers, x)


def test_training_mode_is_asked_for_at_each_call():
    module = nn.Dropout(1.0)
    apply, params, buffers = tg.graft(module, onto="jax")
    assert not apply(params, buffers, jnp.ones(3), key=jax.random.key(0))[0].any()
    module.eval()
    assert apply(params, buffers, jnp.ones(3))[0].all()


def test_parameters_in_another_dtype_and_frozen_ones():
    module = nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    apply, params, buffers = tg.graft(module, onto="jax")
    low = {name: p.astype(jnp.bfloat16) for name, p in params.items()}
    assert apply(low, buffers, jnp.ones((1, 3), jnp.bfloat16))[0].dtype == jnp.bfloat16
    x = jnp.ones((1, 3), jnp.float32)
    grads = jax.grad(lambda p: apply(p, buffers, x)[0].sum())(params)
    assert grads["weight"].all()
    assert not grads["bias"].any()


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = torch.zeros(1, device=tg.device("jax"))

    def forward(self, x):
        self.seen += 1
        return x * self.seen


class Asking(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    "module, match",
    [(Counting(), "neither a parameter nor a buffer"), (Asking(), "needs the value of a")],
    ids=["writes", "asks"],
)
def test_what_a_pure_function_cannot_do(module, match):
    apply, params, buffers = tg.graft(module, onto="jax")
    with pytest.raises(tg.TracedValueError, match=match):
        apply(params, buffers, jnp.ones(3))
    if isinstance(module, Counting):
        assert module.seen.item() == 0


def test_state_that_does_not_fit():
    apply, params, buffers = tg.graft(nn.Linear(3, 2), onto="jax")
    with pytest.raises(ValueError, match=r"params of Linear do not match: missing \['bias'\], unknown \['extra'\]"):
        apply({"weight": params["weight"], "extra": params["bias"]}, buffers, jnp.ones((1, 3)))
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        apply(params, buffers, jnp.ones((1, 4), jnp.float32))


def test_programs_that_are_not_known():
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module"):
        tg.graft(3, onto="jax")


class _OfNothing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return torch.arange(2.0), self.weight, {"flag": torch.tensor(True)}, x * self.weight


def test_what_a_module_makes_of_nothing_is_an_array_of_the_framework():
    """On the CPU, as modules make their constants where no tensor is at hand that says the device."""
    module, x = _OfNothing(), np.ones(2, np.float32)
    expected = [t.detach().numpy() for t in torch.utils._pytree.tree_leaves(module(torch.from_numpy(x)))]
    jax_one = tg.graft(module, onto="jax")
    results = {
        "jax": lambda: jax.jit(jax_one.apply)(jax_one.params, jax_one.buffers, x)[0],
        "numpy": lambda: tg.graft(module, onto="numpy")(x),
    }
    for call in results.values():
        leaves = torch.utils._pytree.tree_leaves(call())
        assert not any(isinstance(leaf, torch.Tensor) for leaf in leaves)
        for leaf, value in zip(leaves, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(leaf), value)


DERIVATIVES = {  # whose formulas in PyTorch choose by a value, where nothing says that they are traced
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "median": lambda x: x.median() + x.nanmedian(),
    "prod": lambda x: x.prod() + x.prod(0).sum(),
    "cumprod": lambda x: x.cumprod(0).sum() + x.cummax(0).values.sum(),
    "aminmax": lambda x: torch.stack(x.aminmax()).sum() + x.amax(),
    "norm": lambda x: x.norm(p=float("inf")) + torch.linalg.vector_norm(x, 3) + x.renorm(2, 0, 1.0).sum(),
    "kthvalue": lambda x: x.kthvalue(2, 0).values.sum() + x.mode(0).values.sum() + x.quantile(0.3),
    "det": lambda x: torch.linalg.det(x) + torch.linalg.slogdet(x)[1] + x.logsumexp(0).sum(),
}


class _Of(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_ask_for_no_values(name):
    module = _Of(DERIVATIVES[name])
    x = torch.tensor([[1.0, 2.0, 2.0], [4.0, 0.0, 1.0], [3.0, 5.0, 7.0]], requires_grad=True)
    module(x).backward()
    apply, params, buffers = tg.graft(module, onto="jax")
    close(jax.jit(jax.grad(lambda x: apply(params, buffers, x)[0]))(x.detach().numpy()), x.grad)
    leaf = x.detach().to(tg.device("jax")).requires_grad_()
    tg.jit(module)(leaf).backward()
    close(leaf.grad.cpu(), x.grad)


def test_symbolic_extents_are_refused_by_name():
    apply, params, buffers = tg.graft(nn.Linear(3, 2), onto="jax")
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), jnp.float32)
    with pytest.raises(ValueError, match=r"an argument of Linear has the shape \(b, 3\).*known shapes"):
        jax.export.export(jax.jit(lambda x: apply(params, buffers, x)[0]))(spec)


def test_results_that_are_parameters_or_each_other_have_derivatives():
    class Module(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return y, y, self.bias

    apply, params, buffers = tg.graft(Module(2, 2), onto="jax")

    def loss(params):
        _, y, bias = apply(params, buffers, np.ones((1, 2), np.float32))[0]
        return y.sum() + 3 * bias.sum()

    slopes = jax.grad(loss)(params)
    np.testing.assert_allclose(slopes["bias"], [4, 4])
    np.testing.assert_allclose(slopes["weight"], np.ones((2, 2)))


class _Named(dict):
    pass


@pytest.mark.parametrize(
    ("make", "look"),
    [
        (lambda y: types.SimpleNamespace(y=y), lambda o: o.y),
        (lambda y: _Named(y=y), lambda o: o["y"]),
        (lambda y: [{"k": types.SimpleNamespace(parts=[y])}, 3], lambda o: o[0]["k"].parts[0]),
        (lambda y: lambda: y, lambda o: o()),
        (lambda y: torch.distributions.Normal(y, torch.ones(2), validate_args=False), lambda o: o.loc),
    ],
)
def test_results_that_are_objects_are_made_anew(make, look):
    class Module(nn.Linear):
        def forward(self, x):
            return make(super().forward(x))

    module, x = Module(2, 2), np.ones((1, 2), np.float32)
    apply, params, buffers = tg.graft(module, onto="jax")
    first, second = apply(params, buffers, x)[0], apply(params, buffers, 2 * x)[0]
    for result, argument in ((first, x), (second, 2 * x)):
        assert isinstance(look(result), jax.Array)
        close(look(result), look(module(torch.from_numpy(argument))))
    slope = jax.grad(lambda params: look(apply(params, buffers, x)[0]).sum())(params)
    np.testing.assert_allclose(slope["bias"], [1, 1])
