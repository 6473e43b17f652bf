"""Settings of JAX between two calls of a grafted function: set, call, set otherwise, call, set back, call, as JAX."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import tensorgraft as tg

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(nan|inf) value encountered:UserWarning", "ignore:.*float64:UserWarning"
)


@contextlib.contextmanager
def configured(name, value):
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


def words(x):
    return jax.random.wrap_key_data(x[:2].astype("uint32"))  # of a key that is an argument


SETTINGS = {
    ("jax_enable_x64", True): [
        lambda x, f: x / 3 + jnp.arange(4.0),
        lambda x, f: jnp.zeros(4) + jnp.sum(x),
        lambda x, f: jax.random.uniform(jax.random.key(0), (3,)),
        lambda x, f: jax.lax.fori_loop(0, 3, lambda i, c: c + i * 1.5, 0.0),
    ],
    ("jax_numpy_dtype_promotion", "strict"): [lambda x, f: x + f, lambda x, f: f * 2.0],
    ("jax_numpy_rank_promotion", "raise"): [lambda x, f: f + jnp.ones((2, 4)), lambda x, f: f + f],
    ("jax_threefry_partitionable", False): [
        lambda x, f: jax.random.normal(jax.random.key(0), (3, 3)),
        lambda x, f: jax.random.bits(words(x), (5,), "uint8"),
        lambda x, f: jax.random.key_data(jax.random.split(words(x), 3)),
    ],
    ("jax_default_prng_impl", "rbg"): [lambda x, f: jax.random.uniform(jax.random.key(0), (4,))],
    ("jax_random_seed_offset", 7): [lambda x, f: jax.random.uniform(jax.random.key(0), (4,))],
    ("jax_default_matmul_precision", "bfloat16"): [lambda x, f: jnp.outer(f, f) @ f],
    ("jax_debug_nans", True): [lambda x, f: jnp.log(f - 5), lambda x, f: f + 1],
    ("jax_debug_infs", True): [lambda x, f: 1 / (f * 0), lambda x, f: f + 1],
}
ONTO = {
    "numpy": lambda a: a,
    "torch": lambda a: torch.from_numpy(np.array(a)),
    "tensorflow": lambda a: pytest.importorskip("tensorflow").constant(a),
}


def outcome(fn, *args):
    try:
        value = np.asarray(fn(*args))
    except (TypeError, ValueError, FloatingPointError) as error:
        return next(kind for kind in (TypeError, ValueError, FloatingPointError) if isinstance(error, kind))
    return value.dtype, value.shape, value.astype("float64")


def same(ours, native):
    if isinstance(ours, type) or isinstance(native, type):
        return ours is native
    return ours[:2] == native[:2] and np.allclose(ours[2], native[2], rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.sampled
@pytest.mark.parametrize("way", ["graft", "jit"])
@pytest.mark.parametrize("onto", ONTO)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting[0])
def test_a_setting_between_two_calls(setting, onto, way):
    x, f, convert = np.arange(4, dtype=np.int32), np.linspace(-1, 1, 4, dtype=np.float32), ONTO[onto]
    natives = jnp.asarray(x), jnp.asarray(f)
    for fn in SETTINGS[setting]:
        grafted = tg.graft(fn, onto=onto)
        run = tg.jit(grafted) if way == "jit" else grafted
        for turn in range(4):
            with configured(*setting) if turn % 2 else contextlib.nullcontext():
                ours = outcome(run, convert(x), convert(f))
                native = outcome(jax.jit(lambda *a, fn=fn: fn(*a)), *natives)
            assert same(ours, native), (turn, ours, native)


@pytest.mark.parametrize("onto", ONTO)
def test_loops_are_traced_where_jax_disables_jit(onto):
    f = np.linspace(-1, 1, 4, dtype=np.float32)
    run = tg.graft(lambda f: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: c + 1, f), onto=onto)
    with jax.disable_jit():
        np.testing.assert_allclose(np.asarray(run(ONTO[onto](f))), f + 4)


@pytest.mark.parametrize("way", ["graft", "jit"])
def test_a_derivative_goes_by_the_settings_of_the_call(way):
    @jax.checkpoint
    def dropped(f):
        key = jax.random.wrap_key_data(jnp.array([0, 5], "uint32") + 0 * f[:2].astype("uint32"))
        return f * jax.random.bernoulli(key, 0.5, f.shape)

    def loss(f):
        return jnp.sum(dropped(f) ** 2)

    run = tg.graft(loss, onto="torch")
    run = tg.jit(run) if way == "jit" else run
    t = torch.linspace(-1, 1, 16, requires_grad=True)
    for setting in (("jax_threefry_partitionable", False), ("jax_enable_x64", False)):
        with configured(*setting):
            y, native = run(t), jax.grad(loss)(t.detach().numpy())
        with configured("jax_enable_x64", True):  # another one
            (ours,) = torch.autograd.grad(y, t)
        np.testing.assert_allclose(ours.numpy(), native, rtol=1e-6)


@pytest.mark.parametrize("way", ["graft", "jit"])
def test_a_nan_in_a_gradient_is_an_error_where_jax_makes_it_one(way):
    run = tg.graft(lambda f: jnp.sum(jnp.where(f > 0, jnp.sqrt(f), 0.0)), onto="torch")
    run = tg.jit(run) if way == "jit" else run
    t = torch.tensor([0.0, 1.0], requires_grad=True)
    assert bool(torch.autograd.grad(run(t), t)[0].isnan().any())
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        torch.autograd.grad(run(t), t)


def test_a_nan_in_a_gradient_of_tensorflow_is_an_error_too():
    tf = pytest.importorskip("tensorflow")
    run = tg.graft(lambda f: jnp.sum(jnp.where(f > 0, jnp.sqrt(f), 0.0)), onto="tensorflow")
    v = tf.Variable([0.0, 1.0])

    def gradient():
        with tf.GradientTape() as tape:
            y = run(v)
        return tape.gradient(y, v)

    assert np.isnan(gradient().numpy()).any()
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        gradient()
    assert np.isnan(gradient().numpy()).any()


def test_on_tensors_of_the_device_of_jax_jax_looks_itself():
    run = tg.graft(lambda f: jnp.sum(jnp.where(f > 0, jnp.sqrt(f), 0.0)), onto="torch")
    t = torch.tensor([0.0, 1.0], device=tg.device("jax")).requires_grad_()
    assert bool(torch.autograd.grad(run(t), t)[0].isnan().any())
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        torch.autograd.grad(run(t), t)


def test_values_that_are_not_known_cannot_be_looked_at():
    tf = pytest.importorskip("tensorflow")
    run = tf.function(tg.graft(jnp.log, onto="tensorflow"))
    with jax.debug_nans(True), pytest.raises(tg.TracedValueError, match="jax_debug_nans is on"):
        run(tf.constant([1.0]))


@pytest.mark.parametrize("name", ["jax_numpy_dtype_promotion", "jax_numpy_rank_promotion"])
@pytest.mark.parametrize("way", ["eager", "jit"])
def test_programs_of_pytorch_do_not_go_by_settings_of_jax(name, way):
    def program(x):
        return torch.log(x) + x.reshape(-1)[:4] * torch.arange(4, device=x.device)

    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    run = tg.jit(program) if way == "jit" else program
    with configured(name, {"jax_numpy_dtype_promotion": "strict"}.get(name, "raise")):
        torch.testing.assert_close(run(x.to(tg.device("jax"))).cpu(), program(x), equal_nan=True)
