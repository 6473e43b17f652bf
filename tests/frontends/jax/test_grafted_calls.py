"""Calls of grafted JAX functions: numbers, values that are asked for, derivatives that are missing, what is kept."""

import copy
import functools
import pickle
import subprocess
import sys
import types
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax
from jax.experimental.ode import odeint

import tensorgraft as tg
from tensorgraft.frontends.jax import calls, staging
from tensorgraft.transforms import filter_eval_shape

tf = pytest.importorskip("tensorflow")

NATIVE = {"torch": torch.from_numpy, "tensorflow": tf.constant, "numpy": np.asarray}
ONES = np.ones(4, np.float32)


# ---- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("onto", NATIVE)
def test_numbers_are_inputs(onto, monkeypatch):
    traces = []
    monkeypatch.setattr(calls, "make_jaxpr", lambda *args: (traces.append(1), staging.make_jaxpr(*args))[1])

    def step(w, rate, n):
        return w[:n] * rate if n else w

    f, w = tg.graft(step, onto=onto), NATIVE[onto](ONES)
    for n in (1, 2):
        for rate in (0.1, 0.2, 0.3):
            np.testing.assert_allclose(f(w, rate, n), np.full(n, rate, np.float32))
    assert len(traces) == 3  # one that looks at n, and one for each n


@pytest.mark.parametrize("number", [2, 2.5, 2j, True], ids=str)
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
def test_dtypes_are_those_of_weak_types(dtype, number):
    x = np.ones(2, dtype)
    f = tg.graft(lambda x, n: [x * n, n * 2, jnp.asarray(n), jnp.where(x > 0, n, x)], onto="numpy")
    want = [jnp.asarray(x) * number, jnp.asarray(number) * 2, jnp.asarray(number), jnp.where(x > 0, number, x)]
    for got, right in zip(f(x, number), want, strict=True):
        assert np.asarray(got).dtype == right.dtype
        np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, n: jnp.zeros((n, 2)) + x[0],
        lambda x, n: jnp.arange(n),
        lambda x, n: jnp.sum(x[None], axis=n),
        lambda x, n: x * {1: 2.0}[n],
        lambda x, n: x * len(f"{n:3d}"),
        lambda x, n: jax.jit(lambda x, n: x[:n], static_argnums=1)(x, n),
        lambda x, n: jax.lax.scan(lambda c, _: (c + 1, None), x, None, length=n)[0],
        lambda x, n: x * np.sqrt(n),
        lambda x, n: x * 2 if n in (1, 3) else x,
    ],
)
def test_what_needs_a_number_has_it(fn):
    np.testing.assert_allclose(tg.graft(fn, onto="numpy")(ONES, 1), fn(ONES, 1))


def test_a_number_that_is_kept_is_that_number():
    rates = []
    f = tg.graft(lambda x, rate: (rates.append(rate), x * rate)[1], onto="numpy")
    for rate in (0.5, 0.25):
        f(ONES, rate)
    assert rates == [0.5, 0.25]


def test_loops_to_a_number():
    """The program is one for all as long as there is no derivative, which JAX has of a known number of steps."""
    f = tg.graft(lambda x, n: jax.lax.fori_loop(0, n, lambda _, c: c * x, x), onto="torch")
    x = torch.full((2,), 2.0, requires_grad=True)
    assert [f(x.detach(), n)[0].item() for n in (1, 3)] == [4, 16]
    f(x, 3).sum().backward()
    assert x.grad.tolist() == [32, 32]


# ---- derivatives -----------------------------------------------------------------------------------------------------


def loop(x):
    return jax.lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 2, x)


MISSING = {"svd": lambda x: jnp.linalg.svd(x.reshape(4, 1) * jnp.ones((4, 2)))[1], "while": loop}


