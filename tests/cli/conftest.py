"""Run the command in a process of its own, as a user does."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tensorgraft.cli.app import app

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def script(tmp_path):
    """Write a script; returns its path."""

    def write(text, name="script.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def python(tmp_path):
    """`python *args` in a fresh folder, this checkout importable, warnings shown as in a user's shell."""

    def call(*args, **environment):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TENSORGRAFT", "PYTHONWARNINGS"))}
        path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
        env = {**kept, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
        env |= {"TENSORGRAFT_CACHE": "0", **environment}
        command = [sys.executable, *map(str, args)]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)

    return call


@pytest.fixture
def tensorgraft(python):
    return lambda *args, **environment: python("-m", "tensorgraft", *args, **environment)


@pytest.fixture
def tensorgraft_here(tmp_path, monkeypatch):
    """The command in this process, where frameworks are imported already: for wrong usage, which runs no program."""
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(app, list(map(str, args)))
