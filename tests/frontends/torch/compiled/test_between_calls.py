"""What changes between two calls of a compiled function, and which objects are the same one: as without `tg.jit`, on
every backend. A case is a function of a device and of what compiles; it returns tensors and plain values."""

import copy
import dataclasses
import functools
import pickle
import threading
import weakref
import zlib

import pytest
import torch
from tests.frontends.torch.compiled.without_jit import Cases, full, with_and_without
from torch import nn
from torch.utils import _pytree

import tensorgraft as tg

pytestmark = [pytest.mark.sampled, pytest.mark.filterwarnings("ignore::tensorgraft.transforms.UncompiledWarning")]
case = Cases()
CASES = case.functions


@pytest.fixture(autouse=True)
def another_thread(request):
    """An idle thread beside every second case: with one, changes count that the traced thread has asked for."""
    done = threading.Event()
    if zlib.crc32(request.node.name.encode()) % 2:
        threading.Thread(target=done.wait, daemon=True).start()
    yield
    done.set()


def layer(device):
    made = nn.Linear(2, 2)
    with torch.no_grad():
        made.weight.fill_(0.5)
        made.bias.fill_(1.0)
    return made.to(device)


# ---- functions and classes -------------------------------------------------------------------------------------------


@case
def code_and_defaults_of_the_function_itself(device, jit):
    def f(x, by=2.0, *, plus=1.0):
        return x * by + plus

    run, x = jit(f), full(1, device)
    before = run(x)
    f.__defaults__ = (3.0,)
    f.__kwdefaults__ = {"plus": 4.0}
    then = run(x)
    f.__code__ = (lambda x, by, *, plus: x - by - plus).__code__
    return [before, then, run(x)]


@case
def keywords_of_a_partial(device, jit):
    scaled = functools.partial(lambda x, by: x * by, by=2.0)
    run, x = jit(scaled), full(1, device)
    before = run(x)
    scaled.keywords["by"] = 3.0
    return [before, run(x)]


@case
def class_and_bases_of_an_object(device, jit):
    class One:
        def run(self, x):
            return x + 1

    class Two:
        def run(self, x):
            return x * 10

    class Derived(One):
        pass

    run, held, x = jit(lambda x: held.run(x)), Derived(), full(1, device)
    before = run(x)
    Derived.__bases__ = (Two,)
    then = run(x)
    held.__class__ = One
    return [before, then, run(x)]


@case
def class_of_a_module(device, jit):
    class One(nn.Module):
        def forward(self, x):
            return x + 1

    class Two(One):
        def forward(self, x):
            return x * 10

    module, x = One(), full(1, device)
    run = jit(module)
    before = run(x)
    module.__class__ = Two
    return [before, run(x)]


@case
def class_attributes_that_were_not_there(device, jit):
    class Kind(type):
        of_kind = 1.0

    class Held(metaclass=Kind):
        pass

    def f(x):
        try:
            x = x * held.by
        except AttributeError:
            x = x + 1
        return x * Held.of_kind * getattr(Held, "more", 1.0)

    run, held, x = jit(f), Held(), full(1, device)
    out = [run(x)]
    for name in ("by", "of_kind", "more"):
        setattr(Held, name, 3.0)
        out.append(run(x))
    return out


@case
def variables_of_methods(device, jit):
    number = [2.0]

    class Base:
        def inherited(self, x):
            return x + number[0]

    class Held(Base):
        def __init__(self):
            self.at_first = number[0]

        @staticmethod
        def static(x):
            return x * number[0]

        @classmethod
        def of_class(cls, x):
            return x - number[0]

        def inherited(self, x):
            return super().inherited(x) * 2

        def __mul__(self, x):
            return x * number[0] * 3

    held, x = Held(), full(1, device)
    functions = [
        lambda x: Held.static(x) + Held.of_class(x),
        lambda x: held.inherited(x),
        lambda x: held * x,
        lambda x: x * Held().at_first,
        lambda x: Held.inherited(held, x),
    ]
    runs = [jit(f) for f in functions]
    before = [run(x) for run in runs]
    number[0] = 5.0
    return before + [run(x) for run in runs]


@case
def attributes_of_a_tensors_class(device, jit):
    class Scaled(torch.Tensor):
        by = 2.0

    run, x = jit(lambda x: x * x.by), full(1, device).as_subclass(Scaled)
    before = run(x).as_subclass(torch.Tensor)
    Scaled.by = 3.0
    return [before, run(x).as_subclass(torch.Tensor)]


