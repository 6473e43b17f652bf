"""State of libraries that a compiled function reads: schedulers and optimizers, attributes of modules that a program
replaces, settings, what a tensor from outside has behind it. As without `tg.jit`, on every backend."""

import decimal
import functools
import logging
import math
import sys
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.frontends.torch.compiled.without_jit import Cases, changed, full, with_and_without
from torch import nn

import tensorgraft as tg

pytestmark = [pytest.mark.sampled, pytest.mark.filterwarnings("ignore::tensorgraft.transforms.UncompiledWarning")]
case = Cases()
CASES = case.functions


# ---- of Python and Pydantic ------------------------------------------------------------------------------------------


@case
def settings_that_the_standard_library_returns(device, jit, monkeypatch):
    log, context, x = logging.getLogger("tensorgraft.of.this.test"), decimal.Context(prec=4), full(1, device)
    records = []
    handler = logging.Handler()
    handler.emit = records.append

    def told(x):
        logging.getLogger("tensorgraft.of.this.test").debug("told")
        return x + logging.getLogger("tensorgraft.of.this.test").level

    def put(k):
        log.setLevel(10 if k == 2 else 30)
        decimal.getcontext().prec = context.prec = 4 + k

    log.addHandler(handler)
    try:
        with decimal.localcontext():
            out = changed(jit(told), put, x)
            out += changed(jit(lambda x: x * decimal.getcontext().prec), put, x)
            out += changed(jit(lambda x: x * context.prec), put, x)
    finally:
        log.removeHandler(handler)
    return [*out, len(records)]


@case
def models_of_pydantic(device, jit, monkeypatch):
    pydantic = pytest.importorskip("pydantic")
    settings, x = pydantic.create_model("Settings", gains=(dict, {"first": 1.0}))(), full(1, device)
    run = jit(lambda x: x * settings.model_dump()["gains"]["first"])
    return changed(run, lambda k: settings.gains.__setitem__("first", float(k)), x)


# ---- optimizers ------------------------------------------------------------------------------------------------------


def scheduled(device, schedule):
    parameter = full(1, device).requires_grad_()
    optimizer = torch.optim.SGD([parameter], 0.1)
    return parameter, optimizer, schedule(optimizer)


@case
def what_schedulers_and_optimizers_hold(device, jit, monkeypatch):
    _, optimizer, scheduler = scheduled(device, lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1, 2], 0.5))
    functions = [
        lambda x: x * scheduler.get_last_lr()[0],
        lambda x: x * scheduler.last_epoch,
        lambda x: x * scheduler.gamma * len(scheduler.milestones),
        lambda x: x * scheduler.state_dict()["last_epoch"],
        lambda x: x * optimizer.defaults["lr"] + len(optimizer.state),
    ]
    compiled, x, out = list(map(jit, functions)), full(1, device), []
    optimizer.step()
    steps = [
        lambda: None,
        scheduler.step,
        lambda: setattr(scheduler, "gamma", 0.25),
        lambda: scheduler.milestones.update({5: 1}),
        lambda: optimizer.defaults.update(lr=2.0),
    ]
    for step in steps:
        step()
        out += [run(x) for run in compiled]
    return out


@case
def rates_that_a_step_gives(device, jit, monkeypatch):
    kinds, out = torch.optim.lr_scheduler, []
    schedules = [
        lambda o: kinds.LambdaLR(o, lambda epoch: 1 / (epoch + 1)),
        lambda o: kinds.ReduceLROnPlateau(o, patience=1),
        lambda o: kinds.OneCycleLR(o, 0.5, 10),
    ]

    def step(parameter, optimizer, scheduler, rates, x):
        optimizer.zero_grad()
        (parameter * x).sum().backward()
        optimizer.step()
        scheduler.step(*([1.0] if isinstance(scheduler, kinds.ReduceLROnPlateau) else []))
        rates.append(scheduler.get_last_lr()[0])
        return scheduler.last_epoch

    for schedule in schedules:
        rates, made = [], scheduled(device, schedule)
        run, x = jit(functools.partial(step, *made, rates)), full(1, device)
        out += [*(run(x) for _ in range(5)), *rates, made[0]]
    return out


