"""Warm calls run in straight line, and only where every part of their key and of their guards is as it was."""

import itertools
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.hub.straight_line import MISSED, NotStraight, StraightLine

pytestmark = pytest.mark.compiled
pytest.importorskip("jax")
WARM = 12  # calls after which the program is handed to the runtime


@pytest.fixture(scope="module")
def device():
    return tg.device("jax")


def straight(run, *args, **kwargs):
    """Call a compiled function until it runs in straight line."""
    for _ in range(WARM):
        run(*args, **kwargs)
    return run.straight(args, kwargs) is not MISSED


# ---- arguments -------------------------------------------------------------------------------------------------------


class Named(torch.Tensor):
    pass


def marked(x):
    x.mark = 2
    return x


ARGUMENTS = {
    "dtype": lambda x: x.double(),
    "shape": lambda x: x[:2].clone(),
    "strides": lambda x: x.t(),
    "offset": lambda x: torch.cat([x, x])[3:],
    "view": lambda x: torch.cat([x, x])[:3],
    "requires grad": lambda x: x.clone().requires_grad_(),
    "history": lambda x: x.clone().requires_grad_() * 2,
    "parameter": nn.Parameter,
    "subclass": lambda x: x.clone().as_subclass(Named),
    "attribute": lambda x: marked(x.clone()),
    "negation": lambda x: torch.complex(x, x).conj().imag,
    "number": lambda x: 2.0,
    "host": lambda x: torch.tensor(2.0),
    "the other one": lambda x: None,
}


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_arguments_of_another_kind(device, kind):
    def fn(x, y):
        return x * y + getattr(x, "mark", 0) + x.requires_grad if isinstance(x, torch.Tensor) else x + y

    run = tg.jit(fn)
    x, y = torch.arange(9.0, device=device).reshape(3, 3), torch.ones(3, 3, device=device)
    assert straight(run, x, y)
    other = ARGUMENTS[kind](x)
    other = y if other is None else other
    if isinstance(other, torch.Tensor) and other.ndim > 0 and len(other) < 3:
        y = y[: len(other)].clone()
    got, want = run(other, y), fn(other, y)
    assert torch.equal(got, want) and got.dtype == want.dtype and got.requires_grad == want.requires_grad


class Layer:
    __slots__ = ("__dict__", "extra", "rows", "scale")

    def __init__(self, rows, scale=2):
        self.rows, self.scale = rows, scale
        self.dtype, self.sizes, self.name = rows.dtype, (3, None), "layer"


class Layers:
    def __init__(self, *layers):
        self.layers, self.by_name, self.first = [*layers], {"a": layers[0]}, layers[0]


def _set_number(x, layers):
    layers.layers[1].scale = 2.0


def _set_tuple(x, layers):
    layers.layers[0].sizes = (3, 4)


def _set_dtype(x, layers):
    layers.layers[1].dtype = torch.float64


OBJECTS = {
    "number": _set_number,
    "tuple": _set_tuple,
    "dtype": _set_dtype,
    "attribute": lambda x, layers: setattr(layers.layers[1], "new", 5),
    "slot": lambda x, layers: setattr(layers.layers[1], "extra", 7),
    "mark": lambda x, layers: setattr(layers.layers[0].rows, "mark", 1),
    "one more": lambda x, layers: layers.layers.append(Layer(x + 1)),
    "the same twice": lambda x, layers: layers.layers.__setitem__(1, layers.layers[0]),
    "another in the table": lambda x, layers: layers.by_name.update(a=layers.layers[1]),
    "another name": lambda x, layers: layers.by_name.update(b=layers.layers[1]),
    "another class": lambda x, layers: setattr(layers.layers[1], "__class__", Other),
    "no tensor": lambda x, layers: setattr(layers.layers[1], "rows", 3.0),
    "shared memory": lambda x, layers: setattr(layers.layers[1], "rows", layers.layers[0].rows.view(3, 3)),
    "dtype of a tensor": lambda x, layers: setattr(layers.layers[1], "rows", layers.layers[1].rows.double()),
}


