"""What a compiled function reaches by way of Python: other modules, classes, decorators, the standard library.
What it reads there is looked at before each call, and what it changes there is changed at each call.

A case gives `run` a function, what is changed between two calls, and what is looked at after each.
"""

import collections
import contextlib
import contextvars
import copy
import enum
import functools
import io
import json
import logging
import queue
import sys
import types
import warnings
import weakref

import pytest
import torch
from torch import nn

import tensorgraft as tg

pytestmark = pytest.mark.sampled
CASES = {}
SETTING = 1.0


def case(fn):
    CASES[fn.__name__] = fn
    return fn


@pytest.fixture
def other(monkeypatch):
    """Another module of the program."""
    module = types.ModuleType("other_module_of_the_program")
    source = """
calls, state, count = [], {"k": 1.0}, 0
class Config:
    n = 0
    items = []
def step(x):
    global count
    count += 1
    calls.append(count)
    Config.n += 1
    Config.items.append(2)
    return x * count * state["k"]
"""
    exec(source, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


# ---- other modules ---------------------------------------------------------------------------------------------------


def _seen(other):
    return len(other.calls), other.count, other.Config.n, len(other.Config.items)


def _scale(other):
    return lambda i: other.state.update(k=i + 5.0)


@case
def a_function_of_another_module(run, other):
    run(lambda x: other.step(x), _scale(other), lambda: _seen(other))


@case
def an_import_inside(run, other):
    def f(x):
        import other_module_of_the_program

        return other_module_of_the_program.step(x)

    run(f, _scale(other), lambda: _seen(other))


@case
def a_name_imported_inside(run, other):
    def f(x):
        from other_module_of_the_program import step

        return step(x)

    run(f, _scale(other), lambda: _seen(other))


@case
def a_module_by_its_name(run, other):
    run(lambda x: x * sys.modules["other_module_of_the_program"].state["k"], _scale(other))


@case
def an_attribute_by_its_name(run, other):
    run(lambda x: x * getattr(other, "state")["k"], _scale(other))  # noqa: B009


@case
def objects_in_another_module(run, other):
    class Options:
        def __init__(self):
            self.rate, self.table, self.names = 1.0, {"x": [1.0]}, ["a"]

    other.options = types.SimpleNamespace(inner=Options())

    def change(i):
        inner = other.options.inner
        inner.rate = i + 2.0
        inner.table["x"][0] = i + 3.0
        inner.names.append("b")

    def f(x):
        inner = other.options.inner
        return x * inner.rate * inner.table["x"][0] * len(inner.names)

    run(f, change)


@case
def tensors_in_another_module(run, other):
    other.total = torch.zeros(2).to(run.device)

    def f(x):
        other.total.add_(x)
        return other.total * 2

    run(f, show=lambda: other.total.tolist())


@case
def global_names(run, _):
    def change(i):
        global SETTING
        SETTING = i + 5.0

    change(0)
    run(lambda x: x * globals()["SETTING"], change)
    change(0)
    run(lambda x: x * eval("SETTING"), change)


# ---- classes ---------------------------------------------------------------------------------------------------------


@case
def containers_of_a_class(run, _):
    class Model(nn.Module):
        history, table, nested = [], {}, {"a": [0]}
        t = torch.zeros(2).to(run.device)

        def forward(self, x):
            self.history.append(1)
            self.table[len(self.table)] = 2
            self.nested["a"][0] += 1
            Model.t.add_(x)
            return x * 2

    run(Model(), show=lambda: (len(Model.history), Model.table, copy.deepcopy(Model.nested), Model.t.tolist()))


@case
def an_attribute_that_a_subclass_gets(run, _):
    class Base:
        total = 0

        @classmethod
        def count(cls):
            cls.total += 1
            return cls.total

    class Derived(Base):
        pass

    run(lambda x: x * Derived.count(), show=lambda: (Base.total, Derived.total))


@case
def a_method_that_a_subclass_gets(run, _):
    class Base:
        def g(self, x):
            return x

    class Derived(Base):
        pass

    one = Derived()
    run(lambda x: one.g(x), lambda i: setattr(Derived, "g", lambda self, x: x * (i + 5)))


@case
def special_methods(run, _):
    class One:
        def __call__(self, x):
            return x

        def __len__(self):
            return 3

    one = One()

    def change(i):
        One.__call__ = lambda self, x: x * (i + 5)
        One.__len__ = lambda self: i + 1

    run(lambda x: one(x) * len(one), change)


@case
def a_metaclass(run, _):
    class Meta(type):
        n = 0

        def make(cls):
            Meta.n += 1
            return Meta.n

    class One(metaclass=Meta):
        pass

    run(lambda x: x * One.make(), show=lambda: Meta.n)


@case
def setters_and_cached_properties(run, _):
    class One:
        log, k, _v = [], 2.0, 0

        @property
        def v(self):
            return self._v

        @v.setter
        def v(self, value):
            self.log.append(value)
            self._v = value

        @functools.cached_property
        def cached(self):
            self.log.append("cached")
            return self.k * 3

    one = One()

    def change(i):
        one.k = i + 5.0
        vars(one).pop("cached")

    def f(x):
        one.v = one.v + 1
        return x * one.v * one.cached

    run(f, change, lambda: (one.v, len(one.log)))


@case
def partial_methods(run, _):
    class One:
        n = 0

        def step(self, k, x):
            self.n += k
            return x * self.n

        by_two = functools.partialmethod(step, 2)

    one = One()
    run(lambda x: one.by_two(x), show=lambda: one.n)


@case
def a_forward_of_all_modules_of_a_class(run, _):
    model, before = nn.Linear(2, 2, bias=False).to(run.device), nn.Linear.forward
    nn.init.ones_(model.weight)
    try:
        run(lambda x: model(x).detach(), lambda i: setattr(nn.Linear, "forward", lambda self, x: x * (i + 5)))
    finally:
        nn.Linear.forward = before


@case
def members_of_an_enumeration(run, _):
    class Mode(enum.Enum):
        A = 1

    Mode.A.k = 1.0
    run(lambda x: x * Mode.A.k, lambda i: setattr(Mode.A, "k", i + 5.0))


@case
def attributes_of_a_tuple(run, _):
    class Pair(tuple):
        pass

    pair = Pair([1, 2])
    pair.k = 1.0
    run(lambda x: x * pair.k, lambda i: setattr(pair, "k", i + 5.0))


@case
def objects_of_a_package(run, _):
    transformers = pytest.importorskip("transformers")
    config = transformers.PretrainedConfig()
    config.scale = 1.0
    run(lambda x: x * config.scale, lambda i: setattr(config, "scale", i + 5.0))


@case
def an_attribute_that_comes(run, _):
    one = types.SimpleNamespace()
    run(lambda x: x * (one.k if hasattr(one, "k") else 9.0), lambda i: setattr(one, "k", i + 1.0))


@case
def hyper_parameters(run, _):
    weight = torch.ones(2).to(run.device).requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.5)

    def f(x):
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()
        return x * optimizer.param_groups[0]["lr"]

    rates = [0.25, torch.tensor(0.125), 1.0, 2.0]
    run(f, lambda i: optimizer.param_groups[0].update(lr=rates[i]), lambda: weight.tolist())


