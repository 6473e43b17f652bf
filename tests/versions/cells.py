"""What is run with which releases: a cell is a Python and the versions that are installed in it."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FRAMEWORKS = ("torch", "jax", "tensorflow", "numpy")
AGES = ("newest", "previous", "oldest")
OLD_PYTHON = "3.11"  # on which releases of frameworks are tried: there are wheels of all of them


@dataclass(frozen=True)
class Cell:
    name: str
    python: str
    pins: dict[str, str]  # distribution -> version


def cells() -> Iterator[Cell]:
    """Each Python with the newest releases; the other releases of each framework, one at a time and all together."""
    releases = tomllib.loads((Path(__file__).parent / "releases.toml").read_text())
    newest = {name: releases[name]["newest"] for name in FRAMEWORKS}
    for python in releases["python"]:
        yield Cell(f"python-{python}", python, newest | releases["on"].get(python, {}))
    tested = {name: constraints()[name] for name in FRAMEWORKS}
    for name in FRAMEWORKS:
        for age in AGES:
            release = releases[name].get(age)
            if release not in (None, tested[name]) and tested | {name: release} != newest:
                yield Cell(f"{name}-{age}", OLD_PYTHON, tested | {name: release})
    previous = {name: releases[name].get("previous", releases[name]["oldest"]) for name in FRAMEWORKS}
    yield Cell("previous", OLD_PYTHON, previous)
    yield Cell("oldest", OLD_PYTHON, lower_bounds())


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