class Other(Layer):
    __slots__ = ()

    def __init__(self, rows):
        super().__init__(rows, 10)


@pytest.mark.parametrize("change", [None, *OBJECTS])
def test_objects_among_the_arguments(device, change):
    def fn(x, *, layers, scale=1):
        total = x * scale
        for k, layer in enumerate(layers.layers):
            layer.rows += k + 1
            more = getattr(layer, "new", 0) + getattr(layer, "extra", 0) + getattr(layer.rows, "mark", 0)
            total = total + layer.rows * layer.scale + more + (layer.sizes[1] or 0)
            total = total + 10 * (layer is layers.first) + 100 * isinstance(layer, Other)
        return types.SimpleNamespace(total=total.to(layers.layers[1].dtype), of=layers, names=[*layers.by_name])

    def objects():
        return Layers(*(Layer(torch.full((3, 3), float(k), device=device)) for k in range(2)))

    run, x = tg.jit(fn), torch.arange(9.0, device=device).reshape(3, 3)
    for layers in (objects(), objects()):  # of another object it is the same line
        assert straight(run, x, layers=layers, scale=3)
    ours, theirs = objects(), objects()
    if change is not None:
        for layers in (ours, theirs):
            OBJECTS[change](x, layers)
    for _ in range(3):
        got, want = run(x, layers=ours, scale=3), fn(x, layers=theirs, scale=3)
        assert torch.equal(got.total, want.total) and got.total.dtype == want.total.dtype
        assert got.of is ours and got.names == want.names
        for a, b in zip(ours.layers, theirs.layers, strict=True):
            assert torch.equal(torch.as_tensor(a.rows), torch.as_tensor(b.rows))


IN_PLACE = {
    "transposed": lambda x: x.t_(),
    "set": lambda x: x.set_(torch.full((3, 3), 5.0, device=x.device)),
    "data": lambda x: setattr(x, "data", x.data.t()),
    "other data": lambda x: setattr(x, "data", torch.full((3, 3), 7.0, device=x.device)),
    "operator": lambda x: torch.ops.aten.set_data(x, torch.full((3, 3), 6.0, device=x.device)),
    "dtype": lambda x: setattr(x, "data", x.data.double()),
    "resized": lambda x: x.resize_(2, 3),
    "swapped": lambda x: torch.utils.swap_tensors(x, torch.full((3, 3), 8.0, device=x.device)),
    "written": lambda x: x.add_(1),
    "requires grad": lambda x: x.requires_grad_(),
}


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("change", IN_PLACE)
def test_the_same_tensor_changed_in_place(device, change, captured):
    x, weight = (torch.arange(9.0, device=device).reshape(3, 3) for _ in range(2))

    def fn(x):
        return x[:2, :2] * 2 + weight[:2, :2] + (x.requires_grad + 2 * weight.requires_grad)

    run = tg.jit(fn)
    assert straight(run, x)
    IN_PLACE[change](weight if captured else x)
    for _ in range(2):
        got, want = run(x), fn(x)
        assert torch.equal(got, want) and got.dtype == want.dtype and got.requires_grad == want.requires_grad


def test_tensors_that_share_the_table_of_their_attributes(device):
    run, x = tg.jit(lambda x: x * 2), torch.arange(4.0, device=device)
    assert straight(run, x)
    view = x.reshape(2, 2)
    view.__dict__ = x.__dict__
    assert run(view).tolist() == [[0, 2], [4, 6]] and run(x).tolist() == [0, 2, 4, 6]