@pytest.mark.parametrize("fn", MISSING.values(), ids=MISSING)
def test_a_missing_derivative_is_missed_where_it_is_asked_for(fn):
    x = torch.from_numpy(ONES.copy()).requires_grad_()
    y = tg.graft(fn, onto="torch")(x)
    np.testing.assert_allclose(y.detach(), fn(ONES), rtol=1e-5, atol=1e-5)
    with pytest.raises(tg.DerivativeError, match="does not exist") as caught:
        y.sum().backward()
    assert isinstance(caught.value.__cause__, ValueError | NotImplementedError)
    g, v = tg.graft(fn, onto="tensorflow"), tf.Variable(ONES)

    def gradient():
        with tf.GradientTape() as tape:
            y = g(v)
        return tape.gradient(y, v)

    for run in (lambda: gradient(), tf.function(gradient)):
        with pytest.raises(tg.DerivativeError, match="does not exist"):
            run()
    np.testing.assert_allclose(tf.function(g)(v.value()), fn(ONES), rtol=1e-5, atol=1e-5)
    with pytest.raises(tg.DerivativeError):
        tg.graft(fn, onto="torch")(x.detach().to(tg.device("jax")).requires_grad_()).sum().backward()


# ---- values ----------------------------------------------------------------------------------------------------------


ASKS = {
    "shape": (lambda x, k: jnp.zeros((k, 3)), tg.ShapeError, "needs k now, for the shape of zeros()"),
    "slice": (lambda x, k: x[:k], tg.ShapeError, "x * (arange(x.shape[0]) < k)"),
    "count": (lambda x, k: sum(x[i] for i in range(k)), tg.ShapeError, "jax.lax.fori_loop(0, k, step, state)"),
    "mask": (lambda x, k: x[x > k], tg.ShapeError, "where(x > k, x, 0)"),
    "nonzero": (lambda x, k: jnp.nonzero(x), tg.ShapeError, "jnp.nonzero(..., size=n)"),
    "argument": (lambda x, k: jnp.arange(k), tg.ShapeError, "pass k as a Python int"),
    "if": (lambda x, k: x if k > 1 else -x, tg.TracedValueError, "jax.lax.cond(k > 1, f, g, *operands)"),
    "float": (
        lambda x, k: float(x.sum()),
        tg.TracedValueError,
        "needs the value of x.sum() now, but x.sum() is a traced",
    ),
    "numpy": (lambda x, k: np.asarray(x), tg.TracedValueError, "needs the value of x now"),
}


@pytest.mark.parametrize("name", ASKS)
def test_words_for_values_that_are_asked_for(name):
    fn, kind, text = ASKS[name]
    k = np.int32(2)
    for call, tracer in (
        (lambda: tg.graft(fn, onto="numpy")(ONES, k), "tg.graft"),
        (lambda: tg.graft(fn, onto="torch")(torch.ones(4, device=tg.device("jax")), jnp.asarray(k)), "tg.graft"),
        (lambda: filter_eval_shape(fn, jnp.asarray(ONES), jnp.asarray(k)), "filter_eval_shape"),
    ):
        with pytest.raises(kind) as caught:
            call()
        said = str(caught.value)
        assert type(caught.value) is kind and text in said and f"Inside {tracer} an array has no value yet" in said
        assert len(said.splitlines()) <= 10
        assert type(caught.value.__cause__).__module__.partition(".")[0] in ("jax", "builtins")


def test_other_errors_are_the_programs_own():
    for call in (
        lambda f: tg.graft(f, onto="numpy")(ONES, 2),
        lambda f: filter_eval_shape(f, jnp.asarray(ONES), 2),
    ):
        with pytest.raises(TypeError, match="dot_general") as caught:
            call(lambda x, n: x @ jnp.ones(3))
        assert caught.value.__cause__ is None
        with pytest.raises(KeyError):
            call(lambda x, n: {}["missing"])


# ---- what is kept ----------------------------------------------------------------------------------------------------


class Holder:
    pass


@jax.tree_util.register_pytree_node_class
class Total:
    def __init__(self, value):
        self.value = value

    def tree_flatten(self):
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)

    def __call__(self, x):
        self.value = self.value + x
        return self.value


KEPT: dict[str, Any] = {}


