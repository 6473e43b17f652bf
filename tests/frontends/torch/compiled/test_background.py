"""`tg.jit(fn, compile="background")`: calls run the function itself while another thread compiles it."""

import copy
import os
import pickle
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import tensorgraft as tg
from tensorgraft.compiled import background as compiled_background
from tensorgraft.compiled.background import SWITCH, Compilation
from tensorgraft.compiled.uncompiled import UncompiledWarning

STEPS = 7


@pytest.fixture(autouse=True)
def tiered():
    with tg.eager("tiered"):
        yield


@pytest.fixture(params=["jax", "tensorflow", "torch", "numpy"])
def device(request):
    pytest.importorskip(request.param)
    return tg.device(request.param)


@pytest.fixture
def jax():
    return tg.device("jax")


@pytest.fixture
def held(monkeypatch):
    """An event that compilations in other threads wait for."""
    event, run = threading.Event(), Compilation._run

    def waits(self):
        event.wait()
        run(self)

    monkeypatch.setattr(Compilation, "_run", waits)
    yield event
    event.set()


def background(fn, at=3):
    return tg.jit(fn, compile="background", at=at)


def _cold(fn):
    return fn.report.cold if hasattr(fn, "report") else 0


def how(fn):
    """Return a function that calls `fn`, and says of each call whether it ran the function itself."""

    def call(*args):
        before = _cold(fn)
        fn(*args)
        return _cold(fn) > before

    return call