def test_containers_and_numbers(device):
    def fn(items, *, scale, names=("a",), more=None):
        total = sum(items["x"]) * scale + len(names)
        return {"sum": total, "order": list(items), "more": total if more is None else total + more}

    run, x = tg.jit(fn), torch.ones(2, device=device)
    assert straight(run, {"x": [x, x + 1], "y": (x * 2,)}, scale=2)
    for args, kwargs in [
        (({"x": [x, x + 1], "y": (x * 2,)},), {"scale": 2}),
        (({"y": (x * 2,), "x": [x, x + 1]},), {"scale": 2}),
        (({"x": [x, x + 1, x + 2], "y": (x * 2,)},), {"scale": 2}),
        (({"x": (x, x + 1), "y": [x * 2]},), {"scale": 2}),
        (({"x": [x, x + 1], "y": (x * 2,)},), {"scale": 2.0}),
        (({"x": [x, x + 1], "y": (x * 2,)},), {"scale": True}),
        (({"x": [x, x + 1], "y": (x * 2,)},), {"scale": 2, "more": x}),
        (({"x": [x, x + 1], "y": (x * 2,)},), {"scale": 2, "names": ("a", "b")}),
        (({"x": [x, x], "y": (x * 2,)},), {"scale": 2}),
    ]:
        got, want = run(*args, **kwargs), fn(*args, **kwargs)
        assert got["sum"].equal(want["sum"]) and got["order"] == want["order"] and got["more"].equal(want["more"])


# ---- modes and settings ----------------------------------------------------------------------------------------------


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is torch.sin else out


class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


MODES = {
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("graft", torch.bfloat16),
    "functions": Doubling,
    "operators": Seen,
    "saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x),
    "policy": lambda: tg.autocast("bfloat16", policy="xla"),
    "anomalies": torch.autograd.detect_anomaly,
}


@pytest.mark.filterwarnings("ignore:Anomaly", "ignore::tensorgraft.transforms.UncompiledWarning")
@pytest.mark.parametrize("mode", MODES)
def test_other_modes(device, mode):
    weight = torch.full((2, 2), 1.01, device=device, requires_grad=True)

    def fn(x):
        return torch.sin(x @ weight)

    run, x = tg.jit(fn), torch.full((2, 2), 0.37, device=device)
    assert straight(run, x)
    with MODES[mode]():
        got, want = run(x), fn(x)
        assert run.straight((x,), {}) is MISSED or mode == "policy"
    assert got.dtype == want.dtype and got.requires_grad == want.requires_grad
    assert got.is_inference() == want.is_inference() and torch.allclose(got, want)
    assert torch.allclose(run(x), fn(x))


@pytest.mark.parametrize(
    ("setting", "value"),
    [(torch.set_default_dtype, torch.float64), (torch.use_deterministic_algorithms, True)],
)
def test_other_settings(device, setting, value):
    def fn(x):
        return x + torch.arange(2.0, device=x.device) + torch.are_deterministic_algorithms_enabled()

    run, x = tg.jit(fn), torch.ones(2, device=device)
    assert straight(run, x)
    before = torch.get_default_dtype() if value is torch.float64 else False
    try:
        setting(value)
        assert run(x).equal(fn(x)) and run(x).dtype == fn(x).dtype
    finally:
        setting(before)
    assert run(x).equal(fn(x)) and run(x).dtype == fn(x).dtype


def test_inside_of_transforms_and_other_functions(device):
    run, x = tg.jit(lambda x: x * x), torch.arange(3.0, device=device)
    assert straight(run, x) and straight(run, x[0].clone())
    assert torch.func.vmap(run)(x).tolist() == [0, 1, 4]
    assert torch.func.grad(run)(x[2].clone()).item() == 4
    assert torch.func.jvp(run, (x,), (torch.ones_like(x),))[1].tolist() == [0, 2, 4]
    assert tg.jit(lambda x: run(x) + 1)(x).tolist() == [1, 2, 5]


# ---- what is around the function -------------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.zeros(3))
        self.inner, self.scale, self.terms = nn.Dropout(0.5), 2.0, [1.0]

    def forward(self, x):
        return self.inner(x * self.weight) * self.scale + self.shift + sum(self.terms)


