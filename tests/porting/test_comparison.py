"""Gradients of both programs, compared through the steps of a mapping."""

import numpy as np
import torch
from torch import nn

import tensorgraft as tg
from tensorgraft.porting import reasons
from tensorgraft.porting.comparison import compared_gradients
from tensorgraft.porting.expressions import Concatenation, Constant, Negative, Sum, View

RNG = np.random.default_rng(0)


def whole(name, shape, order=None):
    order = order or tuple(range(len(shape)))
    return View(name, shape, shape, tuple((0, n, 1) for n in shape), order, (), tuple(shape[a] for a in order))


def test_steps_that_add_repeat_and_turn():
    a, b, w = whole("a", (3,)), whole("b", (3,)), whole("w", (2, 3), (1, 0))
    expressions = {
        "bias": Sum((a, b, Constant(1.0, (3,)))),
        "kernel": w,
        "tied": whole("w", (2, 3)),
        "both": Concatenation((a, Negative(b)), 0, (6,)),
    }
    target = {n: RNG.standard_normal(e.shape) for n, e in expressions.items()}
    source = {
        "a": target["bias"] + target["both"][:3],
        "b": target["bias"] - target["both"][3:],
        "w": target["kernel"].T + target["tied"],
    }
    assert compared_gradients(expressions, source, target).difference < 1e-12
    source["b"] = source["b"] + 0.1
    found = compared_gradients(expressions, source, target)
    assert not found.ok and found.detail == "b"


def test_differences_that_are_not_searched(monkeypatch):
    monkeypatch.setattr(reasons, "MOST_UNEXPLAINED", 0)
    a, b = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    b[0].load_state_dict(a[0].state_dict())
    b[1].load_state_dict(a[2].state_dict())
    report = tg.diff(a, b, torch.from_numpy(RNG.standard_normal((3, 4)).astype("f")))
    assert not report.ok and "not searched" in str(report)
    monkeypatch.undo()
    found = tg.diff(a, b, torch.from_numpy(RNG.standard_normal((3, 4)).astype("f"))).first_difference
    assert found is not None and found.text == "tanh there alone" and found.reason == "operation"
