"""State of many kinds that a compiled function reads or changes, and what another thread changes meanwhile: as without
`tg.jit`, on every backend."""

import array
import collections
import copy
import csv
import ctypes
import functools
import io
import logging
import multiprocessing
import queue
import sys
import threading
import time
import types
import warnings
import weakref

import pytest
import torch
from tests.frontends.torch.compiled.without_jit import Cases, changed, full, with_and_without
from torch import nn

import tensorgraft as tg

pytestmark = [pytest.mark.sampled, pytest.mark.filterwarnings("ignore::tensorgraft.transforms.UncompiledWarning")]
case = Cases()
CASES = case.functions


# ---- attributes ------------------------------------------------------------------------------------------------------


@case
def attributes_that_take_the_place_of_the_class_s(device, jit):
    class Model:
        gains = [1.0]  # noqa: RUF012

        def scaled(self, x):
            return x * sum(self.gains)

        @staticmethod
        def moved(x):
            return x + 1

    model, x = Model(), full(1, device)
    run = jit(lambda x: model.moved(model.scaled(x)))
    out = [run(x)]
    model.scaled = lambda x: x * 5
    out.append(run(x))
    model.moved = lambda x: x - 1
    out.append(run(x))
    del model.scaled
    model.gains = [3.0]
    return [*out, run(x)]


@case
def objects_without_attributes_that_are_copied(device, jit):
    class Slotted:
        __slots__ = ("gains",)

    pair, slotted, x = collections.namedtuple("Pair", "gain bias")(2.0, [1.0]), Slotted(), full(1, device)
    holder = types.SimpleNamespace(pair=pair)
    slotted.gains = [1.0]
    named = jit(lambda x: x * copy.deepcopy(holder.pair).bias[0] + copy.copy(holder.pair).gain)
    out = changed(named, lambda k: pair.bias.__setitem__(0, float(k)), x)
    out += changed(named, lambda k: setattr(holder, "pair", pair._replace(gain=float(k))), x)
    copied = jit(lambda x: x * copy.deepcopy(slotted).gains[0])
    return out + changed(copied, lambda k: slotted.gains.__setitem__(0, float(k)), x)


@case
def objects_of_c_that_hold_values(device, jit):
    text, raw, cell, x = io.StringIO("1"), io.BytesIO(b"1"), types.CellType(1.0), full(1, device)

    def put(k):
        text.seek(0)
        text.write(str(k))
        raw.seek(0)
        raw.write(str(k).encode())
        cell.cell_contents = float(k)

    runs = [lambda x: x * float(text.getvalue()), lambda x: x * float(raw.getvalue()), lambda x: x * cell.cell_contents]
    return [out for run in runs for out in changed(jit(run), put, x)]


@case
def attributes_that_a_first_call_makes(device, jit):
    """Of a module, wherever the function finds it."""
    module, holder = nn.Identity(), types.SimpleNamespace(module=nn.Identity())

    def counted(x, holder):
        holder.module.calls = getattr(holder.module, "calls", 0) + 1
        return x * holder.module.calls

    def counted_in_variables(x, module):
        module.calls = vars(module).get("calls", 0) + 1
        return x * module.calls

    runs = (jit(counted), holder), (jit(counted_in_variables), module)
    return [run(full(1, device), given) for run, given in runs for _ in range(2)]


@case
def arguments_that_are_not_hashable(device, jit):
    numbers, holder, x = array.array("d", [2.0]), types.SimpleNamespace(raw=bytearray(b"a")), full(1, device)
    holder.x = x
    run, inner = jit(lambda x, numbers: x * numbers[0]), jit(lambda h: h.x * h.raw[0])
    out = [run(x, numbers), inner(holder)]
    numbers[0], holder.raw[0] = 3.0, 5
    return [*out, run(x, numbers), inner(holder)]


@case
def a_method_of_one_module(device, jit):
    class Model(nn.Module):
        def scaled(self, x):
            return x * 2

        def forward(self, x):
            return self.scaled(x) + 1

    model, x = Model(), full(1, device)
    run = jit(model)
    out = [run(x)]
    model.scaled = lambda x: x * 5
    return [*out, run(x)]