def of_class(model):
    type(model).forward = lambda self, x: x * self.weight


def add_hook(table):
    return lambda m: getattr(m, table)(lambda m, *args: args[-1] + 1 if table == "register_forward_hook" else None)


AROUND = {
    "mode": lambda m: m.train(),
    "attribute": lambda m: setattr(m, "scale", 3.0),
    "parameter": lambda m: setattr(m, "weight", nn.Parameter(m.weight.detach() * 3)),
    "in the table": lambda m: m._parameters.update(weight=nn.Parameter(m.weight.detach() * 3)),
    "buffer": lambda m: setattr(m, "shift", m.shift + 1),
    "written": lambda m: m.shift.add_(1),
    "data": lambda m: setattr(m.weight, "data", m.weight.detach() * 3),
    "operator": lambda m: torch.ops.aten.set_data(m.weight, m.weight.detach() * 3),
    "frozen": lambda m: m.weight.requires_grad_(False),
    "submodule": lambda m: setattr(m, "inner", nn.Tanh()),
    "no submodule": lambda m: setattr(m, "inner", nn.Identity()),
    "hook": lambda m: m.register_forward_hook(lambda m, args, out: out + 1),
    "hook before": lambda m: m.inner.register_forward_pre_hook(lambda m, args: (args[0] + 1,)),
    "forward": lambda m: setattr(m, "forward", lambda x: x * 5),
    "forward of the class": of_class,
    "class": lambda m: setattr(m, "__class__", type("Other", (Model,), {"forward": lambda self, x: x - self.weight})),
    "list": lambda m: m.terms.append(2.0),
    "element": lambda m: m.terms.__setitem__(0, 2.0),
}


@pytest.mark.parametrize("change", AROUND)
def test_changes_of_a_module(device, change):
    model, x = type("Kind", (Model,), {})().to(device).eval(), torch.arange(3.0, device=device)
    fn = lambda x: model(x)  # noqa: E731
    run = tg.jit(fn)
    assert straight(run, x)
    AROUND[change](model)
    model.inner.p = 0.0
    for _ in range(3):
        got, want = run(x), fn(x)
        assert got.equal(want) and got.requires_grad == want.requires_grad


def test_changes_of_variables(device):
    space = {"torch": torch, "FACTOR": 2.0, "SETTINGS": {"shift": 1.0}}
    source = "def outer(k=1.0, *, j=2.0):\n  def fn(x, a=0.0):\n    return helper(x) * k + a\n  return fn\n"
    exec(
        source + "def helper(x):\n  return x * FACTOR + SETTINGS['shift'] + len(getattr(helper, 'marks', ()))\n", space
    )
    fn = space["outer"]()
    run, x = tg.jit(fn), torch.ones(2, device=device)
    changes = [
        lambda: space.update(FACTOR=3.0),
        lambda: space["SETTINGS"].update(shift=2.0),
        lambda: space["SETTINGS"].update(more=2.0),
        lambda: setattr(space["helper"], "marks", [1]),
        lambda: space["helper"].marks.append(2),
        lambda: setattr(fn.__closure__[0], "cell_contents", 4.0),
        lambda: setattr(fn, "__defaults__", (5.0,)),
        lambda: setattr(fn, "__code__", (lambda x, a=0.0: (x - a) * (0 * k + 1)).__code__),
        lambda: space.update(helper=lambda x: x),
    ]
    k = 1.0
    assert straight(run, x)
    for change in changes:
        change()
        straight(run, x)
        assert run(x).equal(fn(x))


