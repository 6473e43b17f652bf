"""Whole programs of JAX, Equinox, Lineax and Optax, with derivatives and control flow, on other backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy as jsp
import lineax as lx
import numpy as np
import optax
import pytest
from jax import lax
from tests.frontends.jax.test_rules_structure import agree

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.jax.grafted import Grafted
from tensorgraft.frontends.jax.program import JaxprProgram, Spec, traced
from tensorgraft.hub import registry

RNG = np.random.default_rng(0)
V = RNG.standard_normal(7).astype(np.float32)
X = RNG.standard_normal((3, 4)).astype(np.float32)
S = RNG.standard_normal((4, 4)).astype(np.float32)
POSITIVE = S @ S.T + 4 * np.eye(4, dtype=np.float32)
I = np.array([2, 0, 3, 1, 5], np.int32)  # noqa: E741
MODEL = eqx.nn.MLP(4, 3, 8, 2, key=jax.random.key(3))


def _while(x: Any) -> Any:
    return lax.while_loop(lambda s: s[1] < 5, lambda s: (jnp.sin(s[0]) * 2, s[1] + 1), (x, 0))


def _scan(x: Any) -> Any:
    return lax.scan(lambda h, r: (jnp.tanh(h + r), (h, r * 2)), jnp.zeros(()), x, reverse=True)


def _switch(i: Any, x: Any) -> Any:
    return lax.switch(i[0], [jnp.sin, jnp.cos, jnp.exp], x)


def _keys_in_a_loop(data: Any) -> Any:
    def step(keys: Any, x: Any) -> Any:
        new, used = jax.random.split(keys)
        return new, jax.random.uniform(used) * x

    key, drawn = lax.scan(step, jax.random.wrap_key_data(data), jnp.arange(12.0))
    return jax.random.key_data(key), drawn


def _written(x: Any) -> Any:
    ref = jax.new_ref(x)
    ref[0] = 5.0
    lax.fori_loop(0, 3, lambda i, c: (ref.__setitem__(i, ref[i] + c), c)[1], 2.0)
    return ref[...] * 2


def _root(x: Any) -> Any:
    def newton(f: Any, guess: Any) -> Any:
        return lax.fori_loop(0, 20, lambda _, t: t - f(t) / jax.jvp(f, (t,), (jnp.ones_like(t),))[1], guess)

    return lax.custom_root(lambda t: t**3 - x, jnp.ones_like(x), newton, lambda g, y: y / g(jnp.ones_like(y)))


def _checkpointed(x: Any) -> Any:
    def body(c: Any) -> Any:
        return jnp.sin(c[0]), c[1] + 1

    return eqx.internal.while_loop(lambda c: c[1] < 4, body, (x, 0), max_steps=8, kind="checkpointed")[0].sum()


def _solved(solver: Any) -> Callable[..., Any]:
    tags = lx.positive_semidefinite_tag
    return lambda a, b: lx.linear_solve(lx.MatrixLinearOperator(a, tags), b, solver, throw=False).value


def _trained(optimiser: Any) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        state = optimiser.init(x)
        for _ in range(2):
            updates, state = optimiser.update(x * 2 + 1, state, x)
            x = optax.apply_updates(x, updates)
        return x

    return run


PROGRAMS: dict[str, tuple[Callable[..., Any], *tuple[np.ndarray, ...]]] = {
    "while": (_while, V),
    "scan": (_scan, V),
    "switch": (_switch, I, V),
    "keys in a loop": (_keys_in_a_loop, np.array([3, 4], np.uint32)),
    "batched while": (jax.vmap(lambda x: lax.while_loop(lambda c: c < 5, lambda c: c + x**2 + 1, x)), V),
    "batched cond": (jax.vmap(lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x)), V),
    "grad of scan": (jax.grad(lambda x: _scan(x)[0]), V),
    "hessian of scan": (jax.hessian(lambda x: _scan(x)[0]), V),
    "grad of switch": (jax.grad(lambda x, i: _switch(i, x).sum()), V, I),
    "associative scan": (lambda x: lax.associative_scan(jnp.logaddexp, x, reverse=True), V),
    "written arrays": (_written, V),
    "root": (jax.grad(lambda x: _root(x).sum()), np.abs(V) + 1),
    "checkpoint": (jax.grad(lambda x: jax.checkpoint(lambda t: jnp.sin(jnp.sin(t)))(x).sum()), V),
    "pmean": (jax.vmap(lambda x: x - lax.pmean(x, "i"), axis_name="i"), X),
    "expm": (jax.grad(lambda a: jsp.linalg.expm(a).sum()), S / 3),
    "eigh": (jax.grad(lambda a: (jnp.linalg.eigh(a)[0] ** 2).sum()), POSITIVE),
    "slogdet": (jax.grad(lambda a: jnp.linalg.slogdet(a)[1]), POSITIVE),
    "tridiagonal": (lax.linalg.tridiagonal_solve, V, V * 0.1, V + 3, V[:, None]),
    "betainc": (jax.grad(lambda x: jsp.special.betainc(2.0, 3.0, x).sum()), np.abs(X) / 9),
    "unique": (lambda i: jnp.unique(i, size=4, return_counts=True), I),
    "composite": (lambda x: lax.composite(lambda t: jnp.sin(t) * 2, name="tests.twice")(x), V),
    "scaled product": (lambda x: lax.scaled_dot(x, x.T), np.ones((4, 32), np.float32)),
    "grad of interp": (jax.grad(lambda x: jnp.interp(x, jnp.arange(4.0), jnp.arange(4.0) ** 2).sum()), np.abs(V)),
    "histogram": (lambda x: jnp.histogram(x, 3), V),
    "digits": (jax.vmap(lambda x: jnp.digitize(x, jnp.arange(3.0))), X),
    "mantissas": (
        lambda x: (jnp.frexp(x), jnp.ldexp(x, jnp.arange(7)), jax.grad(lambda y: jnp.ldexp(y, 3).sum())(x)),
        V,
    ),
    "hessian of a model": (jax.hessian(lambda x: MODEL(x).sum()), X[0]),
    "batched gradients of a model": (jax.vmap(jax.grad(lambda x: MODEL(x).sum())), X),
    "attention": (lambda x: eqx.nn.MultiheadAttention(2, 4, key=jax.random.key(1))(x, x, x), X),
    "checkpointed while": (jax.grad(_checkpointed), V),
    "lineax CG": (jax.grad(lambda a, b: _solved(lx.CG(1e-5, 1e-5))(a, b).sum()), POSITIVE, S[0]),
    "lineax QR": (_solved(lx.QR()), POSITIVE, S[0]),
    "lineax GMRES": (_solved(lx.GMRES(1e-5, 1e-5)), POSITIVE, S[0]),
    **{f"optax {name}": (_trained(getattr(optax, name)(0.1)), X) for name in ("adamw", "adafactor", "lamb", "lion")},
}
ON_TENSORFLOW = ("while", "scan", "switch", "keys in a loop", "batched while", "lineax QR", "hessian of a model")
ON_NUMPY = ("scaled product",)  # PyTorch and TensorFlow have no float8_e8m0fnu


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    others = () if name in ON_NUMPY else ("torch", *["tensorflow"] * (name in ON_TENSORFLOW))
    agree(("numpy", *others), *PROGRAMS[name])


def _compiled(backend: str, fn: Callable[..., Any], *operands: np.ndarray) -> list[np.ndarray]:
    xp = registry.get(backend)
    closed = traced(lambda *given: jax.tree.leaves(fn(*given)), [Spec(x.shape, x.dtype) for x in operands])
    program = JaxprProgram(closed, True)
    with xp.scope():
        return [xp.to_numpy(x) for x in program.primal(xp, [xp.asarray(x) for x in operands])]


@pytest.mark.parametrize("name", ["while", "scan", "switch", "keys in a loop", "lineax QR"])
@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
def test_compiled_program(backend: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a graph; `scan` by the backend's compiler, too."""
    if name != "scan":
        monkeypatch.setenv("TENSORGRAFT_TORCH_COMPILER", "none")
    fn, *operands = PROGRAMS[name]
    for found, wanted in zip(_compiled(backend, fn, *operands), jax.tree.leaves(fn(*operands)), strict=True):
        np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)


