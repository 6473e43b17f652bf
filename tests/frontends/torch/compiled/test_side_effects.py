"""What a compiled function changes of Python's objects, and what changes around it between two calls: as without
`tg.jit`, on every backend. A case is a function of a device and of what compiles; it returns tensors."""

import collections
import dataclasses
import functools
import itertools
import os
import random
import time
import types
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import tensorgraft as tg

pytestmark = pytest.mark.sampled
CASES = {}


def case(fn):
    CASES[fn.__name__] = fn
    return fn


def full(value, device):
    return torch.full((2,), float(value)).to(device)


def number(value):
    return torch.tensor(float(value))


# ---- histories and hooks ---------------------------------------------------------------------------------------------


@case
def argument_with_history_written(device, jit):
    leaf = full(1, device).requires_grad_()
    x = leaf * 2
    out = jit(lambda x: x.mul_(3))(x)
    x.sum().backward()
    return [leaf.grad, x, number(out is x)]


@case
def gradients_behind_an_argument(device, jit):
    leaf = full(1, device).requires_grad_()
    f = jit(lambda x: torch.autograd.grad((x + leaf).sum(), leaf)[0] + x.detach())
    return [f(leaf * 2), f(leaf * 3)]


@case
def backward_behind_an_argument(device, jit):
    leaf = full(1, device).requires_grad_()
    f = jit(lambda x: x.sum().backward())
    f(leaf * 2)
    f(leaf * 3)
    return [leaf.grad]


@case
def hook_that_stays(device, jit):
    leaf = full(1, device).requires_grad_()

    def f(x):
        leaf.register_hook(lambda g: g * 2)
        (leaf * x).sum().backward()

    f = jit(f)
    for _ in range(3):
        f(full(1, device))
    return [leaf.grad]


@case
def hook_that_is_removed(device, jit):
    leaf = full(1, device).requires_grad_()

    def f(x):
        handle = leaf.register_hook(lambda g: g * 2)
        (leaf * x).sum().backward()
        handle.remove()

    f = jit(f)
    for _ in range(3):
        f(full(1, device))
    return [leaf.grad]


@case
def backward_twice_where_nothing_is_saved(device, jit):
    leaf = full(1, device).requires_grad_()
    total = jit(lambda x: (x + 2).sum())(leaf)
    total.backward()
    total.backward()
    return [leaf.grad]


@case
def requires_grad_that_is_only_asked_for(device, jit):
    t, x = full(1, device), full(1, device)
    f = jit(lambda x: x * 1.0 - (t.requires_grad * 1.0))
    before = f(x)
    t.requires_grad_()
    return [before, f(x)]


@case
def requires_grad_of_a_parameter_in_a_list(device, jit):
    held, x = [nn.Parameter(full(1, device))], full(1, device)
    f = jit(lambda x: (x * held[0]).sum())
    before = f(x).requires_grad
    held[0].requires_grad_(False)
    return [number(before), number(f(x).requires_grad)]


@case
def a_leaf_that_needs_no_gradient_any_more(device, jit):
    a, b = (full(k, device).requires_grad_() for k in (2, 3))
    f = jit(lambda x: x * a * b)
    gradients = []
    for _ in range(2):
        a.requires_grad_()
        y = f(full(1, device))
        a.requires_grad_(False)
        y.sum().backward()
        gradients += [number(a.grad is None), b.grad.clone()]
    return gradients


# ---- arrays of NumPy -------------------------------------------------------------------------------------------------


@case
def array_that_is_written(device, jit):
    array, objects = np.zeros(2, np.float32), np.array([None, {}], object)

    def f(x):
        array[0] += 1
        objects[0] = (objects[0] or 0) + 1
        return x + 1

    f = jit(f)
    return [*(f(full(1, device)) for _ in range(3)), torch.from_numpy(array), number(objects[0])]


@case
def array_that_is_read_through_a_view(device, jit):
    base = np.zeros(3, np.float32)
    view = base[1:]
    view.flags.writeable = False

    def f(x):
        base[1] += 1
        return x + float(view[0])

    f = jit(f)
    return [*(f(full(1, device)) for _ in range(3)), torch.from_numpy(base), number(view.flags.writeable)]


