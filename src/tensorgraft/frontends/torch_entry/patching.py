"""Changes to PyTorch for the whole process: how they are applied and undone. (`patches` has the table.)"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from tensorgraft import private
from tensorgraft.errors import MissingNameError
from tensorgraft.frontends.torch_entry import loading
from tensorgraft.frontends.torch_entry.late_loading import loading_first

# at `import torch`, the first use of the device, the first `torch.compile`, when `torch.distributed.checkpoint` is
# imported; while another index than 0 is current
At = Literal["import", "use", "compile", "checkpoint", "index"]


@dataclass(frozen=True)
class Patch:
    """A change that is made to PyTorch for the whole process."""

    name: str  # the name of the changed attribute
    by: str = field(repr=False)  # module and name of ours
    why: str
    at: At = "use"
    since: str = "2.9"  # the first version of PyTorch that needs it, of those that tensorgraft runs on
    until: str = ""  # the change of PyTorch that would make it unnecessary
    also: tuple[str, ...] = field(default=(), repr=False)  # other names of the same
    # loads the front end when it is called, and is undone at the first use of the device
    waits: bool = field(default=False, repr=False)
    registers: bool = field(default=False, repr=False)  # `by` is called, and nothing replaced
    adds: bool = field(default=False, repr=False)  # PyTorch has no such name

    @property
    def applied(self) -> bool:
        """Return True if the change is in force."""
        return self in (_waiting if self.waits else _applied)


_MISSING: Any = object()
Change = tuple[Any, str, Any, Any]  # (owner, attribute, what the owner itself had, ours)

_applied: dict[Patch, list[Change]] = {}  # changes in force
_waiting: dict[Patch, list[Change]] = {}  # changes that wait for the first use
_gone: set[Patch] = set()  # changes that have waited and were undone


def apply(rows: Iterable[Patch]) -> None:
    """Make the changes that are not made yet, in order."""
    replaced: dict[int, tuple[Any, Any]] = {}  # functions of modules, which programs may have imported by name
    for row in rows:
        if row.applied:
            continue
        if private.why_off(_module_of(row)):
            continue  # this version of PyTorch lacks a name that it needs, which has been said
        try:
            replacement = _replacement(row)
        except MissingNameError:  # a name that its module imports is missing, which was reported
            continue
        if row.registers:
            replacement()
            _applied[row] = []
            continue
        owner, name = located(row.name)
        original = getattr(owner, name, _MISSING)
        if original is _MISSING and not row.adds:
            continue  # this version of PyTorch has none
        changes = _make(row, replacement, owner, name, original)
        if row.waits:
            _waiting[row] = changes
            continue
        _applied[row] = changes
        if isinstance(owner, ModuleType) and not name.startswith("_") and row.at != "index":
            replaced[id(original)] = original, changes[0][3]
    if replaced:
        _exchange(replaced)


def undo(rows: Sequence[Patch]) -> None:
    """Undo changes, except those that other code has wrapped since."""
    for row in reversed(rows):
        for change in _applied.pop(row, []):
            _put_back(*change)


def step_aside() -> None:
    """Undo the changes that waited for the front end, which replaces them."""
    while _waiting:
        row, changes = _waiting.popitem()
        if sum(_put_back(*change) for change in changes) == len(changes):
            _gone.add(row)


def _replacement(row: Patch) -> Any:
    """Return the function, class or table that a row names."""
    return getattr(importlib.import_module(_module_of(row)), row.by.rpartition(".")[2])


def _module_of(row: Patch) -> str:
    """Return the module that a row names."""
    module = row.by.rpartition(".")[0]
    return f"{__package__}.{module}" if row.at == "import" else loading.module(module)


def _make(row: Patch, replacement: Any, owner: Any, name: str, original: Any) -> list[Change]:
    if row.waits:
        value = loading_first(original, replacement, lambda: getattr(owner, name) if row in _gone else original)
    else:
        factory = replacement[name] if isinstance(replacement, dict) else replacement
        value = factory if isinstance(factory, type) else factory(original)
    changes = []
    for target, attribute in [(owner, name), *map(located, row.also)]:
        if getattr(target, attribute, None) is original or target is owner:
            changes.append((target, attribute, vars(target).get(attribute, _MISSING), value))
            setattr(target, attribute, value)
            allow_for_uninitialized(original, value)
    return changes


def allow_for_uninitialized(original: Any, replacement: Any) -> None:
    """Allow `lazy_module.to(device)`: PyTorch lists the methods that parameters without a shape may have, and looks the
    device's method up by name."""
    allowed: list[Any] = UninitializedTensorMixin._allowed_methods
    if callable(replacement) and original in allowed and replacement not in allowed:
        allowed.append(replacement)


def _put_back(owner: Any, name: str, old_value: Any, replacement: Any) -> bool:
    if vars(owner).get(name) is not replacement:
        return False
    if old_value is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, old_value)
    return True


def located(name: str) -> tuple[Any, str]:
    """Return (the object that has the attribute of a row, the attribute's name)."""
    *parts, attribute = name.split(".")
    n = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in sys.modules), 1)
    owner: Any = importlib.import_module(".".join(parts[:n]))
    for i, part in enumerate(parts[n:], n):
        owner = getattr(owner, part) if hasattr(owner, part) else importlib.import_module(".".join(parts[: i + 1]))
    return owner, attribute


def _exchange(replaced: dict[int, tuple[Any, Any]]) -> None:
    """Put ours where programs have imported PyTorch's by name (`from torch import cond`)."""
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] in ("torch", "tensorgraft") or not isinstance(module, ModuleType):
            continue
        for key, value in [*vars(module).items()]:
            if id(value) in replaced and replaced[id(value)][0] is value:
                setattr(module, key, replaced[id(value)][1])
