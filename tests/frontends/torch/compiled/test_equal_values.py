"""Values that are equal and not the same, lookups that have effects or leave no trace, and tensors that differ in what
autograd allows: as without `tg.jit`, on every backend."""

import datetime
import decimal
import sys
import types

import numpy as np
import pytest
import torch
from tests.frontends.torch.compiled.without_jit import Cases, full, with_and_without

import tensorgraft as tg

pytestmark = [pytest.mark.sampled, pytest.mark.filterwarnings("ignore::tensorgraft.transforms.UncompiledWarning")]
case = Cases()
CASES = case.functions


def attempt(fn, *args):
    try:
        return fn(*args)
    except RuntimeError as error:
        return type(error).__name__


# ---- values ----------------------------------------------------------------------------------------------------------


class Name(str):
    """A string with an attribute."""


@case
def arguments_that_are_equal(device, jit):
    names = Name("a"), Name("a")
    names[0].gain, names[1].gain = 2.0, 3.0
    x, scaled = full(1, device), jit(lambda x, name: x * name.gain)
    out = [scaled(x, name) for name in (*names, *names)]
    names[0].gain = 9.0
    out += [scaled(x, name) for name in names]
    zone = datetime.timezone(datetime.timedelta(hours=1))
    noon = datetime.datetime(2026, 12, 1, 12, tzinfo=datetime.UTC)
    written = jit(lambda x, value: x + len(str(value)) + getattr(value, "hour", 0))
    values = [decimal.Decimal("1.5"), decimal.Decimal("1.500"), range(0), range(1, 1), noon, noon.astimezone(zone)]
    values += [np.float32(0.0), np.float32(-0.0)]
    return out + [written(x, value) for value in (*values, *reversed(values))]


@case
def objects_in_arrays(device, jit):
    array = np.empty(2, object)
    array[0], array[1] = [1.0], 2.0
    table = np.zeros(1, [("number", float), ("objects", object)])
    table["objects"][0] = [5.0]
    run = jit(lambda x: x * sum(array[0]) + array[1] + sum(table["objects"][0]) + float(table["number"][0]))
    x = full(1, device)
    out = [run(x), run(x)]
    array[0][0] = 4.0
    out.append(run(x))
    table["objects"][0].append(7.0)
    out.append(run(x))
    table["number"][0] = 8.0
    out.append(run(x))
    array[1] = 3.0

    def counted(x):
        array[0].append(float(len(array[0])))
        return x * sum(array[0])

    counting = jit(counted)
    return [*out, run(x), *(counting(x) for _ in range(3)), array[0]]


# ---- lookups ---------------------------------------------------------------------------------------------------------


@case
def lookups_with_effects(device, jit):
    class Logged:
        def __init__(self):
            self.names, self.table = [], {"gain": 2.0}

        def __getattr__(self, name):
            self.names.append(name)
            return self.table[name]

    class Counted:
        def __init__(self):
            self.count, self.gain = 0, 2.0

        def __getattribute__(self, name):
            if name == "gain":
                object.__setattr__(self, "count", object.__getattribute__(self, "count") + 1)
            return object.__getattribute__(self, name)

    x, logged, counted = full(1, device), Logged(), Counted()
    first, second = jit(lambda x: x * logged.gain), jit(lambda x: x * counted.gain)
    out = [run(x) for run in (first, second) for _ in range(4)]
    logged.table["gain"], counted.gain = 3.0, 5.0
    return [*out, first(x), second(x), logged.names, counted.count]


@case
def names_in_tables(device, jit):
    class Settings:
        gain = 2.0

    x = full(1, device)
    run = jit(lambda x: x * vars(Settings)["gain"] + Settings.__dict__.get("shift", 0))
    loaded = jit(lambda x: x * (2 if "tensorgraft_tests_absent" in sys.modules else 1))
    out = [run(x), loaded(x), run(x), loaded(x)]
    Settings.shift = 10.0
    sys.modules["tensorgraft_tests_absent"] = types.ModuleType("tensorgraft_tests_absent")
    out += [run(x), loaded(x)]
    del sys.modules["tensorgraft_tests_absent"]
    Settings.gain = 3.0
    return [*out, run(x), loaded(x)]


# ---- tensors ---------------------------------------------------------------------------------------------------------


@case
def tensors_that_get_a_history(device, jit):
    def written(x, w):
        x[0].mul_(w[0])
        return x

    kept = full(1, device)
    keep = jit(lambda w: kept.add_(w).sum())
    runs, out = [jit(written), jit(lambda x, w: x[:1].copy_(w[:1]))], []
    for run in runs:
        for base in (full(2, device), torch.ones(3).to(device), full(3, device)):
            x, w = base[:2], full(4, device).requires_grad_()
            run(x, w)
            x.sum().backward()
            out += [x, x.requires_grad, base.requires_grad, w.grad]
    for _ in range(3):
        w = full(4, device).requires_grad_()
        keep(w).backward()
        out += [w.grad, kept.requires_grad, kept]
    return out


@case
def tensors_of_inference_mode(device, jit):
    run = jit(lambda x: x.add_(1) * 2)
    with torch.inference_mode():
        fixed = full(1, device)
    out = []
    for _ in range(3):
        out += [attempt(run, fixed), run(full(1, device))]
    with torch.inference_mode():
        out.append(run(fixed))
    return [*out, attempt(run, fixed), fixed]


@case
def dtypes_of_regions(device, jit):
    def region(x):
        with torch.autocast(device if isinstance(device, str) else device.type):
            return (x[:, None] @ x[None]).dtype

    kind = device if isinstance(device, str) else device.type
    run, asked = jit(region), jit(lambda x: x * (torch.get_autocast_dtype(kind) == torch.bfloat16))
    before, out, x = torch.get_autocast_dtype(kind), [], full(3, device)
    try:
        for dtype in (torch.bfloat16, torch.float16, torch.bfloat16, torch.float16):
            torch.set_autocast_dtype(kind, dtype)
            out += [str(run(x)), asked(x), asked(x)]
    finally:
        torch.set_autocast_dtype(kind, before)
    return out


@pytest.mark.parametrize("backend", tg.backends())
@pytest.mark.parametrize("name", CASES)
def test_as_without_it(name, backend):
    given, judge = with_and_without(CASES[name], backend)
    assert given == judge