class Counts(nn.Module):
    counts = np.zeros(2, np.float32)

    def forward(self, x):
        WRITTEN[0] *= 0.5
        self.counts += 1
        return x * 2


WRITTEN = np.ones(1, np.float32)


@case
def arrays_that_a_method_writes(device, jit):
    WRITTEN[:], Counts.counts[:] = 1, 0
    f = jit(Counts())
    for _ in range(3):
        f(full(1, device))
    return [torch.from_numpy(WRITTEN.copy()), torch.from_numpy(Counts.counts.copy())]


# ---- side effects ----------------------------------------------------------------------------------------------------


@case
def list_that_grows(device, jit):
    seen = []

    def f(x):
        seen.append(1)
        return x * len(seen)

    f = jit(f)
    return [f(full(1, device)) for _ in range(4)]


@case
def list_of_losses(device, jit):
    losses = []

    def f(x):
        losses.append((x * 2).sum())
        return x + 1

    f = jit(f)
    return [f(full(i, device)) for i in range(4)] + losses


@case
def cache_of_tensors(device, jit):
    cache = []

    def f(x):
        cache.append(x * 2)
        return torch.cat(cache)

    f = jit(f)
    return [f(full(i, device)) for i in range(3)] + cache


@case
def list_argument(device, jit):
    def f(x, cache):
        cache.append(x)
        return torch.cat(cache).sum()

    f, cache = jit(f), []
    return [f(full(i, device), cache) for i in range(4)] + cache


@case
def deque_that_is_popped(device, jit):
    queue = collections.deque(full(i, device) for i in range(4))
    f = jit(lambda q: q.pop() * q.pop())
    return [f(queue), number(len(queue)), f(queue), number(len(queue))]


def _over_and_over(device, jit, fn, of, change=lambda: None):
    """What `of()` is after each of some calls, with a change by the program between the second and the third."""
    run, seen = jit(fn), []
    for i in range(4):
        run(full(i, device))
        seen += [number(len(of())), *(v if torch.is_tensor(v) else number(v) for v in of())]
        if i == 1:
            change()
    return seen


@case
def deque_to_whose_front_is_added(device, jit):
    global added
    added = collections.deque([4.0])

    def f(x):
        added.appendleft(x)

    return _over_and_over(device, jit, f, lambda: added, lambda: added.append(5.0))


@case
def deque_that_is_full(device, jit):
    global added
    added = collections.deque([4.0, 5.0], maxlen=2)

    def f(x):
        added.append(x)

    return _over_and_over(device, jit, f, lambda: added, lambda: added.clear())


@case
def deque_that_becomes_full(device, jit):
    global added
    added = collections.deque([1.0, 2.0], maxlen=3)

    def f(x):
        added.append(1.0)
        added.append(3.0)

    return _over_and_over(device, jit, f, lambda: added, lambda: added.extend([7.0, 8.0, 9.0]))


@case
def list_by_two_names(device, jit):
    global added, seen_too
    seen_too = added = [4.0]

    def f(x):
        added.append(1.0)
        return x + len(seen_too)

    f = jit(f)
    return [f(full(1, device)) for _ in range(3)]


@case
def list_by_the_name_of_an_attribute(device, jit):
    box = types.SimpleNamespace(items=[1.0])

    def f(x):
        box.items.append(2.0)
        return x + len(getattr(box, "items"))  # noqa: B009

    f = jit(f)
    return [f(full(1, device)) for _ in range(3)]


class Newest(list):
    def append(self, value):
        super().append(value)
        del self[:-1]


class Smoothed(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key, self.get(key, 0.0) * 0.5 + value)


@case
def containers_that_look_at_themselves(device, jit):
    newest, smoothed = Newest(), Smoothed()

    def f(x):
        newest.append(x)
        smoothed["x"] = x.sum()

    return _over_and_over(device, jit, f, lambda: [*newest, *smoothed.values()])


@case
def counts_of_what_was_not_there(device, jit):
    global counts
    counts = collections.defaultdict(int)

    def f(x):
        counts["calls"] += 1

    return _over_and_over(device, jit, f, counts.values, counts.clear)