# ---- functions -------------------------------------------------------------------------------------------------------


@case
def a_context_manager(run, _):
    depth = [0]

    @contextlib.contextmanager
    def scope():
        depth[0] += 1
        yield depth[0]

    def f(x):
        with scope() as k:
            return x * k

    run(f, show=lambda: depth[0])


@case
def single_dispatch(run, _):
    n = [0]

    @functools.singledispatch
    def g(x):
        return x

    @g.register(torch.Tensor)
    def of_tensors(x):
        n[0] += 1
        return x * n[0]

    run(lambda x: g(x), show=lambda: n[0])


@case
def code_that_is_replaced(run, _):
    def g(x, k=1.0):
        return x * k

    def h(x, k=1.0):
        return x * k * 7

    def change(i):
        g.__code__, g.__defaults__ = h.__code__, (i + 2.0,)

    run(lambda x: g(x), change)


@case
def a_registry_of_functions(run, _):
    registry, n = {}, [0]

    def first(x):
        n[0] += 1
        return x * n[0]

    registry["op"] = first
    run(lambda x: registry["op"](x), lambda i: registry.update(op=lambda x: x * 10) if i == 1 else None, lambda: n[0])


@case
def hooks_of_a_leaf(run, _):
    leaf, state = torch.ones(2).to(run.device).requires_grad_(), {"n": 0, "k": 1.0}

    def hook(gradient):
        state["n"] += 1
        return gradient * state["k"]

    leaf.register_hook(hook)

    def f(x):
        leaf.grad = None
        (leaf * x).sum().backward()
        return leaf.grad

    run(f, lambda i: state.update(k=i + 2.0), lambda: state["n"])