@case
def attributes_of_another_thread(device, jit):
    local, x, out = threading.local(), full(1, device), []
    local.by = 2.0
    run = jit(lambda x: x * getattr(local, "by", 10.0))
    out.append(run(x))
    thread = threading.Thread(target=lambda: out.append(run(x)))
    thread.start()
    thread.join()
    return out


@case
def results_that_a_cache_remembers(device, jit):
    number = [2.0]

    @functools.lru_cache
    def cached(by):
        return number[0] * by

    run, x = jit(lambda x: x * cached(3)), full(1, device)
    out = [run(x)]
    number[0] = 7.0
    out.append(run(x))
    cached.cache_clear()
    return [*out, run(x)]


@case
def parameters_of_a_distribution(device, jit):
    normal, x = torch.distributions.Normal(full(1, device), 1.0), full(1, device)
    run = jit(lambda x: normal.log_prob(x))
    before = run(x)
    normal.loc, normal.scale = full(3, device), full(2, device)
    return [before, run(x)]


@case
def a_table_of_attributes_that_is_replaced(device, jit):
    class Held:
        by = 1.0

    held, x = Held(), full(1, device)
    run = jit(lambda x: x * sum(vars(held).values()))
    out = []
    for attributes in ({"a": 1.0}, {"a": 1.0, "b": 3.0}):
        held.__dict__ = attributes
        out.append(run(x))
    return out


@case
def elements_of_a_weak_set(device, jit):
    class Held:
        pass

    one, other = Held(), Held()
    known, x = weakref.WeakSet([one]), full(1, device)
    run = jit(lambda x: x * len(known))
    before = run(x)
    known.add(other)
    return [before, run(x)]


# ---- which objects are the same one ----------------------------------------------------------------------------------


@case
def keys_that_are_equal(device, jit):
    run = jit(lambda table: ([type(key).__name__ for key in table], sum(table.values())))
    return [run({key: full(1, device)}) for key in (1, True, 1.0)]


@case
def arguments_that_are_equal(device, jit):
    @dataclasses.dataclass(frozen=True)
    class Config:
        name: str
        by: float = dataclasses.field(compare=False)

    run = jit(lambda x, config: x * config.by)
    return [run(full(1, device), Config("a", by)) for by in (2.0, 5.0, 2.0)]


@case
def exceptions_as_results(device, jit):
    run = jit(lambda x: ValueError("too large", x * 2))
    return [run(full(value, device)).args for value in (1, 2)]


@case
def copies_of_compiled_methods(device, jit):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.by = 2.0
            self.run = jit(self.scaled)

        def scaled(self, x):
            return x * self.by

        def forward(self, x):
            return self.run(x)

    first, x = Scaled(), full(1, device)
    before = first(x)
    second = copy.deepcopy(first)
    second.by = 3.0
    return [before, first(x), second(x)]


@case
def parts_of_a_registered_class(device, jit):
    class Pair:
        def __init__(self, x, by):
            self.x, self.by = x, by

    _pytree.register_pytree_node(Pair, lambda p: ([p.x], p.by), lambda parts, by: Pair(parts[0], by))
    run = jit(lambda p: (p.x * p.by, type(p.by).__name__))
    return [run(Pair(full(1, device), by)) for by in (1, 2, 1.0)]


@case
def lists_that_are_one(device, jit):
    def f(first, second, x):
        first.append(x)
        return len(second)

    run, x = jit(f), full(1, device)
    one, other, known = [1], [1], []
    captured = jit(lambda held: (held.append(1), len(known))[1])
    return [run(one, other, x), run(one, one, x), run(other, other, x), captured([]), captured(known), captured([])]


@case
def objects_that_are_one(device, jit):
    class Held:
        def __init__(self, x):
            self.x = x

    def f(given):
        given.x = given.x + 1
        return known.x * 1

    run, known, other = jit(f), Held(full(1, device)), Held(full(5, device))
    return [run(other), run(known), run(other), run(known)]


@case
def tensors_that_are_one(device, jit):
    known, x = full(1, device), full(1, device)
    run = jit(lambda a, b: (a is b, a is known, any(b is t for t in held)))
    held = [known]
    calls = [(x, x), (x, x.clone()), (known, x), (x, known), (x, x.view_as(x))]
    return [run(*call) for call in calls]


# ---- hooks, modes, optimizers ----------------------------------------------------------------------------------------


@case
def variables_of_hooks(device, jit):
    module, number, x = layer(device), [2.0], full(1, device)
    module.register_forward_hook(lambda _, args, out: out * number[0])
    handle = nn.modules.module.register_module_forward_pre_hook(lambda _, args: (args[0] + number[0],))
    try:
        run = jit(module)
        before = run(x)
        number[0] = 5.0
        return [before, run(x)]
    finally:
        handle.remove()