@case
def counts_of_fractions(device, jit):
    """Differences of floats are rounded."""
    global counts
    counts = {"time": 0.3}

    def f(x):
        counts["time"] += 0.1

    def later():
        counts["time"] = 1e9

    _over_and_over(device, jit, f, counts.values, later)
    return [torch.tensor([counts["time"] - 1e9], dtype=torch.float64)]


@case
def dictionary_argument(device, jit):
    def f(a):
        a["c"] = a["a"] + a.pop("b")
        return a

    f, out = jit(f), []
    for i in range(3):
        given = {"a": full(i, device), "b": full(2, device)}
        got = f(given)
        out += [number(got is given), got["c"], number(list(given) == ["a", "c"])]
    return out


@case
def dictionary_that_is_given_back(device, jit):
    given, f = {"a": full(1, device)}, jit(lambda a: a)
    return [number(f(given) is given) for _ in range(3)]


@case
def default_dictionary(device, jit):
    table, p = collections.defaultdict(set), torch.ones(2).to(device).requires_grad_()

    def f(x):
        table["a"] = x + 1
        table[p] = 123
        table["c"] = x * 2
        return table["b"], table

    f, out = jit(f), []
    for i in range(3):
        _, got = f(full(i, device))
        out += [got["c"] + 0, table["a"] * 1, number(got is table)]
    return out


@case
def counters(device, jit):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.read = 0, 0

        def forward(self, x):
            self.calls += 1
            self.read += 1
            return x * self.read

    net, table = Net(), {"n": 0}

    def g(x):
        table["n"] += 1
        return x * 2

    f, g = jit(net), jit(g)
    out = [v for _ in range(4) for v in (f(full(1, device)), g(full(1, device)))]
    return [*out, number(net.calls), number(net.read), number(table["n"])]


@case
def variables_of_functions_around(device, jit):
    number_, tensor = 1.0, torch.ones(3).to(device)

    def inside():
        def inner():
            nonlocal number_, tensor
            x = tensor + 1
            number_ += 1
            tensor += 10
            return torch.tensor(number_), tensor.clone(), x + tensor

        return inner()

    f = jit(lambda: inside())
    return [t for _ in range(3) for t in f()] + [number(number_)]


@case
def state_of_an_object(device, jit):
    class State:
        def __init__(self):
            self.h, self.n, self.log = full(0, device), 0, []

        def step(self, x):
            old = self.h
            self.h = torch.tanh(self.h * 0.5 + x)
            self.n += 1
            self.log.append(self.h.sum())
            return old, self.h

    state = State()
    f = jit(state.step)
    out = [t for i in range(5) for t in f(full(i / 10, device))]
    return [*out, number(state.n), state.h, *state.log]


@case
def state_in_a_dictionary(device, jit):
    state = {"h": full(0, device)}

    def f(x):
        state["h"] = state["h"] * 0.5 + x
        return state["h"] * 1

    f = jit(f)
    out = [f(full(i, device)) for i in range(4)] + [state["h"].clone()]
    state["h"] = full(10, device)
    return [*out, f(full(1, device))]


@case
def state_in_a_list(device, jit):
    state = [full(0, device), full(1, device)]

    def f(x):
        state[0], state[1] = state[1], state[0] + x
        return state[0] * 1

    f = jit(f)
    return [f(full(i, device)) for i in range(5)] + state


@case
def state_with_a_history(device, jit):
    w, kept = torch.ones(2).to(device).requires_grad_(), []

    def f(x):
        kept.append(w * x)
        return x + 1

    f, out = jit(f), []
    for i in range(3):
        w.grad = None
        f(full(i, device))
        kept[-1].sum().backward()
        out.append(w.grad.clone())
    return out


@case
def hook_that_fills_a_dictionary(device, jit):
    net, seen = nn.Sequential(nn.Linear(2, 2)).to(device), {}
    net[0].register_forward_hook(lambda m, args, out: seen.__setitem__("a", out))
    f = jit(net)
    out = [f(full(1, device))]
    seen.clear()
    return [*out, f(full(2, device)), seen["a"]]