def _training(device, compiler):
    """Everything that a training step leaves, after each of some steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), nn.BatchNorm1d(6), nn.Linear(6, 1, bias=False))
    model = model.to(device)
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)
    count, losses = {"steps": 0}, []

    def step(x):
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        scheduler.step()
        count["steps"] += 1
        losses.append(loss.detach())
        return loss.detach()

    run, seen = compiler(step), []
    for _ in range(STEPS):
        loss = run(torch.randn(5, 4, device=device))
        state = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
        state += [v for entries in opt.state.values() for v in entries.values() if isinstance(v, torch.Tensor)]
        numbers = [count["steps"], len(losses), opt.param_groups[0]["lr"], scheduler.last_epoch]
        seen.append([torch.tensor(numbers), *(t.cpu().clone() for t in (loss, losses[-1], *state))])
    return seen


@pytest.mark.parametrize(
    ("backend", "at"), [("jax", 2), ("jax", 4), ("jax", "ready"), ("tensorflow", 4), ("torch", "ready"), ("numpy", 4)]
)
def test_training_is_that_of_eager_code(backend, at):
    """State that the first steps make, writes, counters, gradients, schedulers and random numbers: nothing is lost, and
    nothing done twice."""
    pytest.importorskip(backend)
    eager = _training(tg.device(backend), lambda step: step)
    ours = _training(tg.device(backend), lambda step: background(step, at))
    torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-4)


def test_runs_with_the_same_switch_have_the_same_bits(jax):
    runs = [_training(jax, lambda step: background(step, 4)) for _ in range(2)]
    for one, other in zip(*runs, strict=True):
        assert all(map(torch.equal, one, other))


def test_random_numbers_are_those_of_the_same_call_without_it(device):
    def draw(x):
        return nn.functional.dropout(x, 0.5) + torch.rand(3, device=device).sum()

    x, drawn = torch.ones(20, device=device), []
    for fn in (draw, background(draw, 3)):
        torch.manual_seed(7)
        drawn.append([fn(x).cpu() for _ in range(5)])
    torch.testing.assert_close(*drawn)


def test_the_switch_is_at_the_same_call_and_waits(jax):
    f = background(lambda x: x.sin() + 1, 5)
    call, x = how(f), torch.ones(3, device=jax)
    assert [call(x) for _ in range(7)] == [True] * 4 + [False] * 3
    assert (f.report.calls, f.report.cold, f.report.switched, f.report.traces) == (7, 4, [5], 1)
    assert "switched to what another thread had compiled at call 5" in str(tg.explain(f, x))


def test_the_default_switch(jax):
    f = tg.jit(lambda x: x + 1, compile="background")
    call, x = how(f), torch.ones(3, device=jax)
    assert [call(x) for _ in range(SWITCH + 1)] == [True] * (SWITCH - 1) + [False] * 2


def test_when_it_is_ready(jax, held):
    f = background(lambda x: x.sin() + 1, "ready")
    call, x = how(f), torch.ones(3, device=jax)
    assert [call(x) for _ in range(50)] == [True] * 50
    held.set()
    compiling = [t for t in threading.enumerate() if t.name == "tensorgraft-compile"]
    for thread in compiling:
        thread.join()
    assert compiling and not call(x) and f.report.switched == [51]


def test_nothing_is_compiled_again_after_the_switch(jax):
    import jax as framework

    compiled = []
    framework.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiled.append(threading.current_thread().name) if "backend_compile" in name else 0
    )
    try:
        w = torch.randn(8, 8, device=jax, requires_grad=True)

        def step(x, scale):
            loss = (nn.functional.dropout(x @ w, 0.5) * scale).square().mean()
            loss.backward()
            with torch.no_grad():
                w.sub_(0.1 * w.grad)
            w.grad = None
            return loss.detach()

        for fn in (step, lambda x, scale: (x @ x).tanh() * scale):  # one that is given memory, one that is not
            run, x = background(fn, 4), torch.randn(8, 8, device=jax)
            run(x, 2.0)
            run(x, 2.0)
            compiled.clear()
            for _ in range(14):
                run(x, 2.0)
            assert set(compiled) <= {"tensorgraft-compile"} and run.report.cold == 3
    finally:
        framework.monitoring.clear_event_listeners()


def test_signatures_have_switches_of_their_own(jax):
    model = nn.Dropout(0.5).to(jax)
    f = background(lambda x: model(x) + 1, 3)
    call, x, y = how(f), torch.ones(3, device=jax), torch.ones(4, device=jax)
    assert [call(x), call(x), call(y), call(x), call(y), call(y)] == [True, True, True, False, True, False]
    model.eval()
    assert [call(x), call(x), call(x)] == [True, True, False]
    model.train()
    assert not call(x)


def test_writes_between_calls_are_seen(device):
    scale = torch.ones(3, device=device)
    f = background(lambda x: x.mul_(scale), 4)
    x, right = torch.ones(3, device=device), torch.ones(3)
    for n in range(7):
        scale.fill_(n + 1)
        f(x)
        right *= n + 1
        assert x.tolist() == right.tolist()


def test_an_exception_of_the_function_is_eager_codes_own(jax):
    calls = []

    def f(x):
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError
        return x + 1

    run = background(f, 3)
    with pytest.raises(ZeroDivisionError):
        run(torch.ones(1, device=jax))
    assert [run(torch.ones(1, device=jax)).item() for _ in range(4)] == [2.0] * 4 and len(calls) == 5


def test_errors_of_the_compiler_are_raised_where_it_switches(jax, monkeypatch):
    """And leave everything as it was; the next call compiles again."""
    from tensorgraft.backends.jax.compilation import program_cache

    def fails(self, *specs):
        raise RuntimeError("out of everything")

    x, log = torch.ones(3, device=jax), []

    def f():
        x.mul_(2)
        log.append(1)

    run = background(f, 3)
    with monkeypatch.context() as patch:
        patch.setattr(program_cache.KeptProgram, "prepare", fails)
        run()
        run()
        with pytest.raises(RuntimeError, match="out of everything"):
            run()
    assert x.tolist() == [4.0] * 3 and len(log) == 2
    run()
    assert x.tolist() == [8.0] * 3 and len(log) == 3 and run.report.cold == 2


def test_errors_of_the_trace_are_raised_by_the_call_that_traces(jax):
    x = torch.ones(3, device=jax)

    def f():
        x.add_(1)
        return 1 if x.sum() > 0 else 2

    run = background(f, 3)
    assert run() == 1
    for _ in range(2):
        with pytest.raises(tg.TracedValueError, match="needs the value"):
            run()
    assert x.tolist() == [2.0] * 3


def test_what_cannot_be_a_program_runs_as_eager_code(jax):
    import random

    f = background(lambda x: x + random.random(), 3)
    x = torch.ones(1, device=jax)
    f(x)
    with pytest.warns(UncompiledWarning, match="draws random numbers"):
        f(x)
    assert len({f(x).item() for _ in range(4)}) == 4


def test_what_it_prints_is_printed_once_a_call(jax, capsys):
    f = background(lambda x: (print("called"), x + 1)[1], 3)
    for n in range(1, 6):
        f(torch.ones(1, device=jax))
        assert capsys.readouterr().out == "called\n", n


def test_a_backward_pass_outside(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
    other = copy.deepcopy(model)
    run = background(model, 4)
    for _ in range(6):
        x = torch.randn(2, 3, device=device)
        for call, of in ((run, model), (other, other)):
            of.zero_grad()
            call(x).sum().backward()
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(p.grad.cpu(), q.grad.cpu())


def test_compiled_functions_inside_belong_to_it(jax):
    inner = background(lambda x: x + 1, 3)
    outer = background(lambda x: inner(x) * 2, 4)
    call, x = how(outer), torch.ones(2, device=jax)
    assert [call(x) for _ in range(5)] == [True] * 3 + [False] * 2
    assert inner.report.traces == 0 and outer(x).tolist() == [4.0] * 2
    plain = tg.jit(lambda x: inner(x) * 2)  # traces into it
    assert plain(x).tolist() == [4.0] * 2 and inner.report.traces == 0


def _doubled(x):
    return x * 2


def test_copies_and_pickles_begin_anew(jax):
    f = background(_doubled, 3)
    x = torch.ones(2, device=jax)
    for _ in range(4):
        f(x)
    for other in (copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        call = how(other)
        other(x)
        assert [call(x) for _ in range(3)] == [True, False, False] and other(x).tolist() == [2.0] * 2


def test_a_module(jax):
    run = background(nn.Linear(2, 3).to(jax), 3)
    x = torch.ones(1, 2, device=jax)
    results = [run(x) for _ in range(5)]
    torch.testing.assert_close(results[-1], results[0])
    assert (run.report.cold, run.report.switched) == (2, [3]) and next(iter(run.state_dict())) == "_orig_mod.weight"


def test_threads_that_call_it_at_once(jax):
    f, wrong = background(lambda x: x.sin() * 2, 20), []
    right = torch.ones(3, device=jax).sin() * 2

    def calls():
        for _ in range(30):
            if not torch.allclose(f(torch.ones(3, device=jax)), right):
                wrong.append(1)

    threads = [threading.Thread(target=calls) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and f.report.switched and f.report.traces == 1


def test_values_that_are_guarded(jax):
    f = tg.jit(lambda x: x + 1 if x.bool().any() else x - 1, compile="background", at=3, guard_values=True)
    for x in ([1.0, 0.0], [0.0, 0.0]) * 5:
        assert f(torch.tensor(x, device=jax)).tolist() == [v + (1 if any(x) else -1) for v in x]


def test_traces_that_are_compared(jax):
    state = torch.zeros(1, device=jax)
    f = tg.jit(lambda: state.add_(1), compile="background", at=3, check="second")
    for n in range(1, 6):
        assert f().item() == n


def test_other_switches_are_refused():
    for at in (1, 0, -3, 2.5, "soon"):
        with pytest.raises(ValueError, match="from 2 on, or 'ready'"):
            tg.jit(lambda x: x, compile="background", at=at)
    with pytest.raises(ValueError, match="is for compile='background'"):
        tg.jit(lambda x: x, at=3)


PROGRAM = """
import os, sys, threading
import torch, tensorgraft as tg
from tensorgraft.compiled.background import Compilation
run, begun = Compilation._run, threading.Event()
from tensorgraft.backends.jax.compilation.program_cache import KeptProgram
prepare = KeptProgram.prepare
def slow(self, *specs):
    begun.set()
    import time; time.sleep(1)
    prepare(self, *specs)
