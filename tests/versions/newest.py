"""The newest releases of frameworks that the index has for each Python, and what an empty environment gets."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.versions import environment
from tests.versions.cells import FRAMEWORKS, NEWEST, releases


def ask(wheel: Path) -> list[str]:
    """Ask the index for the newest releases, and keep them. Returns a sentence for each that
    `pip install "tensorgraft[jax,torch]"` does not give on its Python."""
    found, held_back = {}, []
    for python in releases()["python"]:
        found[python] = _resolved(python, FRAMEWORKS, "--no-deps")
        given = _resolved(python, (f"tensorgraft[jax,torch] @ {wheel.as_uri()}",))
        held_back += [
            f"Python {python}: the newest {name} is {version}, an empty environment gets {given[name]}"
            for name, version in found[python].items()
            if given.get(name, version) != version
        ]
    NEWEST.write_text(json.dumps(found, indent=1) + "\n")
    return held_back


def _resolved(python: str, requirements: tuple[str, ...], *options: str) -> dict[str, str]:
    """Return the version of each distribution that is installed for requirements."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requirements.in"
        file.write_text("\n".join(requirements))
        shown = ("--python-version", python, "--no-header", "--no-annotate", "--refresh", *options)
        said = environment.uv("pip", "compile", *shown, str(file))
    return dict(line.split("==") for line in said.splitlines() if "==" in line)