@case
def hyper_parameters_inside(device, jit):
    w = torch.ones(2).to(device).requires_grad_()
    optimizer = torch.optim.SGD([w], lr=0.1)

    def f(x):
        optimizer.param_groups[0]["lr"] *= 0.5
        return x * 2

    f = jit(f)
    return [t for _ in range(3) for t in (f(full(1, device)), number(optimizer.param_groups[0]["lr"]))]


@case
def grad_mode_that_is_left(device, jit):
    def f(x):
        torch.set_grad_enabled(False)
        return x * 2

    f, out = jit(f), []
    for _ in range(3):
        with torch.enable_grad():
            out += [f(full(1, device)), number(torch.is_grad_enabled())]
    return out


# ---- what is not the same at each call -------------------------------------------------------------------------------


@case
def random_numbers(device, jit):
    f = jit(lambda x: x * random.random() + np.random.rand())
    random.seed(0)
    np.random.seed(0)
    return [f(full(1, device)) for _ in range(3)]


@case
def random_generators(device, jit):
    own, of_numpy = random.Random(3), np.random.default_rng(3)
    f = jit(lambda x: x * own.random() + of_numpy.random())
    return [f(full(1, device)) for _ in range(3)]


@case
def iterators(device, jit):
    tensors, numbers, count = iter([full(i, device) for i in range(5)]), (i * 1.0 for i in range(9)), itertools.count()
    f = jit(lambda x: next(tensors) * next(numbers) + x * next(count))
    return [f(full(1, device)) for _ in range(4)]


@case
def clock(device, jit):
    f = jit(lambda x: x * 0 + time.perf_counter())
    values = [f(full(1, device).double())[0].item() for _ in range(3)]
    return [number(values[0] < values[1] < values[2])]


@case
def environment(device, jit):
    f, out = jit(lambda x: x * float(os.environ.get("TENSORGRAFT_A_TEST", "1"))), []
    try:
        for i in range(3):
            os.environ["TENSORGRAFT_A_TEST"] = str(i)
            out.append(f(full(1, device)))
    finally:
        del os.environ["TENSORGRAFT_A_TEST"]
    return [*out, f(full(1, device))]


# ---- what changes between two calls ----------------------------------------------------------------------------------


@case
def attributes_of_classes_and_modules(device, jit):
    class Config:
        scale = 2.0

    config = types.ModuleType("config")
    config.scale = 2.0
    f, out = jit(lambda x: x * Config.scale * config.scale), []
    for scale in (2.0, 3.0, 5.0):
        Config.scale, config.scale = scale, scale + 1
        out.append(f(full(1, device)))
    return out


@case
def attribute_that_was_absent(device, jit):
    class Config:
        pass

    config = Config()
    f = jit(lambda x, c: x + 7 if getattr(c, "more", False) else x + 5)
    out = [f(full(1, device), config)]
    config.more = True
    out.append(f(full(1, device), config))
    del config.more
    return [*out, f(full(1, device), config)]


@case
def methods_that_are_replaced(device, jit):
    class Net(nn.Module):
        def helper(self, x):
            return x * 2

        def forward(self, x):
            return self.helper(x)

    net = Net()
    f = jit(net)
    out = [f(full(1, device))]
    Net.helper = lambda self, x: x * 5
    out.append(f(full(1, device)))
    net.helper = lambda x: x * 7
    out.append(f(full(1, device)))
    return out


SCALE, COUNTED = 2.0, []


class Counter:
    n = 0


@case
def globals_of_methods(device, jit):
    global SCALE

    class Net(nn.Module):
        @property
        def twice(self):
            return SCALE * 2

        def forward(self, x):
            Counter.n += 1
            COUNTED.append(1)
            return x * SCALE + self.twice

    Counter.n, SCALE = 0, 2.0
    COUNTED.clear()
    f, out = jit(Net()), []
    for scale in (2.0, 3.0, 3.0, 5.0):
        SCALE = scale
        out += [f(full(1, device)), number(Counter.n), number(len(COUNTED))]
    return out