# ---- functions of the host -------------------------------------------------------------------------------------------


def test_callbacks_run_with_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []

    def fn(x: Any) -> Any:
        jax.debug.print("x = {x}", x=x[0])
        jax.debug.callback(lambda: seen.append("constant"))
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1

    xp = registry.get("torch")
    native = Grafted(fn, xp)
    for _ in range(2):
        np.testing.assert_allclose(native(xp.asarray(V)), np.sin(V) + 1, 1e-6)
    assert seen == ["constant"] * 2
    assert capsys.readouterr().out.count("x = ") == 2
    with pytest.raises(TracedValueError, match=r"debug\.print calls a function of the host, which a compiled program"):
        native.compiled()(xp.asarray(V))


def test_promises_of_callbacks_are_kept() -> None:
    xp = registry.get("torch")
    fn = Grafted(lambda x: jax.pure_callback(lambda x: x[:2], jax.ShapeDtypeStruct((3,), x.dtype), x), xp)
    with pytest.raises(
        RuntimeError, match=r"pure_callback: result 0 is float32\[2\], but was declared as float32\[3\]"
    ):
        fn(xp.asarray(V))


def test_error_if_raises() -> None:
    xp = registry.get("torch")
    fn = Grafted(lambda x: eqx.error_if(x, x.sum() > 0, "too great"), xp)
    with pytest.raises(RuntimeError, match="too great"):
        fn(xp.asarray(np.abs(V)))
    fn(xp.asarray(-np.abs(V)))