# ---- attributes ------------------------------------------------------------------------------------------------------


@case
def what_a_program_replaces_in_libraries(device, jit, monkeypatch):
    factors = [10.0]
    functions = [
        lambda x: F.relu(x) * math.tau,
        lambda x: torch.sin(x),
        lambda x: torch.nn.functional.gelu(x),
        lambda x: x * (sys.stdin is None),
    ]
    compiled, x, out = list(map(jit, functions)), full(-1, device), []
    steps = [
        lambda: None,
        lambda: monkeypatch.setattr(F, "relu", lambda x: x * factors[0]),
        lambda: factors.__setitem__(0, 20.0),
        lambda: monkeypatch.setattr(math, "tau", 2.0),
        lambda: monkeypatch.setattr(torch, "sin", torch.cos),
        lambda: monkeypatch.setattr(F, "gelu", F.silu),
        lambda: monkeypatch.setattr(sys, "stdin", None),
        monkeypatch.undo,
    ]
    for step in steps:
        step()
        out += [run(x) for run in compiled]
    return out


@case
def what_a_program_gives_to_classes(device, jit, monkeypatch):
    layer, x = nn.Linear(2, 2).to(device), full(1, device)
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(0.5)
    own = nn.Module.__call__
    monkeypatch.setattr(torch.Tensor, "scaled", lambda self: self * 2, raising=False)
    run, through = jit(lambda x: x.scaled()), jit(lambda x: layer(x).detach())
    out = [run(x), through(x)]
    monkeypatch.setattr(torch.Tensor, "scaled", lambda self: self * 5)
    monkeypatch.setattr(nn.Module, "__call__", lambda self, x: own(self, x) * 3)
    out += [run(x), through(x)]
    monkeypatch.undo()
    return [*out, through(x)]


# ---- settings --------------------------------------------------------------------------------------------------------


@case
def settings_that_are_asked_for(device, jit, monkeypatch):
    functions = [
        lambda x: x * len(torch.get_float32_matmul_precision()),
        lambda x: x * (2 if torch.backends.cudnn.benchmark else 3),
        lambda x: x * (sys.getrecursionlimit() - limit),
        lambda x: x * len(np.geterr()["divide"]) * np.get_printoptions()["precision"],
        lambda x: x * len(threading.current_thread().name),
    ]
    limit = sys.getrecursionlimit()
    compiled, x, out = list(map(jit, functions)), full(1, device), []

    def call():
        out.extend(run(x) for run in compiled)

    call()
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        sys.setrecursionlimit(limit + 5)
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
        with np.errstate(divide="ignore"), np.printoptions(precision=3):
            call()
    finally:
        torch.set_float32_matmul_precision(before)
        sys.setrecursionlimit(limit)
        monkeypatch.undo()
    call()
    thread = threading.Thread(target=call, name="another one of the program's")
    thread.start()
    thread.join()
    return out


# ---- tensors from outside --------------------------------------------------------------------------------------------


@case
def what_tells_tensors_apart(device, jit, monkeypatch):
    numbers, x, y = {}, full(1, device), full(1, device).requires_grad_()

    def numbered(x):
        numbers.setdefault(id(x), len(numbers) + 1.0)
        return x * numbers[id(x)]

    run = jit(numbered)
    out = [run(x), run(x), run(y).detach(), run(x)]
    versions, histories = jit(lambda x: x * x._version), jit(lambda x: (x * (2 if x.grad_fn is None else 3)).detach())
    out += [versions(x), versions(x.add_(1)), versions(x)]
    return [*out, histories(y), histories(y * 1), histories(y)]


# ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", tg.backends())
@pytest.mark.parametrize("name", CASES)
def test_as_without_it(name, backend, monkeypatch):
    given, judge = with_and_without(CASES[name], backend, monkeypatch)
    assert given == judge