@case
def forward_that_is_replaced(device, jit):
    net = nn.Linear(2, 2).to(device)
    f = jit(lambda x: net(x))
    out = [f(full(1, device))]
    net.forward = lambda x: x * 2
    return [*out, f(full(1, device))]


@case
def hook_of_all_modules(device, jit):
    net = nn.Linear(2, 2).to(device)
    f = jit(lambda x: net(x))
    out = [f(full(1, device))]
    handle = nn.modules.module.register_module_forward_hook(lambda m, args, out: out * 3)
    try:
        out.append(f(full(1, device)))
    finally:
        handle.remove()
    return [*out, f(full(1, device))]


@case
def captured_tensors_that_look_elsewhere(device, jit):
    c = torch.arange(6.0).reshape(2, 3).to(device)
    f = jit(lambda: c.sum(0))
    out = [f()]
    c.t_()
    out.append(f())
    c.data = torch.ones(4, 2).to(device)
    out.append(f())
    c.resize_(2, 2)
    out.append(f())
    c.set_(torch.ones(3, 4).to(device))
    out.append(f())
    torch.utils.swap_tensors(c, torch.zeros(5, 2).to(device))
    return [*out, f()]


@case
def captured_tensors_that_are_arguments(device, jit):
    w = full(1, device)
    f = jit(lambda x: x + w * 10)
    out = [f(w), f(full(0, device)), f(w)]
    v = full(1, device)
    g = jit(lambda x: x.add_(1) + v)
    return [*out, g(full(0, device)), g(v), v.clone(), g(full(0, device))]


@case
def requires_grad_of_captured_tensors(device, jit):
    w = full(2, device).requires_grad_()
    f, out = jit(lambda x: x * w), []
    for required in (True, False, True):
        w.requires_grad_(required)
        out.append(number(f(full(1, device)).requires_grad))
    return out


# ---- gradients -------------------------------------------------------------------------------------------------------


@case
def optimizers_compiled_by_themselves(device, jit):
    w = torch.ones(3).to(device).requires_grad_()
    optimizer = torch.optim.Adam([w], 0.1)
    step, clip = jit(lambda: optimizer.step()), jit(lambda: nn.utils.clip_grad_norm_([w], 1.0))
    clear, out = jit(lambda: optimizer.zero_grad()), []
    for i in range(4):
        (w * (i + 1.0)).sum().backward()
        clip()
        step()
        out += [w.grad.clone(), w.detach().clone()]
        clear()
        out.append(number(w.grad is None))
    return out


@case
def accumulated_gradients(device, jit):
    w = torch.ones(3).to(device).requires_grad_()
    optimizer = torch.optim.SGD([w], 0.01)

    def micro(x, last):
        loss = (w * x).pow(2).sum()
        loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    f = jit(micro)
    return [f(torch.arange(3.0).to(device) + i, i % 2 == 0) for i in range(1, 7)]


@case
def gradients_that_are_set(device, jit):
    w = torch.ones(2).to(device).requires_grad_()

    def f(x):
        before = torch.zeros_like(w) if w.grad is None else w.grad * 2
        w.grad = x * 3
        return before

    f, out = jit(f), []
    for i in range(3):
        out += [f(full(i, device)), w.grad.clone()]
    w.grad = None
    return [*out, f(full(5, device)), w.grad.clone()]


# ---- results and arguments -------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Result:
    y: torch.Tensor
    rest: list = dataclasses.field(default_factory=list)


class Holder:
    __slots__ = ("a", "parts")

    def __init__(self, a):
        self.a, self.parts = a, {"twice": a * 2, "name": "holder"}


class Table(dict):
    pass


@case
def objects_as_results(device, jit):
    w = torch.ones(2).to(device).requires_grad_()
    f = jit(lambda x: (Result(x * w, [x + 1]), Holder(x), Table(y=x * 2), types.SimpleNamespace(z=[x * 4])))
    first, second = f(full(1, device)), f(full(2, device))
    out = []
    for result, holder, table, space in (first, second):
        out += [result.y, result.rest[0], holder.a, holder.parts["twice"], table["y"], space.z[0]]
        out.append(number(type(result) is Result and type(table) is Table))
    second[0].y.sum().backward()
    return [*out, w.grad.clone(), number(first[1].parts is not second[1].parts)]


