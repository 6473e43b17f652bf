"""Imports run one way, frontends -> hub <- backends, and the hub imports no framework."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tensorgraft

ROOT = Path(tensorgraft.__file__).parent
# directory -> what nothing in it may import
FORBIDDEN = {
    "hub": ("tensorgraft.frontends", "tensorgraft.backends", "jax", "torch", "tensorflow", "scipy"),
    "backends": ("tensorgraft.frontends",),
    "precision": ("tensorgraft.frontends", "tensorgraft.backends", "jax", "torch", "tensorflow"),
}
FRAMEWORKS = {"jax", "torch", "tensorflow"}


def imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def below(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


@pytest.mark.parametrize("area", FORBIDDEN)
def test_imports_run_one_way(area: str) -> None:
    for file in (ROOT / area).rglob("*.py"):
        wrong = {name for name in imported(file) for bad in FORBIDDEN[area] if below(name, bad)}
        assert not wrong, f"{file.relative_to(ROOT)} imports {sorted(wrong)}"


def test_front_ends_name_no_backend() -> None:
    for file in (ROOT / "frontends").rglob("*.py"):
        wrong = {name for name in imported(file) if below(name, "tensorgraft.backends")}
        assert not wrong, f"{file.relative_to(ROOT)} imports {sorted(wrong)}"


def test_backends_import_their_own_framework_only() -> None:
    for package in (ROOT / "backends").iterdir():
        for file in package.rglob("*.py") if package.is_dir() else ():
            wrong = {n for n in imported(file) for other in FRAMEWORKS - {package.name} if below(n, other)}
            assert not wrong, f"{file.relative_to(ROOT)} imports {sorted(wrong)}"


@pytest.mark.parametrize("module", ["tensorgraft", "tensorgraft.hub.abstract", "tensorgraft.backends.numpy"])
def test_import_is_light(module: str) -> None:
    heavy = [*sorted(FRAMEWORKS), "scipy"]
    program = f"import sys, {module}; sys.exit(' '.join(m for m in {heavy} if m in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT.parent)
    assert done.returncode == 0, f"import {module} imports {done.stderr}"
