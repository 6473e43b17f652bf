"""Arguments of compiled functions of arrays: containers told apart exactly, and objects."""

import collections
import dataclasses
import types
from typing import NamedTuple

import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp

attrs = pytest.importorskip("attrs")


@dataclasses.dataclass
class Scaled:
    a: object
    by: object = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: object
    by: int = 2


class Pair(NamedTuple):
    a: object
    by: object


@attrs.define
class Defined:
    a: object
    by: int = 1


class Plain:
    def __init__(self, a, by):
        self.a, self.by = a, by


@pytest.fixture(params=["jax", "numpy", "torch", "tensorflow"])
def device(request):
    return request.param


def told(value):
    """Return arrays as lists, classes and order included."""
    if isinstance(value, xp.asarray(0.0).__class__):
        return value.tolist()
    if isinstance(value, dict):
        return type(value), [(type(key), key, told(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [told(item) for item in value]
    if hasattr(value, "by"):
        return type(value), told(value.a), told(value.by)
    return type(value), value


def agree(fn, *calls):
    run = tg.jit(fn)
    for _ in range(2):
        for argument in calls:
            assert told(run(argument)) == told(fn(argument))


def test_keys_are_told_apart(device):
    x = xp.asarray([1.0, 2.0], device=device)
    agree(lambda d: {key: v + 1 for key, v in d.items()}, *({key: x} for key in (1, True, 1.0)))
    agree(lambda d: [repr([*d["a"]]), d["a"][1] * 2], *({"a": {key: x}} for key in (1, True, 1.0)))
    agree(lambda d: repr([*d]), *({key: x} for key in (0.0, -0.0, 0, False)))
    agree(lambda d: repr([*d]), *({(key, 2): x} for key in (1, True, 1.0)))
    agree(lambda d: [*d.values()], {"a": x, "b": x * 2}, {"b": x * 2, "a": x})
    agree(lambda s: x * len(repr(s)), {1}, {True}, {1.0})


@pytest.mark.parametrize(
    "kind", [Scaled, Frozen, Pair, Defined, Plain, lambda a, by: types.SimpleNamespace(a=a, by=by)]
)
def test_objects(device, kind):
    x = xp.asarray([1.0, 2.0], device=device)
    run = tg.jit(lambda d: (d.a * float(d.by), kind(d.a + 1, d.by)))
    for a, by in ((x, 2), (x * 3, 2), (x, 3), (x, True), (x * 2, 2)):
        scaled, made = run(kind(a, by))
        assert scaled.tolist() == (a * float(by)).tolist()
        assert made.a.tolist() == (a + 1).tolist() and type(made.by) is type(by) and made.by == by
    assert device == "numpy" or len(run.traces) <= 3


def test_objects_in_containers(device):
    x = xp.asarray([1.0, 2.0], device=device)
    agree(lambda d: {key: one.a * one.by for key, one in d.items()}, {"a": Scaled(x), "b": Scaled(x, 3)})
    agree(lambda d: [Scaled(one.a, one.by) for one in d], [Scaled(x), Frozen(x * 2)], [Scaled(x)])
    agree(lambda d: collections.deque(one.a * 2 for one in d).pop(), collections.deque([Scaled(x), Scaled(x * 4)]))


def test_objects_that_are_changed(device):
    def step(d):
        d.a = d.a + 1
        return d.a * 2

    run, one = tg.jit(step), Scaled(xp.asarray([1.0, 2.0], device=device))
    assert [run(one).tolist() for _ in range(3)] == [[4, 6], [6, 8], [8, 10]]
    assert one.a.tolist() == [4, 5]