def test_functions_of_arrays():
    offset = {"by": 1.0}

    def fn(x, scale, more):
        return xp.sum(x * scale) + offset["by"] + sum(more.values())

    run, x = tg.jit(fn), xp.asarray([1.0, 2.0, 3.0], device="jax")
    y = xp.asarray(2.0, device="jax")
    assert straight(run, x, y, {"a": y + 1, "b": y * 2})
    views = [x, x[1:], xp.flip(x), xp.astype(x, xp.float32), xp.broadcast_to(y, (3,))]
    for argument in views:
        for more in ({"a": y + 1, "b": y}, {"b": y, "a": y + 1}, {"a": y}, {}):
            assert run(argument, y * 3, more) == fn(argument, y * 3, more)
    offset["by"] = 2.0
    assert run(x, y, {"a": y + 1, "b": y * 2}) == fn(x, y, {"a": y + 1, "b": y * 2})
    x[0] = 5.0
    assert run(x, y, {"a": y + 1, "b": y * 2}) == fn(x, y, {"a": y + 1, "b": y * 2})


# ---- what it costs ---------------------------------------------------------------------------------------------------


COUNTING = """
import sys

import torch
from torch import nn

import tensorgraft as tg
import tensorgraft.array_api as xp


def bytecodes(call):
    count = [0]

    def trace(frame, event, arg):
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count[0] += event == "opcode"
        return trace

    for _ in range(12):
        call()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return count[0]


class Many(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.items = nn.ParameterList([torch.full((2,), float(i)) for i in range(n)])

    def forward(self, x):
        return sum(self.items, x)


device = tg.device("jax")
x, y = torch.ones(2, device=device), torch.ones(2, device=device)
a, b = xp.ones(2, device="jax"), xp.ones(2, device="jax")
run, added = tg.jit(lambda x, y: x + y), tg.jit(lambda a, b: a + b)
print(bytecodes(lambda: run(x, y)), bytecodes(lambda: added(a, b)))
for n in (2, 100):
    model = Many(n).to(device)
    read = tg.jit(torch.no_grad()(lambda x, model=model: model(x)))
    print(bytecodes(lambda: read(x)))
for kind in (torch.optim.SGD, torch.optim.AdamW):
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).to(device)
    optimizer = kind(model.parameters(), lr=0.01)

    @tg.jit
    def step(x, model=model, optimizer=optimizer):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    print(bytecodes(lambda: step(x)))
"""


def test_a_warm_call_takes_few_instructions():
    """In a process of its own: modules that others have imported have settings, which calls look at."""
    done = subprocess.run([sys.executable, "-c", COUNTING], capture_output=True, text=True, check=False)
    counts = [*map(int, done.stdout.split())]
    assert len(counts) == 6, done.stdout + done.stderr
    assert all(count < most for count, most in zip(counts, (470, 350, 780, 1430, 1450, 1600), strict=True)), counts


def test_a_straight_line_says_where_it_is_not():
    code = StraightLine()
    value = object()
    assert code.name(None) == "None" and code.name(value) == code.name(value) != code.name(object())
    variable = code.let("x.value")
    code.require_objects(f"{variable}", [value, 1])
    code.do(f"return {variable}")
    call = code.function("x")
    assert call(types.SimpleNamespace(value=(value, 1))) == (value, 1)
    others = ((value, 2), (value,), (value, 1, 1), 3)
    assert all(call(x) is MISSED for x in (None, *(types.SimpleNamespace(value=v) for v in others)))
    assert repr(MISSED) == "missed" and issubclass(NotStraight, Exception)


def test_writes_stay_in_the_memory_of_an_argument():
    def place(t):
        return cell_of(t).array.unsafe_buffer_pointer()

    x, v = torch.zeros(1 << 12, 4, device=tg.device("jax")), torch.ones((), device=tg.device("jax"))
    run = tg.jit(lambda x, v: x.add_(v)[0, 0] * 1, compile="first")
    run(x, v)
    before = {place(x) for _ in range(4) if run(x, v) is not None}
    assert len(before) == 1 and x[0, 0] == 5


