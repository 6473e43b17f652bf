"""Features, the rows of a table of private names, and a check that a framework has a name."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Feature:
    """A feature that needs private names: `modules` (without `tensorgraft.`) and their submodules, except those of
    other features.

    In `modules`, `package.*` means the modules of a package that itself can always be imported. `names` has owners and
    their names, `torch.Tensor: _is_view _nnz`. `~` before an owner: the names are not checked, because instances get
    the attributes when they are created, or only some versions have them and the code checks that. Names of a module
    that takes long to import are checked once it is imported; `imports`: they are checked at once, since the feature's
    modules import it, too.
    """

    name: str
    what: str  # a user loses without it
    modules: str
    names: str
    imports: bool = False

    def every_name(self) -> list[str]:
        rows, owner = [], ""
        for word in self.names.split():
            if word.endswith(":"):
                owner = word[:-1]
            else:
                rows.append(f"{owner}.{word}")
        return rows


@dataclass(frozen=True)
class Names:
    """The private names of one framework."""

    package: str
    title: str
    oldest: str  # the oldest supported version, as in `pyproject.toml`: with an older one every feature is off
    tested: tuple[str, ...]  # versions
    features: tuple[Feature, ...]

    def is_too_old(self, version: str) -> bool:
        return () < _release(version) < _release(self.oldest)


def _release(version: str) -> tuple[int, ...]:
    """Return (2, 10) for "2.10.0+cpu"; () for a text that is no version."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return () if numbers is None else (int(numbers[1]), int(numbers[2]))


def absent(name: str, *, importing: bool) -> bool:
    """Return True if a framework lacks a name. Names of a module that is not imported are checked only if `importing`;
    otherwise they count as present, as do those that are not checked (`~`)."""
    if name.startswith("~"):
        return False
    parts = name.split(".")
    owner: Any = sys.modules.get(parts[0])
    if owner is None:
        return False
    for n, part in enumerate(parts[1:], 2):
        members = vars(owner) if isinstance(owner, ModuleType) else {}
        if part in members:
            owner = members[part]
            continue
        full = ".".join(parts[:n])
        if isinstance(owner, ModuleType) and full not in sys.modules and _is_module(full):
            if not importing:
                return False
            importlib.import_module(full)
        if full in sys.modules:
            owner = sys.modules[full]
            continue
        shadowed = sys.modules.get(".".join(parts[: n - 1]))  # a module under the name of a function that it has
        values = [x for x in (_attribute(holder, part) for holder in (owner, shadowed)) if x is not _ABSENT]
        if not values:
            return True
        owner = values[0]
    return False


_ABSENT = object()


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute, or `_ABSENT`."""
    if not isinstance(owner, ModuleType) or "__getattr__" not in vars(owner):
        return getattr(owner, name, _ABSENT)
    # deprecated names warn where they are used, not here (this context makes Python forget which warnings it has shown)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(owner, name, _ABSENT)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
