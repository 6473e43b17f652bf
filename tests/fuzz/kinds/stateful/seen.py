"""What is to be equal after each call: everything that a program's names lead to, as a flat table of plain data."""

from __future__ import annotations

import collections
import functools
import itertools
import random
import types
import warnings
from typing import Any

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

Tensor = torch.Tensor
# relative to the largest element, ... of numbers of one
CLOSE = {torch.float32: 2e-4, torch.float64: 1e-6, torch.bfloat16: 5e-2, torch.float16: 1e-2}
_MOST = 12  # levels
_FUNCTIONS = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    functools.partial,
    type(functools.lru_cache(len)),
)


class Table:
    """`rows`: an expression -> what is there. Objects and storages are numbered as they are met, so that two tables are
    equal where the same expressions are the same objects."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.rows: dict[str, Any] = {}
        self._objects: dict[int, str] = {}
        self._storages: dict[int, str] = {}
        self._held: list[Any] = []
        given = names["given"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.rows["settings"] = str(_settings(names["D"].type))
            self.rows["random numbers"] = str(hash((random.getstate(), np.random.get_state()[1].tobytes())))
            for name, value in sorted(names.items()):
                if name not in given and name not in ("given", "f", "bind") and not name.startswith("_"):
                    self._see(name, value, 0)

    def _see(self, name: str, value: Any, deep: int) -> None:
        if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.Size):
            self.rows[name] = (type(value).__name__, value)
            return
        if type(value) is frozenset and not any(isinstance(v, Tensor) for v in value):  # plain, as numbers are
            self.rows[name] = ("frozenset", str(sorted(value)))
            return
        if isinstance(value, RemovableHandle):  # its number is the process's
            return
        value = getattr(value, "_orig_mod", value)  # of a compiled module
        if isinstance(value, _FUNCTIONS) or type(value).__module__.startswith("tensorgraft.") or deep > _MOST:
            self.rows[name] = "function"
            return
        first = self._objects.setdefault(id(value), name)
        if first != name:
            self.rows[name] = f"is {first}"
            return
        self._held.append(value)
        if isinstance(value, Tensor):
            self._see_tensor(name, value, deep)
            return
        self.rows[name] = type(value).__name__
        for key, part in _parts(value):
            self._see(f"{name}{key}", part, deep + 1)

    def _see_tensor(self, name: str, t: Tensor, deep: int) -> None:
        significant = [i for i, n in enumerate(t.shape) if n > 1] if t.numel() > 1 else []
        try:
            leaf = t.is_leaf
        except RuntimeError:  # a view from `no_grad` that was written since
            self.rows[name] = {"kind": type(t).__name__, "shape": tuple(t.shape)}, t.detach().cpu().clone()
            return
        exact = {
            "kind": type(t).__name__,
            "dtype": t.dtype,
            "shape": tuple(t.shape),
            "strides": tuple([t.stride(i) for i in significant]),
            "memory of": self._storages.setdefault(t.untyped_storage()._cdata, name) if t.numel() else name,
            "requires_grad": t.requires_grad,
            "is_leaf": leaf,
            "inference": t.is_inference(),
        }
        drawn = name == "place.u"  # drawn on the device, which has other numbers
        self.rows[name] = exact, None if drawn else t.detach().cpu().resolve_conj().clone()
        if (leaf or t.retains_grad) and not name.endswith(".grad"):
            self._see(f"{name}.grad", t.grad, deep + 1)


def _settings(device: str) -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled(device),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    )


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, torch.optim.Optimizer):
        state = [value.state.get(p, {}) for group in value.param_groups for p in group["params"]]
        return [(".param_groups", value.param_groups), (".state", [dict(sorted(entries.items())) for entries in state])]
    if isinstance(value, torch.nn.Module):
        own = {k: v for k, v in vars(value).items() if not k.startswith("_") and k != "training"}
        parts = {**value._parameters, **value._buffers, **value._modules, **own, "training": value.training}
        return [(f".{k}", v) for k, v in parts.items()]
    if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
        return [(".last_epoch", value.last_epoch)]
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        parts += [(f"[{k!r}]", v) for k, v in value.items()] + [(".keys()", str(list(value)))]
    elif isinstance(value, tuple | list | collections.deque):
        parts += [(f"[{i}]", v) for i, v in enumerate(value)] + [(".len()", len(value))]
    elif isinstance(value, set):
        parts += [(".sorted()", str(sorted(value)))]
    elif isinstance(value, random.Random):
        return [(".getstate()", hash(value.getstate()))]
    elif isinstance(value, np.random.Generator):
        return [(".state", str(value.bit_generator.state))]
    elif isinstance(value, itertools.count):
        return [(".next", repr(value))]
    elif isinstance(value, np.ndarray):
        return [(".tolist()", str(value.tolist()))]
    slots = [k for k in getattr(type(value), "__slots__", ()) if hasattr(value, k)] if type(value).__module__ == __package__ + ".world" else []  # fmt: skip
    parts += [(f".{k}", getattr(value, k)) for k in slots]
    own = getattr(value, "__dict__", {})
    return parts + [(f".{k}", v) for k, v in own.items() if not k.startswith("__")]


Slack = dict[str, dict[str, float]]  # of a row of each table


def slack(expected: dict[str, Any], others: list[dict[str, Any]]) -> dict[str, float]:
    """Return how far rows are from what they are in other tables, four times that."""
    found: dict[str, float] = {}
    for name, want in expected.items():
        values = [v for rows in others if (v := _values(rows.get(name))) is not None]
        if (here := _values(want)) is not None:
            off = [(here - v).abs().nan_to_num(0.0).max() for v in values if v.shape == here.shape and v.numel()]
            found[name] = 4 * float(max(off, default=0.0))
    return found


def _values(row: Any) -> Tensor | None:
    if _is_tensor(row):
        return None if row[1] is None or row[1].is_complex() else row[1].double()
    return torch.tensor(row[1], dtype=torch.float64) if isinstance(row, tuple) and row[0] == "float" else None


def unequal(expected: dict[str, Any], found: dict[str, Any], slack: dict[str, float] | None = None) -> list[str]:
    """Return a line for each row that differs, of numbers by more than its slack."""
    lines, slack = [], slack or {}
    for name in [*expected, *(n for n in found if n not in expected)]:
        want, got = expected.get(name, "nothing"), found.get(name, "nothing")
        if _is_tensor(want) and _is_tensor(got):
            keys = [*want[0], *(key for key in got[0] if key not in want[0])]
            exact = [(key, want[0].get(key), got[0].get(key)) for key in keys]
            lines += [f"{name}: {key} {there} for {here}" for key, here, there in exact if here != there]
            if want[1] is None or got[1] is None:
                continue
            same = want[1].shape == got[1].shape and want[1].dtype == got[1].dtype
            if same and not _close(want[1], got[1], slack.get(name, 0.0)):
                lines.append(f"{name}: {_short(got[1])} for {_short(want[1])}")
        elif not _same(want, got, slack.get(name, 0.0)):
            lines.append(f"{name}: {_said(got)} for {_said(want)}")
    return lines


def _is_tensor(row: Any) -> bool:
    return isinstance(row, tuple) and isinstance(row[0], dict)


def _same(want: Any, got: Any, slack: float) -> bool:
    if isinstance(want, tuple) and isinstance(got, tuple) and not _is_tensor(want) and not _is_tensor(got):
        if want[0] == got[0] == "float":
            return (
                want[1] == got[1]
                or abs(want[1] - got[1]) <= max(1e-5 * abs(want[1]), slack)
                or want[1] != want[1] != got[1]
            )
        return bool(want == got)
    return type(want) is type(got) and not isinstance(want, tuple) and bool(want == got)


def _said(row: Any) -> str:
    if _is_tensor(row):
        return f"a tensor {row[0]['dtype']} {row[0]['shape']}"
    return repr(row[1]) if isinstance(row, tuple) else str(row)


def _close(want: Tensor, got: Tensor, slack: float) -> bool:
    if want.dtype not in CLOSE:
        return torch.equal(want, got)
    limit = CLOSE[want.dtype]
    want, got = want.double(), got.double()
    finite = want[want.isfinite()]
    scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    return torch.allclose(got, want, rtol=limit, atol=max(limit * scale, slack), equal_nan=True)


def _short(t: Tensor) -> str:
    return str([round(v, 5) if isinstance(v, float) else v for v in t.flatten()[:9].tolist()])
