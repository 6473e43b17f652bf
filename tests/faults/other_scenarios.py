"""Scenarios of the other front ends, whose oracles are NumPy and TensorFlow, and of files."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from typing import Any

import numpy as np
import torch
from tests.faults import scenarios
from tests.faults.scenarios import ALL, SCENARIOS, TRACES, Scenario, State, _scenario

import tensorgraft as tg
from tensorgraft.transforms.serialisation import tree_serialise_leaves


def _on_host(device: Any) -> bool:
    return device.type == "cpu"


_FOLDER = tempfile.TemporaryDirectory(prefix="faults-")


# ---- arrays ----------------------------------------------------------------------------------------------------------


def _arrays(device: Any) -> State:
    values = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    if _on_host(device):
        base = values
    else:
        import tensorgraft.array_api as xp

        base = xp.asarray(values, device=device)
    return {"base": base}  # copies of views are none: they are taken at the call


@_scenario("arrays: a slice", _arrays, whole=True, once=True)
def _slice(s: State) -> None:
    s["base"][:, 1:5:2][1:3] = 2.0


@_scenario("arrays: in place", _arrays, whole=True)
def _in_place(s: State) -> None:
    turned = s["base"].T
    turned *= 0.5


@_scenario("arrays: a mask", _arrays, whole=True)
def _mask(s: State) -> None:
    s["base"][s["base"] > 0.5] = 0.25


@_scenario("arrays: integers", _arrays, whole=True, once=True)
def _integers(s: State) -> None:
    rows = s["_rows"] if "_rows" in s else np.array([0, 2])
    s["base"][rows] = 1.0


def _with_rows(device: Any) -> State:
    state = _arrays(device)
    if not _on_host(device):
        import tensorgraft.array_api as xp

        state["_rows"] = xp.asarray(np.array([0, 2]), device=device)
    return state


SCENARIOS[-1].build = _with_rows


def _jitted(device: Any, called: int = 0) -> State:
    state = _arrays(device)
    total = state["total"] = state["base"] * 0
    if not _on_host(device):
        base = state["base"]

        def run(x: Any) -> Any:
            total[...] = total * 0.5 + x
            base[1:] = base[1:] * 0.5
            return total + 1

        state["_run"] = tg.jit(run)
    state["x"] = state["base"] + 0
    for _ in range(called):
        _call(state)
    return state


def _call(s: State) -> None:
    if "_run" in s:
        s["_run"](s["x"])
        return
    s["total"][...] = s["total"] * 0.5 + s["x"]
    s["base"][1:] = s["base"][1:] * 0.5


SCENARIOS.append(Scenario("arrays: tg.jit, first call", _jitted, _call, whole=True, compiled=True, backends=TRACES))
SCENARIOS.append(Scenario("arrays: tg.jit, call", functools.partial(_jitted, called=12), _call, whole=True,
                          kept=True, compiled=True, backends=TRACES))  # fmt: skip


# ---- variables of TensorFlow -----------------------------------------------------------------------------------------


def _variables(device: Any) -> State:
    import tensorflow as tf

    state: State = {"v": tf.Variable([1.0, 2.0, 3.0]), "w": tf.Variable([[1.0], [2.0]]), "_x": tf.constant(0.5)}
    v, w = state["v"], state["w"]

    def run(x: Any) -> Any:
        v.assign(v * x + 1.0)
        w.assign_add(tf.reduce_sum(v) * tf.ones_like(w) * 0.125)
        return v + 1.0

    if not _on_host(device):
        onto = tg_name(device)
        state["_run"] = tg.graft(tf.function(run, autograph=False), onto=onto)
        state["_x"] = _number(onto)
    return state


def tg_name(device: Any) -> str:
    from tensorgraft.frontends.torch.core.devices import slot_at

    return str(slot_at(device.index).backend.name)


def _number(onto: str) -> Any:
    if onto == "jax":
        import jax.numpy as jnp

        return jnp.asarray(0.5, jnp.float32)
    if onto == "torch":
        import torch

        return torch.tensor(0.5)
    if onto == "tensorflow":
        import tensorflow as tf

        return tf.constant(0.5)
    return np.float32(0.5)


@_scenario("TensorFlow's variables", _variables, whole=True, kept=True)
def _assign(s: State) -> None:
    if "_run" in s:
        s["_run"](s["_x"])
        return
    import tensorflow as tf

    s["v"].assign(s["v"] * s["_x"] + 1.0)
    s["w"].assign_add(tf.reduce_sum(s["v"]) * tf.ones_like(s["w"]) * 0.125)


# ---- what is placed over several devices -----------------------------------------------------------------------------


@functools.cache
def _mesh() -> Any:
    return tg.parallel.mesh(2, "data", device=tg.device("jax"))


def _split(device: Any) -> State:
    state = scenarios._arrays(device)
    if not _on_host(device):
        state = {"base": tg.parallel.shard(state["base"], _mesh(), ("data",)), "other": state["other"]}
    base = state["base"]
    return {**state, "row": base[1], "columns": base[:, 1:5:2], "turned": base.t()}


def _split_model(device: Any, jitted: bool = False, called: int = 0) -> State:
    make = scenarios._jitted if jitted else scenarios._training
    state = make(lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9))(device)
    if not _on_host(device):
        tg.parallel.shard_(state["model"], _mesh(), tg.parallel.fully_sharded())
        state["x"], state["y"] = tg.parallel.shard_batch((state["x"], state["y"]), _mesh())
    for _ in range(called):
        scenarios._call(state)
    return state


PLACED = {"backends": ("jax",), "devices": 2}
for _name, _act in {"in place, broadcast": scenarios._in_place, "in place through a view": scenarios._through_a_view,
                    "in place, turned, reads itself": scenarios._turned}.items():  # fmt: skip
    SCENARIOS.append(Scenario(f"placed: {_name}", _split, _act, **PLACED))
SCENARIOS.append(Scenario("placed: backward", _split_model, scenarios._backward_twice, parts=True, **PLACED))
SCENARIOS.append(Scenario("placed: a step", _split_model, lambda s: s["optimizer"].step(), **PLACED))
for _name, _called in {"first call": 0, "call": 12}.items():
    SCENARIOS.append(Scenario(f"placed: tg.jit, SGD, momentum: {_name}",
                              functools.partial(_split_model, jitted=True, called=_called), scenarios._call, whole=True,
                              kept=bool(_called), compiled=True, **PLACED))  # fmt: skip


@_scenario("placed: elsewhere", _split_model, whole=True, **PLACED)
def _elsewhere(s: State) -> None:
    if not _on_host(s["x"].device):
        tg.parallel.shard_(s["model"], _mesh(), tg.parallel.data_parallel())


# ---- files -----------------------------------------------------------------------------------------------------------


class _Content:
    """What a file holds, read anew whenever it is looked at."""

    def __init__(self, path: str, read: Any) -> None:
        self.path, self.read = path, read

    def __deepcopy__(self, memo: Any) -> Any:
        folder = tempfile.mkdtemp(dir=_FOLDER.name)
        path = os.path.join(folder, os.path.basename(self.path))
        shutil.copy(self.path, path)
        return _Content(path, self.read)


def _checkpoint(device: Any) -> State:
    from tests.faults.scenarios import _mlp

    folder = tempfile.mkdtemp(dir=_FOLDER.name)
    path = os.path.join(folder, "weights")
    model = _mlp(device)
    tree = dict(model.named_parameters())
    tree_serialise_leaves(path, {n: np.zeros(tuple(p.shape), np.float32) for n, p in tree.items()})
    return {"model": model, "file": _Content(path, _read)}


def _read(path: str) -> Any:
    from safetensors.numpy import load_file

    return {**load_file(path), "files": sorted(os.listdir(os.path.dirname(path)))}


@_scenario("a checkpoint", _checkpoint, whole=True, once=True, backends=ALL)
def _save(s: State) -> None:
    tree_serialise_leaves(s["file"].path, dict(s["model"].named_parameters()))