# ---- containers and streams ------------------------------------------------------------------------------------------


@case
def the_order_of_entries(run, _):
    table = collections.OrderedDict(a=1.0, b=2.0)

    def f(x):
        table.move_to_end("a")
        return x * next(iter(table.values()))

    run(f, lambda i: table.move_to_end("b"), lambda: list(table))


@case
def views_of_a_dictionary(run, _):
    table = {"k": 1.0}
    values, proxy = table.values(), types.MappingProxyType(table)
    run(lambda x: x * sum(values) * len(proxy), lambda i: table.update({str(i): 5.0}))


@case
def weak_tables(run, _):
    class Key:
        pass

    key, table = Key(), weakref.WeakKeyDictionary()
    table[key] = 1.0

    def f(x):
        table[key] += 1
        return x * table[key]

    run(f, lambda i: table.update({key: table[key] * 2}), lambda: table[key])


@case
def queues(run, _):
    waiting = queue.Queue()

    def f(x):
        waiting.put(1)
        return x * 2

    run(f, show=waiting.qsize)


@case
def streams(run, _):
    stream = io.StringIO()

    def f(x):
        stream.write("a")
        return x * 2

    run(f, show=stream.getvalue)


@case
def arguments_of_the_process(run, _):
    sys.argv.append("3")
    try:
        run(lambda x: x * float(sys.argv[-1]), lambda i: sys.argv.__setitem__(-1, str(i + 5)))
    finally:
        sys.argv.pop()


@case
def copies_of_state(run, _):
    one, nested = types.SimpleNamespace(k=1.0), [[1.0]]

    def change(i):
        one.k, nested[0][0] = i + 5.0, i + 2.0

    run(lambda x: x * copy.copy(one).k * copy.deepcopy(nested)[0][0] * json.loads(json.dumps(nested))[0][0], change)


@case
def the_level_of_a_logger(run, _):
    logger = logging.getLogger("tensorgraft.tests.level")
    logger.setLevel(30)
    run(lambda x: x * 2 if logger.isEnabledFor(20) else x * 3, lambda i: logger.setLevel(10 if i % 2 == 0 else 30))


@case
def context_variables(run, _):
    variable = contextvars.ContextVar("variable", default=1.0)
    run(lambda x: x * variable.get(), lambda i: variable.set(i + 5.0))


# ---- what is said ----------------------------------------------------------------------------------------------------


@case
def prints(run, _):
    stream = io.StringIO()

    def f(x):
        print("shape", tuple(x.shape), sep=": ", end=";")
        return x * 2

    with contextlib.redirect_stdout(stream):
        run(f, show=stream.getvalue)


@case
def logs(run, _):
    logger, stream = logging.getLogger("tensorgraft.tests.said"), io.StringIO()
    logger.handlers, logger.propagate = [logging.StreamHandler(stream)], False
    logger.setLevel(10)

    def f(x):
        logger.info("%d axes", x.dim())
        return x * 2

    run(f, show=stream.getvalue)


@case
def warns(run, _):
    def f(x):
        warnings.warn("this is deprecated", FutureWarning, stacklevel=1)
        return x * 2

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FutureWarning)
        run(f, show=lambda: [w.filename for w in caught if w.category is FutureWarning])


@pytest.mark.parametrize("backend", tg.backends())
@pytest.mark.parametrize("name", CASES)
def test_as_without_jit(name, backend, other):
    def outcome(device, jit):
        seen = []

        def run(f, change=lambda i: None, show=lambda: None):
            f = jit(f)
            for i in range(4):
                seen.append((f(torch.ones(2).to(device)).tolist(), show()))
                change(i)

        run.device = device
        CASES[name](run, other)
        return seen

    state = copy.deepcopy(other.state)
    expected = outcome(torch.device("cpu"), lambda f: f)
    other.calls.clear()
    other.Config.items.clear()
    other.count, other.Config.n = 0, 0
    other.state.clear()
    other.state.update(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tg.transforms.UncompiledWarning)
        given = outcome(tg.device(backend), tg.jit)
    assert given == expected
