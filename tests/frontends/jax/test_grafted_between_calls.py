"""Grafted JAX functions whose surroundings change between two calls: each call is what JAX computes of them then."""

import abc
import contextlib
import itertools
import math
import os
import random
import time
import types
import warnings
from collections import deque

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import linen, nnx

import tensorgraft as tg
from tensorgraft.compiled.uncompiled import UncompiledWarning

INTO = {"torch": torch.from_numpy, "numpy": np.asarray}
ONES = np.ones(2, np.float32)
FACTOR, WEIGHTS, HOST = 2.0, jnp.ones(2), np.ones(2, np.float32)


class Model:
    shared = 1.0

    def __init__(self):
        self.scale, self.layers, self.active = 2.0, [jnp.ones(2)], {"a"}

    def __call__(self, x):
        return x * self.scale * sum(self.layers) * self.shared + len(self.active)


def helper(x):
    return x + 1


def _set_globals(**values):
    globals().update(values)


def _of_globals():
    yield lambda x: helper(x) * FACTOR * WEIGHTS + HOST
    yield lambda: _set_globals(FACTOR=3.0)
    yield lambda: _set_globals(WEIGHTS=jnp.full(2, 5.0))
    yield lambda: HOST.fill(7)
    yield lambda: _set_globals(helper=lambda x: x - 1)


def _of_objects():
    model = Model()
    yield model
    yield lambda: setattr(model, "scale", 3.0)
    yield lambda: model.layers.append(jnp.ones(2))
    yield lambda: model.layers.__setitem__(0, jnp.zeros(2))
    yield lambda: model.active.add("b")
    yield lambda: setattr(Model, "shared", 4.0)


def _of_a_method():
    model = Model()
    yield model.__call__
    yield lambda: setattr(model, "scale", 5.0)


def _of_containers():
    flags, recent, module, weights = {"train": True}, deque([1.0], 3), types.ModuleType("settings"), [jnp.ones(2)]
    module.rate = 0.5
    yield lambda x: (x * 2 if flags["train"] else x) * module.rate + sum(recent) + weights[0]
    yield lambda: flags.update(train=False)
    yield lambda: recent.append(2.0)
    yield lambda: setattr(module, "rate", 0.25)
    yield lambda: weights.__setitem__(0, jnp.full(2, 9.0))


def _of_the_environment():
    os.environ["TENSORGRAFT_TEST_RATE"] = "2"
    yield lambda x: x * float(os.environ["TENSORGRAFT_TEST_RATE"])
    yield lambda: os.environ.update(TENSORGRAFT_TEST_RATE="3")


def _of_custom_derivatives():
    scale, slope = [2.0], [3.0]

    @jax.custom_vjp
    def scaled(x):
        return x * scale[0]

    @jax.custom_jvp
    def bent(x):
        return x * scale[0]

    scaled.defvjp(lambda x: (scaled(x), None), lambda _, ct: (ct * slope[0],))
    bent.defjvp(lambda primals, tangents: (bent(*primals), tangents[0] * slope[0]))
    yield jax.grad(lambda x: jax.numpy.sum(scaled(x) * bent(x)))
    yield lambda: scale.__setitem__(0, 5.0)
    yield lambda: slope.__setitem__(0, 7.0)


def _of_libraries():
    scale = [2.0]
    yield lambda x: jax.numpy.negative(x) * math.tau
    yield lambda: setattr(jnp, "negative", lambda x: x * scale[0])
    yield lambda: scale.__setitem__(0, 5.0)
    yield lambda: setattr(math, "tau", 1.0)


def _of_functions_in_libraries():
    held = types.SimpleNamespace(rate=0.5)
    optimizer = optax.chain(optax.clip(10.0), optax.sgd(lambda count: held.rate * (count + 1)))
    state = optimizer.init(jnp.ones(2))
    yield lambda x: optimizer.update(x, state)[0]
    yield lambda: setattr(held, "rate", 0.25)