@case
def hooks_of_all_modules_that_count(device, jit):
    module, names, x = layer(device), [], full(1, device)
    handle = nn.modules.module.register_module_forward_hook(lambda one, args, out: names.append(type(one).__name__))
    try:
        run = jit(lambda x: module(x))
        run(x), run(x)
    finally:
        handle.remove()
    return names


@case
def hooks_of_tensors_that_come_and_go(device, jit):
    leaf, x = full(1, device).requires_grad_(), full(2, device)

    def f(x):
        leaf.grad = None
        (leaf * x).sum().backward()
        return leaf.grad

    def tripled(leaf):
        leaf.grad.mul_(3)

    run, out = jit(f), []
    for register, hook in ((leaf.register_hook, lambda g: g * 2), (leaf.register_post_accumulate_grad_hook, tripled)):
        out.append(run(x))
        handle = register(hook)
        out.append(run(x))
        handle.remove()
    return [*out, run(x)]


@case
def hooks_inside_of_a_backward_pass_outside(device, jit):
    leaf, number, seen = full(1, device).requires_grad_(), [2.0], []

    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g * number[0]

    def hooked(x):
        y = leaf * x
        y.register_hook(lambda g: g * number[0])
        return y.sum()

    def collected(x):
        y = leaf * x
        y.register_hook(lambda g: seen.append(g))
        return (y * y).sum()

    out = []
    for run in (jit(lambda x: Straight.apply(leaf * x).sum()), jit(hooked)):
        for value in (2.0, 5.0):
            leaf.grad, number[0] = None, value
            run(full(1, device)).backward()
            out.append(leaf.grad)
        leaf.grad, y = None, run(full(1, device))
        number[0] = 7.0
        y.backward()
        out.append(leaf.grad)
    run = jit(collected)
    pending = [run(full(value, device)) for value in (1, 2)]
    for y in (*pending, run(full(3, device))):
        y.backward()
    return out + seen


@case
def hooks_around_steps(device, jit):
    leaf, calls = full(4, device).requires_grad_(), []
    optimizer = torch.optim.SGD([leaf], lr=0.5)

    def f():
        optimizer.zero_grad()
        (leaf * leaf).sum().backward()
        optimizer.step()

    run = jit(f)
    run()
    handle = optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    run(), run()
    handle.remove()
    optimizer.register_step_post_hook(lambda *_: leaf.data.mul_(3.0))
    run()
    return [leaf, calls]


@case
def an_optimizer_of_the_program(device, jit):
    class Steps(torch.optim.Optimizer):
        scale = 1.0

        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})
            self.factor, self.count = 1.0, 0

        @torch.no_grad()
        def step(self):
            self.count += 1
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad, alpha=-group["lr"] * self.factor * self.scale)

    leaf = full(4, device).requires_grad_()
    optimizer = Steps([leaf], lr=0.125)

    def f():
        optimizer.zero_grad()
        (leaf * leaf).sum().backward()
        optimizer.step()
        return leaf * 1

    run = jit(f)
    out = [run(), run()]
    optimizer.factor = 2.0
    out.append(run())
    Steps.scale = 0.0
    return [*out, run(), optimizer.count]


@case
def modes_of_the_program_around_a_call(device, jit):
    class Cosine(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return torch.cos(*args) if func is torch.Tensor.sin else func(*args, **(kwargs or {}))

    run, leaf = jit(lambda x: (x.exp() * x).sin()), full(1, device).requires_grad_()
    out = [run(leaf).detach()]
    with Cosine():
        out.append(run(leaf).detach())
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        y = run(leaf)
    y.sum().backward()
    return [*out, run(leaf).detach(), leaf.grad]


@pytest.mark.parametrize("backend", tg.backends())
@pytest.mark.parametrize("name", CASES)
def test_as_without_it(name, backend):
    given, judge = with_and_without(CASES[name], backend)
    assert given == judge


@tg.jit
def doubled(x):
    return x * 2


def test_compiled_functions_are_pickled_by_their_names():
    assert pickle.loads(pickle.dumps(doubled)) is doubled


def test_what_is_guarded_is_named():
    class One:
        def run(self, x):
            return x * 1

    held, other, x = One(), type("Other", (One,), {}), torch.ones(2, device=tg.device("jax"))
    run = tg.jit(lambda x: held.run(x), compile="first")
    run(x)
    held.__class__ = other
    run(x)
    assert "__class__" in str(run.report.reasons[-1])