def test_arrays_that_are_traced_are_not_kept():
    holder, space, kept = Holder(), types.SimpleNamespace(), []

    def to_attribute(x):
        holder.last = x + 1

    def to_object_in_attribute(x):
        holder.part = Holder()
        holder.part.last = x

    def to_namespace(x):
        space.parts = (x,)

    def to_class(x):
        Holder.shared = x

    def to_list(x):
        kept.append(x * 2)

    def to_global(x):
        KEPT["last"] = {"parts": [x]}

    def to_closure(x):
        holder.function = lambda: x

    def to_jitted(x):
        holder.jitted = jax.jit(lambda v: x * v)
        holder.jitted(x)

    def to_partial(x):
        kept.append(functools.partial(jnp.add, x))

    def to_default(x):
        def f(a=x):
            return a

        KEPT["f"] = f

    for f, where in (
        (to_attribute, "a Holder.last|last of a Holder"),
        (to_object_in_attribute, "last of a Holder"),
        (to_namespace, "in a SimpleNamespace"),
        (to_class, "Holder.shared"),
        (to_list, "in a variable of"),
        (to_global, "KEPT"),
        (to_closure, "in a variable of .*to_closure.<locals>.<lambda>"),
        (to_jitted, "in a variable of .*to_jitted.<locals>.<lambda>"),
        (to_partial, "in a variable of"),
        (to_default, "in a default of .*to_default.<locals>.f"),
    ):
        with pytest.raises(tg.TracedValueError, match=f"{f.__name__} keeps an array .* being traced.*{where}"):
            tg.graft(f, onto="numpy")(ONES)
        vars(holder).clear(), vars(space).clear(), kept.clear(), KEPT.clear()
        Holder.shared = None
    for f, args in ((lambda t, x: t(x), (Total(ONES), ONES)), (Total(jnp.ones(4)), (ONES,))):
        with pytest.raises(tg.TracedValueError, match="writes an argument, a Total"):
            tg.graft(f, onto="numpy")(*args)


def test_arrays_that_are_traced_are_not_among_results_in_objects():
    def in_object(x):
        result = Holder()
        result.last = [x]
        return result

    for f, where in (
        (in_object, "last of a Holder"),
        (lambda x: types.SimpleNamespace(y=x), "SimpleNamespace.y"),
        (lambda x: lambda: x, "a variable of"),
        (lambda x: functools.partial(jnp.add, x), "a partial among the results"),
    ):
        with pytest.raises(tg.TracedValueError, match=f"keeps an array that is being traced.*{where}"):
            tg.graft(f, onto="numpy")(ONES)


by_function = jax.jit(lambda f, x: f(x), static_argnums=0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def solved(f, x):
    return f(x)


solved.defvjp(lambda f, x: (f(x), x), lambda f, x, g: jax.vjp(f, x)[1](g))


def converted(a):
    f, constants = jax.closure_convert(lambda v: a @ v, ONES)
    return f(ONES, *constants)


def rooted(a):
    def newton(f, x):
        return lax.fori_loop(0, 20, lambda _, x: x - f(x) / (2 * x), x)

    return lax.custom_root(lambda x: x * x - a[0, 0], 1.0, newton, lambda g, y: y / g(1.0))


@pytest.mark.sampled
@pytest.mark.parametrize("onto", ["numpy", "torch", "tensorflow"])
@pytest.mark.parametrize(
    "f",
    [
        lambda a: by_function(lambda v: a @ v, ONES),
        lambda a: by_function(functools.partial(lambda m, v: m @ v, a), ONES),
        lambda a: jax.checkpoint(lambda f, x: f(x), static_argnums=0)(lambda v: a @ v, ONES),
        lambda a: solved(lambda v: a @ v, ONES),
        lambda a: jax.grad(lambda x: solved(lambda v: a @ v, x).sum())(a[0]),
        lambda a: lax.scan(lambda c, _: (by_function(lambda v: a @ v, c), None), ONES, None, length=3)[0],
        lambda a: lax.custom_linear_solve(lambda v: a @ v, ONES, lambda _, b: jnp.linalg.solve(a, b), symmetric=True),
        lambda a: odeint(lambda y, _: -a @ y, ONES, jnp.linspace(0.0, 1.0, 3)),
        converted,
        rooted,
    ],
)  # fmt: skip
def test_what_jax_alone_keeps_is_not_kept(f, onto):
    a = np.eye(4, dtype=np.float32) + 0.1
    np.testing.assert_allclose(tg.graft(f, onto=onto)(a), jax.jit(f)(a), rtol=1e-5, atol=1e-6)


def test_state_of_equinox_is_an_argument():
    def net(key):
        layers = [eqx.nn.Linear(3, 4, key=key), eqx.nn.BatchNorm(4, axis_name="batch", mode="batch")]
        return eqx.nn.Sequential(layers)

    def run(model, state, x):
        return jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)

    model, state = eqx.nn.make_with_state(net)(jax.random.key(0))
    f, right, x = tg.graft(run, onto="torch"), state, np.random.default_rng(0).random((5, 3), np.float32)
    for _ in range(3):
        (y, state), (want, right) = f(model, state, torch.from_numpy(x)), run(model, right, x)
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