@case
def containers_behind_vars(device, jit):
    held = types.SimpleNamespace(gains=[1.0], x=0.0)
    other = copy.copy(type("Held", (), {})())
    other.gains = [1.0]
    run, x = jit(lambda x: x * sum(vars(other)["gains"]) + other.__dict__["gains"][0] + held.x), full(1, device)
    out = [run(x)]
    other.gains.append(2.0)
    out.append(run(x))
    other.gains[0] = 4.0
    return [*out, run(x)]


@case
def a_slot_that_is_filled_later(device, jit):
    class Slotted:
        __slots__ = ("gain",)

    held, x = Slotted(), full(1, device)
    run = jit(lambda x: x * held.gain if hasattr(held, "gain") else x)
    out = [run(x)]
    held.gain = 3.0
    out.append(run(x))
    del held.gain
    return [*out, run(x)]


@case
def attributes_that_a_class_looks_up_itself(device, jit):
    class Settings:
        def __init__(self):
            object.__setattr__(self, "table", {"gain": 2.0})

        def __getattribute__(self, name):
            table = object.__getattribute__(self, "table")
            return table[name] if name in table else object.__getattribute__(self, name)

        def __setattr__(self, name, value):
            object.__getattribute__(self, "table")[name] = value

    settings, x = Settings(), full(1, device)
    run = jit(lambda x: x * settings.gain + sum(getattr(settings, "moves", ())))
    out = [run(x)]
    settings.moves = [1.0]
    out.append(run(x))
    settings.moves.append(4.0)
    out.append(run(x))
    settings.gain = 0.0
    return [*out, run(x)]


# ---- Python modules and names ----------------------------------------------------------------------------------------


def module_of(monkey, **names):
    made = types.ModuleType("tensorgraft_tests_settings")
    vars(made).update(names)
    sys.modules[made.__name__] = made
    monkey.append(made.__name__)
    return made


@case
def modules_imported_inside(device, jit):
    names = []
    try:
        module_of(names, gain=2.0)

        def f(x):
            import tensorgraft_tests_settings

            return x * tensorgraft_tests_settings.gain

        run, x = jit(f), full(1, device)
        out = [run(x)]
        module_of(names, gain=3.0)
        return [*out, run(x)]
    finally:
        sys.modules.pop(*names[:1])


@case
def a_module_with_attributes_of_its_own_making(device, jit):
    table = {"gain": 2.0}
    made = types.ModuleType("made")
    made.__getattr__ = lambda name: table[name]
    run, x = jit(lambda x: x * made.gain), full(1, device)
    out = [run(x)]
    table["gain"] = 3.0
    out.append(run(x))
    made.gain = 5.0
    return [*out, run(x)]


@case
def classes_by_a_name_that_is_a_value(device, jit):
    class One:
        gain = 1.0

    made = types.ModuleType("made")
    made.One, made.Two = One, type("Two", (One,), {"gain": 2.0})
    kind, x = {"name": "One"}, full(1, device)
    run = jit(lambda x: x * getattr(made, kind["name"])().gain)
    out = [run(x)]
    One.gain = 3.0
    out.append(run(x))
    kind["name"] = "Two"
    return [*out, run(x)]


@case
def the_factory_of_a_default_dictionary(device, jit):
    held = types.SimpleNamespace(gain=1.0)
    table, x = collections.defaultdict(lambda: held.gain), full(1, device)
    run = jit(lambda x, key: x * table[key])
    out = [run(x, "a")]
    table.clear()
    held.gain = 3.0
    out.append(run(x, "a"))
    table.clear()
    table.default_factory = lambda: 5.0
    return [*out, run(x, "a"), dict(table)]


@case
def functions_of_a_module_with_variables_of_their_own(device, jit):
    table, default = {"gain": 2.0}, [1.0]
    made = types.ModuleType("made")
    made.scaled = lambda x: x * table["gain"]
    made.moved = lambda x, by=default: x + by[0]
    run, x = jit(lambda x: made.moved(made.scaled(x))), full(1, device)
    out = [run(x)]
    table["gain"] = 3.0
    out.append(run(x))
    default[0] = 5.0
    return [*out, run(x)]


