"""What is to be equal after a program: of each tensor its values and all that PyTorch says about it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.conformance.compare import TOLERANCES, plain
from tests.fuzz.program import Outcome, Program

import torch

Tensor = torch.Tensor


@dataclass
class Seen:
    """A tensor at the end: what is equal exactly, by name, and its values on the CPU."""

    exact: dict[str, Any]
    values: Tensor
    name: str = ""


def leaves(name: str, value: Any, deep: int = 0) -> Iterator[tuple[str, Tensor]]:
    """(expression, tensor) of a tensor, and of those in a tuple or list."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, tuple | list) and deep < 2:
        for i, part in enumerate(value):
            yield from leaves(f"{name}[{i}]", part, deep + 1)


def tensors(names: dict[str, Any]) -> dict[str, Tensor]:
    """Those of a program's own variables, with at most a thousand elements."""
    own = [(n, v) for n, v in names.items() if n[0] == "v" and n[1:].isdigit()]
    return {n: t for name, value in own for n, t in leaves(name, value) if t.numel() < 1000 and t.ndim < 7 and valid(t)}


def valid(t: Tensor) -> bool:
    """PyTorch asks for the history of one of several views that were written in place, and refuses it; an operator that
    is refused (`resize_`, `as_strided_`) may have left sizes below zero."""
    try:
        return t.is_leaf is not None and min(t.shape, default=0) >= 0
    except RuntimeError:
        return False


def follow(names: dict[str, Any]) -> None:
    """Count the statements that raise a tensor's version. That it is another one is what autograd sees: by how much, and
    at which one a tensor begins, is how often an operator writes what it makes."""
    counted = names.setdefault("_versions", {})
    for name, value in list(names.items()):
        if name[0] == "v" and name[1:].isdigit():
            for said, t in leaves(name, value):
                if not valid(t):
                    continue
                grad = t.grad if t.is_leaf or t.retains_grad else None
                for key, held in ((said, t), (f"{said}.grad", grad)):
                    if held is None or held.is_inference():
                        continue
                    which, version, count = counted.get(key, (None, 0, 0))
                    again = which is not None and which() is held
                    count = count + (version != held._version) if again else 0
                    counted[key] = weakref.ref(held), held._version, count


def observe(names: dict[str, Any]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    storages: dict[int, str] = {}
    for name, value in list(names.items()):
        if name[0] == "v" and name[1:].isdigit():
            if value is None:
                seen[name] = None
            for said, t in leaves(name, value):
                if not valid(t):
                    seen[said] = Seen({"valid": False}, torch.zeros(0))
                    continue
                seen[said] = _counted(_seen(said, t, storages), names)
                if (t.is_leaf or t.retains_grad) and t.requires_grad:
                    grad = None if t.grad is None else _counted(_seen(f"{said}.grad", t.grad, storages), names)
                    seen[f"{said}.grad"] = grad
        elif isinstance(value, torch.nn.Module):
            for key, p in [*value.named_parameters(), *value.named_buffers()]:
                seen[f"{name}.{key}"] = _written(_seen(f"{name}.{key}", p, storages))
                grad = None if p.grad is None else _written(_seen(f"{name}.{key}.grad", p.grad, storages))
                seen[f"{name}.{key}.grad"] = grad
        elif isinstance(value, torch.optim.Optimizer):
            for i, state in enumerate(value.state.values()):
                for key, part in state.items():
                    if isinstance(part, Tensor):
                        seen[f"{name}.{i}.{key}"] = _written(_seen(f"{name}.{i}.{key}", part, storages))
    return seen


def _counted(seen: Seen, names: dict[str, Any]) -> Seen:
    if seen.exact["version"] > 0:
        seen.exact["version"] = names.get("_versions", {}).get(seen.name, (None, 0, 0))[2]
    return seen


def _written(seen: Seen) -> Seen:
    """Optimizers step on lists on the device, singly on the CPU: how often they write differs."""
    seen.exact["version"] = 0
    return seen


def _seen(name: str, t: Tensor, storages: dict[int, str]) -> Seen:
    significant = [i for i, n in enumerate(t.shape) if n > 1] if t.numel() > 1 else []
    exact = {
        "dtype": t.dtype,
        "shape": tuple(t.shape),
        "strides": tuple([t.stride(i) for i in significant]),
        "offset": t.storage_offset() if t.numel() else 0,
        "memory shared with": storages.setdefault(t.untyped_storage()._cdata, name) if t.numel() else name,
        "requires_grad": t.requires_grad,
        "is_leaf": t.is_leaf,
        "inference": t.is_inference(),
        "version": -1 if t.is_inference() else t._version,
        "conj": t.is_conj(),
        "neg": t.is_neg(),
    }
    return Seen(exact, plain(t).clone(), name)


def differences(expected: Outcome, found: Outcome, program: Program) -> list[str]:
    for i in sorted({*expected.raised, *found.raised}):
        want, got = expected.raised.get(i), found.raised.get(i)
        if want != got:  # what comes later follows from it
            return [f"{program.statements[i]}: {got or 'nothing'} raised, the CPU: {want or 'nothing'}"]
    return [line for _, line in unequal(expected.observed, found.observed)]


def unequal(expected: dict[str, Any], found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(name, line) of each thing that differs."""
    for name in expected.keys() | found.keys():
        want, got = expected.get(name), found.get(name)
        if want is None or got is None:
            if want is not got:
                yield (
                    name,
                    f"{name}: {'a tensor' if got is not None else 'none'}, the CPU: {'a tensor' if want else 'none'}",
                )
            continue
        lines = [
            f"{name}: {key} {got.exact.get(key)}, the CPU: {value}"
            for key, value in want.exact.items()
            if got.exact.get(key) != value
        ]
        yield from ((name, line) for line in lines)
        if not any(f" {of} " in line for line in lines for of in ("dtype", "shape", "valid")) and not close(
            got.values, want.values
        ):
            yield name, f"{name}: values {_short(got.values)}, the CPU: {_short(want.values)}"


def close(got: Tensor, want: Tensor) -> bool:
    if torch.equal(got, want):
        return True
    rtol, atol = TOLERANCES.get(want.dtype, (0.0, 0.0))
    return torch.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True)


def _short(t: Tensor) -> str:
    return str(t.flatten()[:24].tolist()) + ("..." if t.numel() > 24 else "")