KeptProgram.prepare = slow
w = torch.ones(4, 4, device=tg.device("jax"))
f = tg.jit(lambda x: (x @ w).sin(), compile="background", at=9)
for _ in range(3):
    f(w)
begun.wait()
"""


def _process(program):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TENSORGRAFT_CACHE": "0"}
    command = [sys.executable, "-c", PROGRAM + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


@pytest.mark.parametrize(
    ("end", "status"), [("print('end')", 0), ("print('end'); sys.exit(3)", 3), ("print('end'); raise ValueError", 1)]
)
def test_a_process_ends_while_a_thread_compiles(end, status):
    ended = _process(end)
    assert (ended.returncode, ended.stdout) == (status, "end\n"), ended.stderr
    assert status == 1 or not ended.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_a_forked_process_does_not_wait_for_the_thread():
    """In which no thread compiles, and JAX refuses to compute."""
    ended = _process(
        """
pid = os.fork()
if not pid:
    try:
        for _ in range(9):
            f(w)
    except RuntimeError as error:
        print("forked" in str(error))
    os._exit(0)
os.waitpid(pid, 0)
for _ in range(9):
    y = f(w)
print(f.report.switched, "end")
"""
    )
    assert ended.stdout == "True\n[9] end\n", ended.stderr


def test_programs_that_nobody_has_begun_with_are_compiled_by_their_call(jax, monkeypatch):
    monkeypatch.setattr(compiled_background, "_slots", threading.BoundedSemaphore(1))
    with compiled_background._slots:  # another one is being compiled
        f = background(lambda x: x.cos() + 1, 3)
        call, x = how(f), torch.ones(3, device=jax)
        assert [call(x) for _ in range(5)] == [True, True, False, False, False]