def test_arrays_that_are_written():
    kept = xp.asarray([1.0, 2.0], device="jax")

    def fn(x, y, by):
        x[1:] = x[1:] * 2 + y[:3] * by
        kept[...] = kept + by
        return x, x[1:3], xp.sum(y), None

    def arguments():
        return xp.arange(4.0, device="jax", dtype=xp.float64), xp.ones(4, device="jax", dtype=xp.float64)

    run = tg.jit(fn)
    (x, y), (own_x, own_y) = arguments(), arguments()

    def same(x, y, by, own_x, own_y):
        before = np.array(kept)
        got = run(x, y, by)
        assert got[0] is x and got[3] is None
        after, view = np.array(kept), got[1]
        kept[...] = xp.asarray(before, device="jax")
        want = fn(own_x, own_y, by)
        assert np.array_equal(after, np.array(kept))
        assert np.array_equal(x, own_x) and np.array_equal(view, want[1]) and got[2] == want[2]
        view[0] = want[1][0] = 7.0
        assert x[1] == own_x[1] == 7.0
        assert np.array_equal(y, own_y)

    for _ in range(WARM):
        same(x, y, 2, own_x, own_y)
    assert run.straight.__name__ == "call"
    native, copied = x._cell.array, np.array(x)
    for by in (2, 3, 2.5, 2):
        same(x, y, by, own_x, own_y)
    assert np.array_equal(native, copied)  # who holds an array keeps it
    shared = x.native
    copied = np.array(shared)
    same(x, y, 2, own_x, own_y)
    assert np.array_equal(shared, copied)
    same(x, x, 2, own_x, own_x)
    same(x, x[::-1], 2, own_x, own_x[::-1])
    same(x, y, 2, own_x, own_y)


def test_writes_of_arrays_stay_in_their_memory():
    x, v = xp.zeros(1 << 12, device="jax"), xp.asarray(1.0, device="jax")

    def write(x, v):
        x[...] = x + v

    run = tg.jit(write)
    for _ in range(WARM):
        run(x, v)
    assert run.straight((x, v), {}) is None
    places = {x._cell.array.unsafe_buffer_pointer() for _ in range(4) if run(x, v) is None}
    assert len(places) == 1 and x[0] == WARM + 5


# ---- interrupts ------------------------------------------------------------------------------------------------------


def interrupted(run, x, at):
    """Call a function, and raise KeyboardInterrupt before instruction number `at` of its straight line."""
    left, code = itertools.count(at, -1), run.straight.__code__

    def trace(frame, event, _):
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and next(left) == 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run(x)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.skipif(sys.gettrace() is not None, reason="coverage traces")
def test_an_interrupt_at_any_instruction(device):
    first, second = torch.zeros(2, device=device), torch.zeros(3, device=device)
    weight, x = torch.ones(3, device=device, requires_grad=True), torch.arange(3.0, device=device)

    @tg.jit
    def run(x):
        first.add_(1)
        second.add_(1)
        weight.grad = None
        (weight * x).sum().backward()
        return first + torch.rand(2, device=x.device)

    assert straight(run, x)
    state = torch.graft.get_rng_state(device).tolist()
    run(x)
    draws = int.from_bytes(bytes(torch.graft.get_rng_state(device).tolist()[8:]), "little")
    draws -= int.from_bytes(bytes(state[8:]), "little")
    assert draws > 0
    for at in itertools.count(0, 3):
        count, version = first[0].item(), first._version
        offset = int.from_bytes(bytes(torch.graft.get_rng_state(device).tolist()[8:]), "little")
        raised = interrupted(run, x, at)
        calls = first[0].item() - count
        assert calls in ((0, 1) if raised else (1,))
        assert second.tolist() == [first[0].item()] * 3
        assert int.from_bytes(bytes(torch.graft.get_rng_state(device).tolist()[8:]), "little") - offset == draws * calls
        assert first._version > version or not calls
        assert weight.grad is None or weight.grad.tolist() == x.tolist()
        assert not calls or weight.grad is not None
        if not raised:
            break
    assert at > 100