@case
def subclasses_that_are_defined_later(device, jit):
    class Base:
        gain = 1.0

    kept, x = [type("One", (Base,), {"gain": 2.0})], full(1, device)
    run = jit(lambda x: x * sum(cls.gain for cls in Base.__subclasses__()))
    out = [run(x)]
    kept.append(type("Two", (Base,), {"gain": 3.0}))
    out.append(run(x))
    kept[1].gain = 5.0
    return [*out, run(x)]


@case
def methods_by_a_name_that_is_put_together(device, jit):
    class Model:
        kind = "one"

        def by_one(self, x):
            return x + 1

        def __call__(self, x):
            return getattr(self, f"by_{self.kind}")(x)

    model, x = Model(), full(1, device)
    run = jit(lambda x: model(x))
    out = [run(x)]
    Model.by_one = lambda self, x: x * 5
    return [*out, run(x)]


# ---- objects that refer to others weakly -----------------------------------------------------------------------------


class Thing:
    pass


@case
def dictionaries_and_sets_of_weak_references(device, jit):
    one, two = Thing(), Thing()
    counts, named, met = weakref.WeakKeyDictionary(), weakref.WeakValueDictionary(), weakref.WeakSet()

    def f(x, thing):
        counts[thing] = counts.get(thing, 0) + 1
        return x * counts[thing]

    def g(x, thing, name):
        named[name] = thing
        met.add(thing)
        return x + len(met)

    run, noting, x = jit(f), jit(g), full(1, device)
    out = [run(x, thing) for thing in (one, two, one, one, two)]
    out += [noting(x, thing, name) for thing, name in ((one, "a"), (two, "b"), (one, "b"), (one, "a"))]
    return [*out, counts[one], counts[two], named["a"] is one, named["b"] is one, len(met)]


@case
def weak_references_to_what_is_made_inside(device, jit):
    held = types.SimpleNamespace(thing=None, reference=None)

    def f(x):
        held.thing = Thing()
        held.thing.x = x * 2
        held.reference = weakref.ref(held.thing)
        return x

    run, out = jit(f), []
    for i in range(3):
        run(full(i, device))
        out += [held.reference() is held.thing, held.thing.x]
    return out


# ---- what a function makes -------------------------------------------------------------------------------------------


@case
def modules_made_inside(device, jit):
    def f(x):
        with torch.no_grad():
            made = nn.LayerNorm(2, device=x.device).requires_grad_(False)
            made.weight.mul_(x)
            return made(x), made

    run = jit(f)
    results = [run(full(i, device)) for i in range(3)]
    return [[y, made.weight] for y, made in results] + [len({id(made) for _, made in results})]


@case
def copies_of_a_module(device, jit):
    layer = nn.Linear(2, 2, bias=False).requires_grad_(False)
    layer.weight.fill_(1.0)
    layer = layer.to(device)

    def copied(x):
        made = copy.deepcopy(layer)
        return made(x), made

    run, x, copies = jit(copied), full(1, device), []
    for _ in range(3):
        copies += run(x)
        layer.weight.add_(1)
    return [x if isinstance(x, torch.Tensor) else x.weight for x in copies]


@case
def tensors_that_a_cached_function_makes(device, jit):
    made = []

    @functools.lru_cache
    def mask(n):
        made.append(n)
        return torch.ones(n, device=device)

    run, x = jit(lambda x: x * mask(2)), full(1, device)
    out = [run(x), run(x)]
    mask(2).add_(1)
    out.append(run(x))
    mask.cache_clear()
    return [*out, run(x), mask(2), made]


@case
def a_gradient_that_is_kept(device, jit):
    leaf, held = full(1, device).requires_grad_(), types.SimpleNamespace(before=None)

    def f(x):
        leaf.grad = None
        (leaf * leaf * x).sum().backward()
        held.before = leaf.grad
        return leaf.grad

    run, out = jit(f), []
    for i in range(3):
        given = run(full(i + 1, device))
        out += [given is leaf.grad, held.before is leaf.grad]
        given.add_(1)
        out.append(leaf.grad.clone())
    return out