# ---- copies and files ------------------------------------------------------------------------------------------------


def plain(x, n=2):
    return jnp.sin(x) * n


def test_modules_and_functions_in_files(tmp_path):
    model = eqx.nn.MLP(4, 3, 8, 1, key=jax.random.key(0))
    net, x = tg.graft(model, onto="torch"), torch.linspace(-1, 1, 4)
    torch.save(net, tmp_path / "net.pt")
    program = (
        "import torch\n"
        f"net = torch.load({str(tmp_path / 'net.pt')!r}, weights_only=False)\n"
        "print(*net(torch.linspace(-1, 1, 4)).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(map(float, done.stdout.split())) == net(x).tolist()
    other = copy.deepcopy(net)
    with torch.no_grad():
        next(other.parameters()).zero_()
    assert not torch.equal(other(x), net(x))
    for f in (tg.graft(plain, onto="torch"), tg.graft(jax.nn.softplus, onto="torch")):
        assert torch.equal(pickle.loads(pickle.dumps(f))(x), f(x))
    for unnamed in (tg.graft(lambda x: x, onto="torch"), tg.graft(eqx.nn.Lambda(lambda x: x), onto="torch")):
        with pytest.raises((pickle.PicklingError, AttributeError), match=r"Can't (pickle|get local object)"):
            pickle.dumps(unnamed)


def test_what_is_shown():
    text = str(tg.graft(eqx.nn.MLP(4, 3, 8, 1, key=jax.random.key(0)), onto="torch"))
    assert text.startswith("MLP(") and "activation=relu" in text
    assert "(0): Linear(weight=float32[8,4], bias=float32[8], in_features=4, out_features=8, use_bias=True)" in text
    params = {"linear": {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}}
    partial = jax.tree_util.Partial(lambda p, x: x @ p["linear"]["w"] + p["linear"]["b"], params)
    assert "(linear): dict(b=float32[3], w=float32[4,3])" in str(tg.graft(partial, onto="torch"))


# ---- what callers do with results ------------------------------------------------------------------------------------


@pytest.mark.parametrize("onto", ["torch", "numpy"])
def test_what_is_written_into_a_result_is_in_no_other_call(onto):
    """Constants of the function, views of them, and its arguments, given back; also by a branch."""
    table = jnp.arange(6.0)

    def fn(x):
        chosen = lax.cond(x.sum() > 0, lambda x, t: t, lambda x, t: x, x, table)
        slope = jax.grad(lambda x: jnp.sum(lax.cond(x.sum() > 0, lambda x: x, lambda x: x * x, x)))(x)
        given = table, table.reshape(2, 3), table[:2], jnp.arange(3.0), np.ones(2, np.float32), x, x[:1], table + x
        return *given, chosen, slope

    grafted = tg.graft(fn, onto=onto)
    x = np.ones(6, np.float32)
    given = NATIVE[onto](x.copy())
    for _ in range(2):
        results = grafted(given)
        for result, expected in zip(results, fn(x), strict=True):
            np.testing.assert_array_equal(np.asarray(result), expected)
        for result in results:
            result[...] = 99
    np.testing.assert_array_equal(np.asarray(given), x)
    np.testing.assert_array_equal(table, np.arange(6.0))
