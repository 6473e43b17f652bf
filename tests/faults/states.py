"""What a state of a program is, seen from outside: values, shapes, strides, versions, gradients, optimizers."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode


def snapshot(state: Any) -> dict[str, Any]:
    """The tensors, arrays, variables and numbers of a state, by their paths."""
    seen: dict[str, Any] = {}
    _add(seen, "", state)
    return seen


def _add(seen: dict[str, Any], path: str, x: Any) -> None:
    tf = sys.modules.get("tensorflow")
    if isinstance(x, torch.Tensor):
        quantised = x.detach()
        values = quantised.to("cpu") if x.device.type != "cpu" else quantised
        from tensorgraft.quantization import is_quantized

        seen[path] = (values.dequantize() if is_quantized(values) else values).clone().numpy()
        seen[f"{path}:looks"] = (tuple(x.shape), x.stride(), x.storage_offset(), x.requires_grad)
        if x.is_leaf:
            seen[f"{path}:grad"] = x.grad is None
            if x.grad is not None:
                _add(seen, f"{path}.grad", x.grad)
    elif isinstance(x, torch.nn.Module):
        _add(seen, path, dict([*x.named_parameters(), *x.named_buffers()]))
    elif isinstance(x, torch.optim.Optimizer):
        params = [p for group in x.param_groups for p in group["params"]]
        _add(seen, path, [dict(x.state.get(p, {})) for p in params])
        _add(seen, f"{path}.groups", [{k: v for k, v in g.items() if k != "params"} for g in x.param_groups])
    elif isinstance(x, torch.optim.lr_scheduler.LRScheduler):
        seen[f"{path}.epoch"] = x.last_epoch
    elif isinstance(x, dict):
        for name, value in x.items():
            if not str(name).startswith("_"):  # those are not compared
                _add(seen, f"{path}.{name}", value)
    elif isinstance(x, list | tuple):
        for i, value in enumerate(x):
            _add(seen, f"{path}.{i}", value)
    elif isinstance(x, np.ndarray):
        seen[path] = x.copy()
    elif tf is not None and isinstance(x, tf.Variable):
        seen[path] = x.numpy().copy()
    elif type(x).__module__.startswith("tensorgraft") and hasattr(x, "__array__"):
        seen[path] = np.array(x)
    elif hasattr(x, "read") and hasattr(x, "path"):  # a file
        _add(seen, f"{path}:content", x.read(x.path))
    elif not callable(x):
        seen[path] = x


def copied(state: Any) -> Any:
    """A state of its own, with gradients, which PyTorch leaves out."""
    new = copy.deepcopy(state)
    for (_, a), (_, b) in zip(tensors_in("", state), tensors_in("", new), strict=True):
        if a.is_leaf and a.grad is not None:
            b.grad = a.grad.detach().clone()
    for x in new.values() if isinstance(new, dict) else ():
        if isinstance(x, torch.optim.Optimizer):
            x.step = _stepping(x)  # a schedule has put its own there, which is still that of the optimizer before
    return new


def _stepping(optimizer: torch.optim.Optimizer) -> Any:
    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer._opt_called = True  # type: ignore[attr-defined]
        return type(optimizer).step(optimizer, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step


def tensors_in(path: str, x: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """With the paths that `snapshot` gives them; not those of optimizers."""
    if isinstance(x, torch.Tensor):
        yield path, x
    elif isinstance(x, torch.nn.Module):
        yield from tensors_in(path, dict((*x.named_parameters(), *x.named_buffers())))
    elif isinstance(x, dict):
        for name, value in x.items():
            yield from tensors_in(f"{path}.{name}", value)
    elif isinstance(x, list | tuple):
        for i, value in enumerate(x):
            yield from tensors_in(f"{path}.{i}", value)


def difference(a: dict[str, Any], b: dict[str, Any]) -> str | None:
    """Where two snapshots differ beyond rounding; None: nowhere."""
    if a.keys() != b.keys():
        return f"{sorted(a.keys() ^ b.keys())[:4]} are in one only"
    for path, x in a.items():
        y = b[path]
        if isinstance(x, np.ndarray) != isinstance(y, np.ndarray):
            return f"{path}: {x} and {y}"
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
            if x.dtype != y.dtype or x.shape != y.shape:
                return f"{path}: {x.dtype}{x.shape} and {y.dtype}{y.shape}"
            if not np.allclose(x, y, rtol=2e-4, atol=2e-5, equal_nan=True):
                return f"{path}: {x.ravel()[:4]} and {y.ravel()[:4]}"
        elif isinstance(x, float) and isinstance(y, float):
            if not np.isclose(x, y):
                return f"{path}: {x} and {y}"
        elif x != y:
            return f"{path}: {x} and {y}"
    return None


class Steps(TorchDispatchMode):
    """The states between the operators of a program of CPU PyTorch: how it may be left by an exception."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.seen: list[tuple[dict[str, Any], Any]] = []

    def note(self) -> None:
        new = snapshot(self.state)
        if not self.seen or difference(self.seen[-1][0], new) is not None:
            self.seen.append((new, copied(self.state)))

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.note()
        out = op(*args, **(kwargs or {}))
        self.note()
        return out
