"""What a compiled function changes of Python's objects is changed at every call, as without `tg.jit`."""

import collections
import itertools
import os
import random
import time
import types
import warnings

import numpy as np
import pytest
import torch
from tests.frontends.torch.compiled.without_jit import Cases, full, number
from torch import nn

import tensorgraft as tg

pytestmark = pytest.mark.sampled
case = Cases()


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
def generators_that_are_handed_over_and_made(device, jit):
    def f(x, given):
        made = random.Random(42)
        return x * random.randint(1, 9) * given.randint(1, 9) * made.randint(1, 9), given, made

    run, out = jit(f), []
    for i in range(3):
        random.seed(i)
        y, given, made = run(full(1, device), random.Random(i))
        out += [y, number(random.random()), number(given.random()), number(made.random())]
    return out


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


@pytest.mark.parametrize("check", ["never", "second"])
@pytest.mark.parametrize("backend", tg.backends())
@pytest.mark.parametrize("name", case.functions)
def test_as_without_jit(name, backend, check):
    case.compare(name, backend, check)


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


@pytest.mark.parametrize("where", ["result", "operand", "write"])
@pytest.mark.parametrize("backend", ["jax", "torch", "tensorflow"])
def test_steps_of_the_host_are_compared(backend, where):
    """`tensorgraft_hidden` is a builtin: state that nothing watches."""
    import builtins

    builtins.tensorgraft_hidden = [0]
    kept = torch.zeros(2)

    def f(x, c):
        tensorgraft_hidden[0] += 1  # noqa: F821
        now = float(tensorgraft_hidden[0])  # noqa: F821
        if where == "result":
            return c * now
        if where == "operand":
            return x * (c + torch.tensor([now, now]) - 1).to(x.device)
        kept.add_(c * now)
        return kept.clone() + 0 * c

    try:
        x, c = torch.ones(2, device=tg.device(backend)), torch.ones(2)
        g = tg.jit(lambda x, c: (x * 1, f(x, c)), check="second")
        g(x, c)
        with pytest.warns(tg.transforms.UncompiledWarning, match="is not the same at each call: the CPU computes"):
            out = [g(x, c)[1].tolist() for _ in range(2)]
        assert out == ([[4, 4], [8, 8]] if where == "write" else [[3, 3], [4, 4]])  # the trace has counted, too
    finally:
        del builtins.tensorgraft_hidden
    agreeing = tg.jit(lambda x, c: (x * 1, (c + torch.tensor([1.0, 2.0])).sum(), torch.ones(3)), check="always")
    for _ in range(2):
        agreeing(x, c)
    assert agreeing.report.traces == 1


def test_a_second_trace_shows_no_warnings():
    def f(x):
        warnings.warn("once a call", UserWarning, stacklevel=1)
        return x * 2

    run, x = tg.jit(f, check="always"), torch.ones(2, device=tg.device("jax"))
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        for _ in range(3):
            run(x)
    assert [str(one.message) for one in shown] == ["once a call"] * 3
