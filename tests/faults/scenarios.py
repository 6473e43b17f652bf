"""Programs whose operations are interrupted: each builds a state on a device, and does one thing to it.

A program of PyTorch is its own oracle: on the CPU. Where `whole`, the state afterwards is that before the call or that
after it; elsewhere it may also be one between two operators of CPU PyTorch, which is what PyTorch itself promises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import tensorgraft as tg

State = dict[str, Any]
ALL = ("jax", "numpy", "torch", "tensorflow")
TRACES = ("jax", "torch", "tensorflow")  # on NumPy a compiled function is the function itself


@dataclass(eq=False)
class Scenario:
    name: str
    build: Callable[[Any], State]  # on a device
    act: Callable[[State], Any]
    whole: bool = False
    backends: tuple[str, ...] = ALL
    modes: tuple[str, ...] = ("tiered",)  # of eager operators
    once: bool = False  # acting twice is no different
    kept: bool = False  # one state for all faults, since what was compiled belongs to it
    compiled: bool = False  # `act` is one program of the device
    parts: bool = False  # of which each part is as before or as after: nothing says in which order they come
    devices: int = 1  # of the backend, which the process has to have
    half: Callable[[State], None] | None = None  # where PyTorch itself stops inside an operator: how it is left


SCENARIOS: list[Scenario] = []


def _scenario(name: str, build: Callable[[Any], State], **options: Any) -> Callable[[Any], Any]:
    def decorate(act: Callable[[State], Any]) -> Callable[[State], Any]:
        SCENARIOS.append(Scenario(name, build, act, **options))
        return act

    return decorate


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _randn(device: Any, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=_generator()).to(device)


# ---- eager operators -------------------------------------------------------------------------------------------------

BOTH = ("tiered", "compiled")


def _arrays(device: Any) -> State:
    base = _randn(device, 4, 6)
    return {"base": base, "row": base[1], "columns": base[:, 1:5:2], "turned": base.t(), "other": _randn(device, 6, 4)}


@_scenario("in place, broadcast", _arrays, modes=BOTH)
def _in_place(s: State) -> None:
    s["base"].mul_(0.5)


@_scenario("in place through a view", _arrays, modes=BOTH)
def _through_a_view(s: State) -> None:
    s["columns"].add_(s["other"][:4, :2])


@_scenario("in place, turned, reads itself", _arrays, modes=BOTH)
def _turned(s: State) -> None:
    s["turned"].add_(s["other"] * 2)


@_scenario("setitem with indices", _arrays, modes=BOTH, once=True)
def _set(s: State) -> None:
    s["base"][torch.tensor([0, 2])] = s["other"][:2, :1] + 1


def _outs(device: Any) -> State:
    return _arrays(device) | {"out": torch.zeros(4, 4, device=device), "empty": torch.empty(0, device=device)}


@_scenario("out=", _outs, modes=BOTH, once=True)
def _out(s: State) -> None:
    torch.matmul(s["base"], s["other"], out=s["out"])


def _resized(s: State) -> None:
    s["empty"].resize_(4, 6).zero_()


@_scenario("out= that grows", _outs, modes=BOTH, once=True, backends=("jax", "numpy", "torch"), half=_resized)
def _out_grows(s: State) -> None:
    torch.add(s["base"], 1.0, out=s["empty"])


@_scenario("two outs", lambda d: {"x": _randn(d, 5, 3), "v": torch.zeros(5, device=d),
                                  "i": torch.zeros(5, dtype=torch.int64, device=d)}, modes=BOTH, once=True)  # fmt: skip
def _two_outs(s: State) -> None:
    torch.max(s["x"], 1, out=(s["v"], s["i"]))


def _many(device: Any) -> State:
    return {"xs": [_randn(device, n, 3) for n in (2, 3, 4)], "ys": [_randn(device, n, 3) + 1 for n in (2, 3, 4)]}


@_scenario("foreach", _many, modes=BOTH)
def _foreach(s: State) -> None:
    torch._foreach_mul_(s["xs"], s["ys"])


@_scenario("foreach, addcdiv", _many, modes=BOTH)
def _foreach_addcdiv(s: State) -> None:
    torch._foreach_addcdiv_(s["xs"], s["ys"], s["ys"], value=0.25)


@_scenario("copy from the host", _arrays, once=True)
def _copy(s: State) -> None:
    s["columns"].copy_(torch.ones(4, 2))


@_scenario("batch norm's buffers", lambda d: {"m": _norm(d), "x": _randn(d, 5, 4)})
def _batch_norm(s: State) -> None:
    with torch.no_grad():
        s["m"](s["x"])


def _norm(device: Any) -> nn.Module:
    return nn.BatchNorm1d(4).to(device)


@_scenario("moving a module", lambda d: {"m": _mlp(d), "_to": torch.float64}, once=True,
           backends=("jax", "numpy", "torch"))  # fmt: skip
def _moving(s: State) -> None:
    s["m"].to(s["_to"])


# ---- derivatives and optimizers --------------------------------------------------------------------------------------


def _mlp(device: Any) -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=_generator()) * 0.5)
    return model.to(device)


def _training(make: Callable[[Any], Any]) -> Callable[[Any], State]:
    def build(device: Any) -> State:
        model = _mlp(device)
        x = _randn(device, 6, 3)
        state = {"model": model, "optimizer": make(model.parameters()), "x": x, "y": x[:, :1] * 0.5}
        _backward(state)
        return state

    return build


def _backward(s: State) -> None:
    F.mse_loss(s["model"](s["x"]), s["y"]).backward()


@_scenario("backward", _training(lambda ps: torch.optim.SGD(ps, 0.1)), parts=True)
def _backward_twice(s: State) -> None:
    _backward(s)


@_scenario(
    "backward, compiled eagerly", _training(lambda ps: torch.optim.SGD(ps, 0.1)), modes=("compiled",), parts=True
)
def _backward_compiled(s: State) -> None:
    _backward(s)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD, momentum, one by one": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, foreach=False),
    "SGD, momentum, foreach": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, foreach=True),
    "Adam, one by one": lambda ps: torch.optim.Adam(ps, 0.05, foreach=False),
    "Adam, foreach": lambda ps: torch.optim.Adam(ps, 0.05, foreach=True),
    "AdamW, fused": lambda ps: torch.optim.AdamW(ps, 0.05, fused=True),
    "SGD, fused": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, fused=True),
}


def _stepped(make: Callable[[Any], Any]) -> Callable[[Any], State]:
    def build(device: Any) -> State:
        state = _training(make)(device)
        state["optimizer"].step()
        return state

    return build


for _name, _make in OPTIMIZERS.items():
    SCENARIOS.append(Scenario(f"{_name}: first step", _training(_make), lambda s: s["optimizer"].step()))
    SCENARIOS.append(Scenario(f"{_name}: step", _stepped(_make), lambda s: s["optimizer"].step()))


# ---- one program of many operators -----------------------------------------------------------------------------------


def _step(s: State, x: torch.Tensor) -> torch.Tensor:
    s["optimizer"].zero_grad()
    loss = F.mse_loss(s["model"](x), s["y"])
    loss.backward()
    s["optimizer"].step()
    s["total"].add_(loss.detach())
    return loss.detach()


def _jitted(make: Callable[[Any], Any], schedule: bool = False) -> Callable[[Any], State]:
    def build(device: Any) -> State:
        state = _training(make)(device) | {"total": torch.zeros((), device=device)}
        if schedule:
            state["schedule"] = torch.optim.lr_scheduler.StepLR(state["optimizer"], 1, gamma=0.9)

        def run(x: torch.Tensor) -> torch.Tensor:
            loss = _step(state, x)
            if schedule:
                state["schedule"].step()
            return loss

        if str(device) != "cpu":
            state["_run"] = tg.jit(run)
        state["_schedule"] = schedule
        return state

    return build


def _call(s: State) -> None:
    if "_run" in s:
        s["_run"](s["x"])
        return
    _step(s, s["x"])
    if s["_schedule"]:
        s["schedule"].step()


def _warm(build: Callable[[Any], State]) -> Callable[[Any], State]:
    def warm(device: Any) -> State:
        state = build(device)
        for _ in range(12):  # until it is called in the shortest way
            _call(state)
        return state

    return warm


for _name, _build in {
    "SGD, momentum": _jitted(lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9)),
    "Adam": _jitted(lambda ps: torch.optim.Adam(ps, 0.05)),
    "AdamW and a schedule": _jitted(lambda ps: torch.optim.AdamW(ps, 0.05), schedule=True),
}.items():
    SCENARIOS.append(Scenario(f"tg.jit, {_name}: first call", _build, _call, whole=True, compiled=True,
                              backends=TRACES))  # fmt: skip
    SCENARIOS.append(Scenario(f"tg.jit, {_name}: call", _warm(_build), _call, whole=True, kept=True, compiled=True,
                              backends=TRACES))  # fmt: skip


def _counted(device: Any) -> State:
    state: State = {"x": _randn(device, 4), "total": torch.zeros(4, device=device), "row": None}
    state["row"] = state["total"][1:3]

    def run(x: torch.Tensor) -> torch.Tensor:
        state["total"].add_(x)
        state["row"].mul_(0.5)
        return state["total"] * 2

    state["_run"] = run if str(device) == "cpu" else tg.jit(run)
    return state


@_scenario("tg.jit of what writes: first call", _counted, whole=True, compiled=True, backends=TRACES)
def _count(s: State) -> None:
    if str(s["x"].device) == "cpu":
        s["total"].add_(s["x"])
        s["row"].mul_(0.5)
    else:
        s["_run"](s["x"])


SCENARIOS.append(Scenario("tg.jit of what writes: call", lambda d: _called(_counted(d)), _count, whole=True,
                          compiled=True, kept=True, backends=TRACES))  # fmt: skip


def _called(s: State) -> State:
    for _ in range(12):
        _count(s)
    return s


def _outside(device: Any) -> State:
    state: State = {"model": _mlp(device), "x": _randn(device, 6, 3)}
    model = state["model"]
    state["_run"] = tg.jit(lambda x: model(x).square().mean()) if str(device) != "cpu" else None
    return state


@_scenario("backward outside of tg.jit", _outside, backends=("jax", "torch"), parts=True)
def _backward_outside(s: State) -> None:
    out = s["_run"](s["x"]) if s["_run"] is not None else s["model"](s["x"]).square().mean()
    out.backward()


# ---- lazy mode -------------------------------------------------------------------------------------------------------


def _lazily(device: Any) -> State:
    return _training(lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, foreach=True))(device) | {"_device": device}


@_scenario("lazy: a step and a flush", _lazily, backends=("jax",))
def _lazy(s: State) -> None:
    if str(s["_device"]) == "cpu":
        _lazy_step(s)
        return
    before = tg_current()
    torch.graft.set_device(s["_device"])
    try:
        with tg.lazy(compile="first"):
            _lazy_step(s)
    finally:
        torch.graft.set_device(before)


def tg_current() -> Any:
    return torch.graft.current_device()


def _lazy_step(s: State) -> None:
    s["model"](s["x"]).square().mean().backward()
    s["optimizer"].step()
    s["x"].mul_(0.5)
    s["x"].sum().item()


# ---- torch.compile, quantisation -------------------------------------------------------------------------------------


def _dynamo(device: Any) -> State:
    state: State = {"x": _randn(device, 4, 3), "total": torch.zeros(4, 3, device=device)}

    def run(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(x.sin())
        return total * 2

    state["_run"] = run if str(device) == "cpu" else torch.compile(run, backend="tensorgraft")
    return state


@_scenario("torch.compile: call", lambda d: _dynamo_called(_dynamo(d)), kept=True, backends=("jax", "numpy"))
def _compile(s: State) -> None:
    s["_run"](s["x"], s["total"])


def _dynamo_called(s: State) -> State:
    if str(s["x"].device) != "cpu":
        s["_run"](s["x"], torch.zeros_like(s["x"]))
    return s


def _unquantised(device: Any) -> State:
    model = nn.Sequential(nn.Linear(32, 4), nn.ReLU(), nn.Linear(4, 32))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=_generator()))
    return {"model": model.to(device)}


@_scenario("quantize_", _unquantised, whole=True, once=True, backends=("jax", "numpy", "torch"))
def _quantize(s: State) -> None:
    tg.quantize_(s["model"], "int8_per_channel")