def _of_classes_that_are_registered():
    class Scales(abc.ABC):  # noqa: B024
        pass

    class Thing:
        def __bool__(self):
            return True

    thing = Thing()
    yield lambda x: x * 2 if isinstance(thing, Scales) else x * getattr(thing, "gain", 1.0)
    yield lambda: setattr(Thing, "__getattr__", lambda self, name: 5.0)
    yield lambda: Scales.register(Thing) and None


def _of_contexts_of_a_package():
    layer = linen.Dense(2)
    parameters = layer.init(jax.random.key(0), jnp.ones(2))
    stack = contextlib.ExitStack()
    tripled = linen.intercept_methods(lambda call, args, kwargs, context: call(*args, **kwargs) * 3)
    yield lambda x: layer.apply(parameters, x)
    yield lambda: stack.enter_context(tripled) and None
    yield stack.close


CHANGES = [_of_functions_in_libraries, _of_classes_that_are_registered, _of_contexts_of_a_package]
CHANGES += [_of_globals, _of_objects, _of_a_method, _of_containers, _of_the_environment]
CHANGES += [_of_custom_derivatives, _of_libraries]


@pytest.mark.parametrize("onto", INTO)
@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: changes.__name__)
def test_what_is_read(changes, onto, monkeypatch):
    for name in ("FACTOR", "WEIGHTS", "helper"):
        monkeypatch.setitem(globals(), name, globals()[name])
    monkeypatch.setattr(Model, "shared", 1.0)
    monkeypatch.setattr(jnp, "negative", jnp.negative)
    monkeypatch.setattr(math, "tau", math.tau)
    monkeypatch.setenv("TENSORGRAFT_TEST_RATE", "2")
    HOST.fill(1)
    fn, *steps = changes()
    grafted = tg.graft(fn, onto=onto)
    for step in (lambda: None, *steps):
        step()
        for _ in range(2):
            np.testing.assert_allclose(grafted(INTO[onto](ONES)), fn(jnp.asarray(ONES)))


@pytest.mark.parametrize("onto", INTO)
def test_classes_and_static_fields_of_arguments(onto):
    held = types.SimpleNamespace(gain=2.0)

    class Fields(equinox.Module):
        weight: jax.Array
        bent: object = equinox.field(static=True)

        def __call__(self, x):
            return self.bent(x * self.weight)

    class Objects(nnx.Module):
        def __init__(self):
            self.weight, self.bent = nnx.Param(jnp.ones(2)), lambda x: x * held.gain

        def __call__(self, x):
            return self.bent(x * self.weight[...])

    grafted = tg.graft(lambda model, x: model(x), onto=onto)
    for model in (Fields(jnp.ones(2), lambda x: x * held.gain), Objects()):
        for held.gain in (2.0, 3.0, 2.0):
            np.testing.assert_array_equal(grafted(model, INTO[onto](ONES)), ONES * held.gain)
        type(model).__call__ = lambda self, x: x + 100
        np.testing.assert_array_equal(grafted(model, INTO[onto](ONES)), ONES + 100)


def test_variables_that_are_no_arguments():
    streams = nnx.Rngs(0)
    with pytest.raises(tg.TracedValueError, match="pass it:  the module, the optimizer"):
        tg.graft(lambda x: x + jax.random.normal(streams(), (2,)), onto="numpy")(ONES)
    drawn = tg.graft(lambda streams, x: x + jax.random.normal(streams(), (2,)), onto="numpy")
    judge = nnx.Rngs(0)
    for _ in range(2):
        np.testing.assert_allclose(drawn(streams, ONES), ONES + jax.random.normal(judge(), (2,)), rtol=1e-6)


def test_static_objects():
    model, grafted = Model(), tg.graft(lambda x, m: x * m.scale, onto="numpy")
    for model.scale in (2.0, 3.0, 2.0):
        np.testing.assert_array_equal(grafted(ONES, model), ONES * model.scale)