@case
def distributions_as_results(device, jit):
    f = jit(lambda x: torch.distributions.Normal(x, x.abs() + 1))
    results = [f(full(i, device)) for i in range(3)]
    return [r.mean for r in results] + [r.scale for r in results]


@case
def objects_as_arguments(device, jit):
    class Batch:
        def __init__(self, x):
            self.x, self.seen = x, 0

    def f(batch):
        batch.seen += 1
        batch.y = batch.x * 2
        return batch.y + 1

    f, out = jit(f), []
    for i in range(4):
        batch = Batch(full(i, device))
        out += [f(batch), batch.y, number(batch.seen)]
    g = jit(lambda r, t, a: r.y * t["x"] + torch.as_tensor(a).to(device))
    for i in range(3):
        out.append(g(Result(full(i, device)), Table(x=full(2, device)), np.full(2, float(i), np.float32)))
    return out


@case
def partial_functions_as_arguments(device, jit):
    y = full(3, device)
    f = jit(lambda f, g, x: f(x) * g(x))
    return [f(functools.partial(torch.mul, y), functools.partial(torch.add, y), full(i, device)) for i in range(3)]


@case
def sizes_as_results(device, jit):
    f = jit(lambda x: (x.size() + x.size(), x * 2))
    (size, y), _ = f(full(1, device)), f(full(1, device))
    return [number(type(size) is torch.Size), y]


@case
def lazy_modules(device, jit):
    net = nn.LazyLinear(3).to(device)
    f = jit(lambda x: net(x))
    return [number(f(torch.ones(2, 4).to(device)).shape[1]) for _ in range(3)]


@case
def exception_of_the_program(device, jit):
    s = torch.zeros(2).to(device)

    def f(x, bad):
        s.add_(1)
        if bad:
            raise ValueError("no")
        return s + x

    f = jit(f)
    out = [f(full(0, device), False)]
    with pytest.raises(ValueError, match="no"):
        f(full(0, device), True)
    return [*out, f(full(0, device), False), s]


@case
def keys_that_are_tensors(device, jit):
    keys = [full(1, device), full(1, device)]
    one, two, mixed = (jit(lambda table, k: table[k] * 2) for _ in range(3))
    out = []
    for k in (0, 1, 0):
        key, other = keys[k], keys[1 - k]
        out += [one({key: full(k, device)}, key), two({key: full(k, device), other: full(5, device)}, key)]
        out.append(mixed({3: full(4, device), key: full(6, device)}, key))
    with pytest.raises(KeyError):
        one({keys[0]: full(1, device)}, keys[1])
    return out


@case
def slices_as_arguments(device, jit):
    x = torch.arange(6.0).to(device)
    f = jit(lambda x, part, more: x[part] * len(more[part]))
    return [f(x, slice(*bounds), [1, 2, 3]) for bounds in ((0, 2), (1, None), (0, 2), (None, None, 2), (0, 2.0 > 1))]


@case
def results_that_are_remembered(device, jit):
    @functools.lru_cache
    def scaled(x, n):
        return x * n

    class Net:
        @functools.lru_cache  # noqa: B019
        def tripled(self, x):
            return x * 3

        def __call__(self, x):
            return self.tripled(x)

    net, x, y = Net(), full(1, device), full(2, device)
    out = [scaled(x, 2) * 1]
    for f in (jit(lambda x: scaled(x, 2) + 1), jit(lambda x: net(x) + 1)):
        out += [f(x), f(y)]
        x.add_(1)
        out += [f(x), f(y)]
    return out


@functools.lru_cache
def ranged(n, device):
    return torch.arange(n).to(device) * 2.0


@case
def sizes_whose_results_are_remembered(device, jit):
    ranged.cache_clear()
    f = jit(lambda x: x + ranged(2, device))
    return [f(full(1, device)), f(full(2, device)), ranged(2, device)]


@case
def generators(device, jit):
    def steps(x):
        for k in range(3):
            yield x * k

    f = jit(steps)
    return [*f(full(1, device)), *f(full(2, device))]