@case
def results_that_are_lazy(device, jit):
    kinds = {
        "map": lambda x: map(torch.neg, [x]),
        "views": lambda x: {"a": x * 2}.values(),
        "iterator": lambda x: iter([x * 3]),
    }
    run = jit(lambda x, kind: kinds[kind](x))
    return [list(run(full(i, device), kind)) for kind in kinds for i in range(2)]


@case
def an_optimizer_that_counts_in_python(device, jit):
    class Decaying(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.5})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p]["n"] = self.state[p].get("n", 0) + 1
                    p.sub_(p.grad, alpha=group["lr"] / self.state[p]["n"])

    leaf = full(8, device).requires_grad_()
    optimizer = Decaying([leaf])

    def f(x):
        optimizer.zero_grad()
        (leaf * x).sum().backward()
        optimizer.step()

    run, out = jit(f), []
    for i in range(4):
        run(full(i, device))
        out.append(leaf.detach().clone())
    return [*out, optimizer.state[leaf]["n"]]


# ---- the standard library --------------------------------------------------------------------------------------------


@case
def events(device, jit):
    event, x = threading.Event(), full(1, device)
    run = jit(lambda x: x * 2 if event.is_set() else x)
    out = [run(x)]
    event.set()
    out.append(run(x))
    event.clear()
    setting = jit(lambda x: event.set() or x)
    out += [run(x), setting(x), event.is_set()]
    event.clear()
    return [*out, setting(x), event.is_set()]


@case
def numbers_of_c(device, jit):
    number, shared = ctypes.c_int(1), multiprocessing.Value("d", 1.0)

    def counted(x):
        number.value += 1
        return x * number.value

    run, counting, x = jit(lambda x: x * number.value + shared.value), jit(counted), full(1, device)
    out = [run(x)]
    number.value, shared.value = 3, 5.0
    return [*out, run(x), counting(x), counting(x), number.value]


@case
def objects_of_c_without_contents_to_compare(device, jit):
    given, taken, text = queue.SimpleQueue(), queue.SimpleQueue(), io.StringIO()
    writer = csv.writer(text)
    for k in range(4):
        given.put(float(k))

    def f(x):
        taken.put(x)
        writer.writerow(["row"])
        return x * given.get()

    run, x = jit(f), full(1, device)
    return [run(x), run(x), run(x), given.qsize(), taken.qsize(), text.getvalue()]


# ---- other threads ---------------------------------------------------------------------------------------------------


@case
def what_another_thread_changes_meanwhile(device, jit):
    class Trainer:
        def __init__(self):
            self.calls, self.beats, self.received, self.queue = 0, 0, [], queue.Queue()

        def step(self, x):
            self.calls += 1
            for _ in range(50):
                x = x * 1.0
                time.sleep(0)
            return x

        def receive(self):
            while not stopped:
                self.beats += 1
                self.received.append(self.beats)
                self.queue.put(self.beats)
                time.sleep(0.0002)

    trainer, stopped = Trainer(), []
    thread = threading.Thread(target=trainer.receive, daemon=True)
    thread.start()
    run, out = jit(trainer.step), []
    try:
        for i in range(3):
            out.append(run(full(i, device)))
    finally:
        stopped.append(True)
        thread.join()
    everything = list(range(1, trainer.beats + 1))
    return [*out, trainer.calls, trainer.received == everything, list(trainer.queue.queue) == everything]


# ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", tg.backends())
@pytest.mark.parametrize("name", CASES)
def test_as_without_it(name, backend):
    given, judge = with_and_without(CASES[name], backend)
    assert given == judge


def test_what_is_said_is_compiled():
    logger, stream = logging.getLogger("tensorgraft.tests.kinds"), io.StringIO()
    logger.handlers, logger.propagate = [logging.StreamHandler(stream)], False
    logger.setLevel(logging.INFO)

    def f(x):
        logger.info("%d axes", x.dim())
        warnings.warn("a warning of the program", FutureWarning, stacklevel=1)
        return x * 2

    run, x = tg.jit(f), full(1, tg.device("jax"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            run(x)
    assert [w.category for w in caught] == [FutureWarning] * 3  # none that says that it runs uncompiled
    assert stream.getvalue() == "1 axes\n" * 3