def test_static_objects_that_are_equal():
    class Scale:
        def __init__(self, value):
            self.value = value

        def __eq__(self, other):
            return isinstance(other, Scale)

        def __hash__(self):
            return 1

    grafted = tg.graft(lambda x, scale: x * scale.value, onto="numpy")
    for value in (2.0, 3.0, 2.0):
        np.testing.assert_array_equal(grafted(ONES, Scale(value)), ONES * value)


def test_names_are_in_the_order_of_the_call():
    def fn(**named):
        return sum(x * (k + 1) for k, x in enumerate(named.values()))

    grafted, other = tg.graft(fn, onto="numpy"), np.full(2, 5, np.float32)
    for named in ({"a": ONES, "b": other}, {"b": other, "a": ONES}, {"a": ONES, "b": other}):
        np.testing.assert_array_equal(grafted(**named), fn(**named))


@pytest.mark.filterwarnings("ignore::tensorgraft.compiled.uncompiled.UncompiledWarning")
@pytest.mark.parametrize("onto", INTO)
def test_what_is_changed_before_an_error_stays(onto):
    log, state = [], {"calls": 0, "fails": False}

    def fn(x):
        log.append(len(log))
        state["calls"] += 1
        if state["fails"]:
            raise KeyError("the program's own")
        return x * state["calls"]

    grafted, x = tg.graft(fn, onto=onto), INTO[onto](ONES)
    for calls, fails in enumerate((False, True, True, False), 1):
        state["fails"] = fails
        if fails:
            with pytest.raises(KeyError):
                grafted(x)
        else:
            np.testing.assert_array_equal(grafted(x), ONES * calls)
        assert state["calls"] == calls == len(log)


def test_what_is_only_written_is_written_at_each_call(recwarn):
    log, counts = [], {"calls": 0}

    def fn(x):
        log.append(x.shape[0])
        counts["calls"] += 1
        return x * 2

    grafted = tg.graft(fn, onto="torch")
    for _ in range(3):
        grafted(torch.ones(2))
    grafted(torch.ones(4))
    assert log == [2, 2, 2, 4] and counts == {"calls": 4} and not recwarn.list


@pytest.mark.parametrize("onto", INTO)
def test_what_differs_at_each_call(onto):
    seen, counter, generator = [], itertools.count(1.0), np.random.default_rng(0)

    def counted(x):
        seen.append(1)
        return x * len(seen)

    functions = [
        counted,
        lambda x: x * next(counter),
        lambda x: x * random.random(),
        lambda x: x * generator.random(),
        lambda x: x * time.perf_counter(),
    ]
    for fn in functions:
        grafted = tg.jit(tg.graft(fn, onto=onto))
        with pytest.warns(UncompiledWarning, match="It is traced anew at each call"):
            results = [float(grafted(INTO[onto](ONES))[0]) for _ in range(3)]
        assert len(set(results)) == 3, results
        if fn in functions[:2]:
            assert results == [1, 2, 3]


def test_what_fails_leaves_no_trace():
    log = []

    def fn(x):
        log.append(1)
        return x if x.sum() > 0 else -x

    with pytest.raises(tg.TracedValueError):
        tg.graft(fn, onto="numpy")(ONES)
    assert log == []


def test_what_jax_has_traced_is_as_in_jax(monkeypatch):
    """A function that `jax.jit` has compiled keeps what it read."""
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    fn = jax.jit(lambda x: x * FACTOR)
    grafted = tg.graft(fn, onto="numpy")
    for value in (2.0, 3.0):
        _set_globals(FACTOR=value)
        np.testing.assert_array_equal(grafted(ONES), fn(ONES))


def test_large_arrays_are_constants():
    table = np.zeros(1 << 23, np.float32)
    grafted = tg.graft(lambda x: x + table[:2], onto="numpy")
    with pytest.warns(UserWarning, match="Later writes to it are not seen"):
        grafted(ONES)
    table.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tg.graft(lambda x: x + table[:2], onto="numpy")(ONES)
