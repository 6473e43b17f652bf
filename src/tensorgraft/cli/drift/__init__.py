"""`tensorgraft doctor --drift`: lists what is new, removed or changed in a framework since the tested version.

A snapshot (`tested.json.gz`) has the version of each framework and, for each kind of interface that tensorgraft uses,
its names, each with eight digits of a hash of its signature or source. `python -m tensorgraft.cli.drift` writes the
snapshot of the installed frameworks. Each framework is examined in a separate process (`python -m tensorgraft.cli.drift
torch`).
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from tensorgraft import files, private

SNAPSHOT = Path(__file__).with_name("tested.json.gz")
FRAMEWORKS = ("torch", "jax", "tensorflow", "numpy")
_LIMIT = 300  # seconds that a framework has
_SHOWN = 6

Kinds = dict[str, dict[str, str]]  # kind -> name -> hash


@dataclass(frozen=True)
class Drift:
    """The differences in one kind of things."""

    kind: str
    new: list[str]
    missing: list[str]
    changed: list[str]

    def __bool__(self) -> bool:
        return bool(self.new or self.missing or self.changed)


def hashed(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def differences(tested: Mapping[str, Mapping[str, str]], installed: Mapping[str, Mapping[str, str]]) -> list[Drift]:
    """Return the drift of each kind; kinds that only one of the two knows are of another tensorgraft, and left out."""
    return [
        Drift(
            kind,
            sorted(installed[kind].keys() - tested[kind].keys()),
            sorted(tested[kind].keys() - installed[kind].keys()),
            sorted(
                name for name, definition in installed[kind].items() if tested[kind].get(name, definition) != definition
            ),
        )
        for kind in tested
        if kind in installed
    ]


def read_snapshot(path: Path = SNAPSHOT) -> dict[str, Any]:
    """Return the snapshot: {framework: {"version": ..., "kinds": {kind: {name: hash}}}}."""
    return json.loads(gzip.decompress(path.read_bytes()))


def write_snapshot(path: Path = SNAPSHOT) -> dict[str, Any]:
    """Write the snapshot of the frameworks that are installed; entries of others stay. The same frameworks give the
    same bytes."""
    snapshot = read_snapshot(path) if path.exists() else {}
    for name in FRAMEWORKS:
        if importlib.util.find_spec(name) is not None:
            snapshot[name] = inventory(name)
            snapshot[name].pop("missing", None)
    files.write(path, gzip.compress(json.dumps(snapshot, sort_keys=True, separators=(",", ":")).encode(), mtime=0))
    return snapshot


def inventory(framework: str) -> dict[str, Any]:
    """Return the version, interfaces and missing private names of a framework, read in a separate process. Raises
    RuntimeError if that fails."""
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_PLATFORMS": "cpu",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }
    command = [sys.executable, "-W", "ignore", "-m", __name__, framework]
    completed = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_LIMIT, check=False)
    if completed.returncode:
        raise RuntimeError((completed.stderr.strip().splitlines() or ["the process ended without any output"])[-1])
    return json.loads(completed.stdout.splitlines()[-1])


def collected(framework: str) -> dict[str, Any]:
    """Return the same as `inventory`, collected in this process."""
    module = importlib.import_module(f"{__name__}.{framework}")
    version = importlib.import_module(framework).__version__
    missing = [
        name
        for names in private.TABLES
        if names.package == framework
        for feature in names.features
        for name in feature.every_name()
        if private.absent(name, importing=True)
    ]
    return {"version": version, "kinds": module.kinds(), "missing": sorted(set(missing))}


def print_drift(path: Path = SNAPSHOT) -> int:
    """Print a table; returns 1 if something differs from the tested version, or cannot be compared."""
    console, drifted = Console(), False
    tested = read_snapshot(path)
    table = Table(
        "framework", "tested", "here", "kind", *(Column(n, justify="right") for n in ("new", "gone", "changed"))
    )
    details: list[str] = []
    for name in FRAMEWORKS:
        if importlib.util.find_spec(name) is None or name not in tested:
            continue
        try:
            installed = inventory(name)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            drifted = True
            table.add_row(name, tested[name]["version"], "[red]cannot be told[/red]", escape(str(error)))
            continue
        versions = [name, tested[name]["version"], installed["version"]]
        rows = differences(tested[name]["kinds"], installed["kinds"])
        if installed["missing"]:
            rows.append(Drift("private names", [], installed["missing"], []))
        for row in rows:
            counts = [f"[red]{len(x)}[/red]" if x else "0" for x in (row.new, row.missing, row.changed)]
            table.add_row(*versions, row.kind, *counts)
            versions = ["", "", ""]
            for change, names in (("new", row.new), ("gone", row.missing), ("changed", row.changed)):
                if names:
                    suffix = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                    details.append(f"{name}, {row.kind}, {change}: {', '.join(names[:_SHOWN])}{suffix}")
            drifted |= bool(row)
    console.print(table)
    for line in details:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not drifted:
        console.print("no drift: what is installed has what was tested", highlight=False)
    return int(drifted)
