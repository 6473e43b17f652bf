"""Entries of a plan: the one that a name has, and its meaning for an array."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorgraft.hub.placement import Mesh, Placement
from tensorgraft.parallel.meshes import Spec, placement_of
from tensorgraft.parallel.plans import Output, Plan, Rule


def specs_by_name(names: Sequence[str], plan: Plan, modules: Sequence[str] = ()) -> Callable[[str], Any]:
    """Return a function from a name to its entry in a plan, or None. `modules`: names of modules, which may have
    entries for their outputs.

    Raises ValueError for a pattern that matches none, TypeError for a plan that is no mapping."""
    if not isinstance(plan, Mapping):
        raise TypeError(f"shard_: expected a plan that maps patterns of names to specs, got {plan!r}")
    for pattern, entry in plan.items():
        candidates = modules if isinstance(entry, Output) else names
        if not fnmatch.filter(candidates, pattern):
            listed = ", ".join(map(repr, list(candidates)[:6]))
            kind = "submodule" if isinstance(entry, Output) else "parameter"
            raise ValueError(
                f"shard_: the pattern {pattern!r} of plan matches no {kind}; the first ones are {listed or 'none'}, ..."
            )

    def entry_of(name: str) -> Any:
        fitting = (e for p, e in plan.items() if fnmatch.fnmatchcase(name, p) and not isinstance(e, Output))
        return next(fitting, None)

    return entry_of


def resolved(entry: Spec | Rule, name: str, shape: tuple[int, ...], mesh: Mesh) -> Placement:
    """Return the placement that an entry of a plan means for an array."""
    spec = entry(name, shape, mesh) if callable(entry) else entry
    return placement_of(() if spec is None else spec, mesh, shape, f"shard_: {name}")
