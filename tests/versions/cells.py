"""What is run with which releases: a cell is a Python and the versions that are installed in it."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FRAMEWORKS = ("torch", "jax", "tensorflow", "numpy")
OLD_PYTHON = "3.11"  # on which releases of frameworks are tried: there are wheels of all of them
NO_PINS = "3.12"  # where an empty environment is tried
NEWEST = Path(__file__).parent / "newest.json"


@dataclass(frozen=True)
class Cell:
    """A Python, the versions that are pinned in it (distribution -> version), and the extras of ours that it has."""

    name: str
    python: str
    pins: dict[str, str]
    extras: tuple[str, ...] = FRAMEWORKS


def cells() -> Iterator[Cell]:
    """Each Python with the newest releases; the other releases of each framework, one at a time and all together; what
    an empty environment gets; and what certain machines have."""
    known, newest = releases(), json.loads(NEWEST.read_text())
    for python in known["python"]:
        yield Cell(f"python-{python}", python, newest[python])
    yield Cell("no-pins", NO_PINS, {}, ("jax", "torch"))
    tested = {name: constraints()[name] for name in FRAMEWORKS}
    for name in FRAMEWORKS:
        for age, release in (("newest", newest[OLD_PYTHON][name]), *known[name].items()):
            if release != tested[name] and tested | {name: release} != newest[OLD_PYTHON]:
                yield Cell(f"{name}-{age}", OLD_PYTHON, tested | {name: release})
    previous = {name: known[name].get("previous", known[name]["oldest"]) for name in FRAMEWORKS}
    yield Cell("previous", OLD_PYTHON, previous)
    yield Cell("oldest", OLD_PYTHON, lower_bounds())
    for name, machine in known["machines"].items():
        pins = {framework: machine[framework] for framework in FRAMEWORKS if framework in machine}
        yield Cell(name, machine["python"], pins, (*pins,))


@functools.cache
def releases() -> dict[str, Any]:
    """Return what releases.toml says."""
    return tomllib.loads((Path(__file__).parent / "releases.toml").read_text())


@functools.cache
def constraints() -> dict[str, str]:
    """What the whole suite runs with."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


@functools.cache
def lower_bounds() -> dict[str, str]:
    """The least version of everything that pyproject.toml asks for in a dependency, or an extra of one framework."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(one for name in FRAMEWORKS for one in extras[name])]
    return {match[1]: match[2] for one in wanted if (match := re.fullmatch(r"([\w-]+)>=([\d.]+)", one))}
