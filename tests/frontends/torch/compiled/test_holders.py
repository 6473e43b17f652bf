"""Compiled functions see and change the values that a program keeps, wherever it keeps them. A kind of holder is a
function that makes one which holds 1, and returns how it is read and how it is written."""

from __future__ import annotations

import argparse
import array
import collections
import contextvars
import functools
import threading
import types
import weakref
from collections.abc import Callable
from operator import setitem
from typing import Any

import numpy as np
import pytest
import torch

import tensorgraft as tg
import tensorgraft.array_api as xp

pytestmark = [pytest.mark.filterwarnings("ignore::tensorgraft.transforms.UncompiledWarning")]
Access = tuple[Callable[[], Any], Callable[[Any], object]]
HOLDERS: dict[str, Callable[[], Access]] = {}


class Property:
    _n = 1

    @property
    def n(self) -> int:
        return self._n

    @n.setter
    def n(self, value: int) -> None:
        self._n = value


class Forwarding:
    def __init__(self) -> None:
        object.__setattr__(self, "_own", {"n": 1})

    def __getattr__(self, name: str) -> Any:
        return self._own[name]  # a KeyError where Python expects an AttributeError

    def __setattr__(self, name: str, value: Any) -> None:
        self._own[name] = value


class Descriptor:
    def __get__(self, owner: Any, kind: type) -> Any:
        return owner.__dict__["_n"]

    def __set__(self, owner: Any, value: Any) -> None:
        owner.__dict__["_n"] = value


class Described:
    n = Descriptor()

    def __init__(self) -> None:
        self.n = 1


class Meta(type):
    n = 1


def attribute(make: Callable[[], Any]) -> Callable[[], Access]:
    def access() -> Access:
        owner = make()
        return (lambda: owner.n), (lambda value: setattr(owner, "n", value))

    return access


def item(make: Callable[[], Any], key: Any = 0) -> Callable[[], Access]:
    def access() -> Access:
        owner = make()
        return (lambda: owner[key]), (lambda value: setitem(owner, key, value))

    return access


def _function() -> Any:
    def function() -> None:
        pass

    function.n = 1
    return function


def _local() -> threading.local:
    local = threading.local()
    local.n = 1
    return local


def _variable() -> Access:
    variable = contextvars.ContextVar("variable", default=1)
    return (lambda: variable.get()), (lambda value: variable.set(value))


def _marked(tensor: Any) -> Any:
    tensor.n = 1
    return tensor


def _bound() -> Access:
    held = [1]
    get, put = held.__getitem__, held.__setitem__
    return (lambda: get(0)), (lambda value: put(0, value))


def _weak() -> Access:
    owner = Property()
    ref = weakref.ref(owner)
    return (lambda: ref().n), (lambda value: setattr(owner, "n", value))


def _proxy() -> Access:
    table = {"a": 1}
    proxy = types.MappingProxyType(table)
    return (lambda: proxy["a"]), (lambda value: setitem(table, "a", value))


HOLDERS |= {
    "SimpleNamespace": attribute(lambda: types.SimpleNamespace(n=1)),
    "argparse.Namespace": attribute(lambda: argparse.Namespace(n=1)),
    "threading.local": attribute(_local),
    "function": attribute(_function),
    "property": attribute(Property),
    "__getattr__": attribute(Forwarding),
    "descriptor": attribute(Described),
    "metaclass": attribute(lambda: Meta("Made", (), {"n": 1})),
    "UserDict": item(lambda: collections.UserDict(a=1), "a"),
    "UserList": item(lambda: collections.UserList([1])),
    "ChainMap": item(lambda: collections.ChainMap({"a": 1}), "a"),
    "OrderedDict": item(lambda: collections.OrderedDict(a=1), "a"),
    "defaultdict": item(lambda: collections.defaultdict(int, a=1), "a"),
    "deque": item(lambda: collections.deque([1])),
    "array": item(lambda: array.array("l", [1])),
    "bytearray": item(lambda: bytearray([1])),
    "memoryview": item(lambda: memoryview(bytearray([1]))),
    "numpy": item(lambda: np.ones(1, np.int64)),
    "tensor": attribute(lambda: _marked(torch.ones(1))),
    "parameter": attribute(lambda: _marked(torch.nn.Parameter(torch.ones(1)))),
    "nested": item(lambda: types.SimpleNamespace(held=[{"k": [1]}]).held[0]["k"]),
    "partial": item(lambda: functools.partial(max, [1]).args[0]),
    "context variable": _variable,
    "bound method": _bound,
    "weak reference": _weak,
    "mapping proxy": _proxy,
}


def outcome(access: Access, x: Any, jit: Callable[[Any], Any]) -> list[float]:
    get, put = access

    def counts(x: Any) -> Any:
        put(get() + 1)
        return x * get()

    reads = jit(lambda x: x * get())
    seen = [float(reads(x))]
    put(3)
    seen.append(float(reads(x)))
    put(1)
    counts = jit(counts)
    seen += [float(counts(x)) for _ in range(3)]
    return [*seen, float(get())]


@pytest.mark.sampled
@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("kind", HOLDERS)
def test_tensors(kind, backend):
    assert outcome(HOLDERS[kind](), torch.ones(()).to(tg.device(backend)), tg.jit) == [1, 3, 2, 3, 4, 4]


@pytest.mark.parametrize("kind", HOLDERS)
def test_arrays(kind):
    assert outcome(HOLDERS[kind](), xp.asarray(1.0, device="jax"), tg.jit) == [1, 3, 2, 3, 4, 4]