@case
def settings_that_a_call_changes(device, jit):
    seen = []

    def f(x):
        seen.append(float(torch.are_deterministic_algorithms_enabled()))
        torch.use_deterministic_algorithms(False)
        return x + 1

    f, out = jit(f), []
    try:
        for _ in range(2):
            torch.use_deterministic_algorithms(True)
            out += [f(full(1, device)), number(torch.are_deterministic_algorithms_enabled())]
    finally:
        torch.use_deterministic_algorithms(False)
    return [*out, torch.tensor(seen)]


@case
def functions_that_write_variables_outside(device, jit):
    total = None

    def make(a, b):
        def add(k=2.0):
            nonlocal total
            total = b * k if total is None else total + b * k
            return a + b

        return add

    f, out = jit(make), []
    for k in (1, 2):
        add = f(full(k, device), full(10 * k, device))
        out += [add(), total, add(3.0), total]
    return out


@case
def functions_that_share_a_variable(device, jit):
    def make(x):
        total = x * 0

        def add(by=x * 2, *, of=x):
            nonlocal total
            total = total + by * of

        return add, lambda: total

    f, out = jit(make), []
    for k in (1, 2):
        add, get = f(full(k, device))
        add()
        add(full(5, device))
        out.append(get())
    return out


@case
def seeds(device, jit):
    def draw(x):
        torch.manual_seed(3)
        return x + torch.rand(4, device=device)

    f = jit(draw)
    x = full(0, device).repeat(2)
    first = f(x)
    after = torch.rand(4, device=device)
    return [first - f(x), after - torch.rand(4, device=device), f(x) - first]


@pytest.mark.parametrize("check", ["never", "second"])
@pytest.mark.parametrize("backend", tg.backends())
@pytest.mark.parametrize("name", CASES)
def test_as_without_jit(name, backend, check):
    def values(device, jit):
        torch.manual_seed(0)
        return [t.detach().cpu() for t in CASES[name](device, jit)]

    expected = values(torch.device("cpu"), lambda f: f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tg.transforms.UncompiledWarning)
        given = values(tg.device(backend), functools.partial(tg.jit, check=check))
    assert len(given) == len(expected)
    for a, b in zip(given, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_what_runs_uncompiled_says_so():
    x = torch.ones(2, device=tg.device("jax"))
    f = tg.jit(lambda x: x * random.random())
    with pytest.warns(tg.transforms.UncompiledWarning, match=r"test_side_effects\.py:\d+: .* draws random numbers"):
        f(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(x)


@pytest.mark.parametrize("check", ["second", "always"])
@pytest.mark.parametrize("backend", [name for name in tg.backends() if name != "numpy"])
def test_a_second_trace_has_to_agree(backend, check):
    import builtins

    builtins.tensorgraft_hidden = [0.0]  # names of builtins are not looked at
    try:

        def f(x):
            tensorgraft_hidden[0] += 1  # noqa: F821
            return x * tensorgraft_hidden[0]  # noqa: F821

        run, x = tg.jit(f, check=check), torch.ones(2, device=tg.device(backend))
        run(x)
        with pytest.warns(tg.transforms.UncompiledWarning, match="is not the same at each call: an operation was"):
            assert run(x)[0] == tensorgraft_hidden[0]  # noqa: F821
        assert [run(x)[0].item() for _ in range(2)] == [4.0, 5.0]
    finally:
        del builtins.tensorgraft_hidden
    agreeing = tg.jit(lambda x: (x * 2).sin(), check=check)
    assert len({agreeing(x)[0].item() for _ in range(3)}) == 1 and agreeing.report.traces == 1


def test_objects_that_cannot_be_copied_are_refused_at_the_first_call():
    class Single:
        def __init__(self, x):
            self.x = x

        def __deepcopy__(self, memo):
            raise TypeError("there is one of it")

    x = torch.ones(2, device=tg.device("jax"))
    with pytest.raises(tg.TracedValueError, match="that cannot be copied"):
        tg.jit(lambda x: Single(x * 2))(x)
