"""`tensorgraft doctor`: lists the installed frameworks, and the command that installs missing ones.

It reads the metadata of packages and imports no framework. `--devices` starts each backend.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from tensorgraft.frontends.torch_entry import native_build
from tensorgraft.hub import compile_cache, registry
from tensorgraft.importing import is_ours

_LIMIT = 120  # seconds that a backend has to start


@dataclass(frozen=True)
class FrontEnd:
    """A framework that a program may be written for."""

    name: str
    package: str  # the package that has to be installed
    use: str


FRONT_ENDS = (
    FrontEnd("PyTorch", "torch", 'tensorgraft run script.py; device="graft"; tg.jit; tg.graft(module, onto=...)'),
    FrontEnd("TensorFlow", "tensorflow", "tensorgraft run script.py; tg.graft(tf_function_or_model, onto=...)"),
    FrontEnd("JAX", "jax", "tg.graft(function, onto=...): Flax, Haiku, Equinox, ..."),
    FrontEnd("Array API", "numpy", "import tensorgraft.array_api as xp"),
)


def print_report(devices: bool = False) -> None:
    """Print a row for every backend and front end; a broken one is reported in its row."""
    console = Console()
    own_version, python = version("tensorgraft"), platform.python_version()
    console.print(f"tensorgraft {own_version}, Python {python}, {platform.platform()}", highlight=False)

    known = list(registry.known().values())
    processes = {info.name: _start_query(info) for info in known if devices and info.installed}
    table = Table("backend", "framework", *(["devices"] if devices else []), Column("to install", overflow="fold"))
    for info in known:
        state, command = _state(info.requires, info.installed, info.install_command)
        failure = info.installed and _problem(info)
        names = _devices_of(info, processes[info.name]) if info.name in processes else ""
        if failure and not devices:
            state = failure
        table.add_row(info.name, state, *([names] if devices else []), command)
    console.print(table)

    table = Table("front end", "framework", "how", Column("to install", overflow="fold"))
    for end in FRONT_ENDS:
        is_installed = importlib.util.find_spec(end.package) is not None
        state, command = _state(end.package, is_installed, f'pip install "tensorgraft[{end.package}]"')
        table.add_row(end.name, state, escape(end.use if is_installed else ""), command)
    console.print(table)
    if importlib.util.find_spec("torch") is not None:
        if why := _not_loaded():
            text = f"`import torch` does not load the device: {why}"
            console.print(text, highlight=False, markup=False, soft_wrap=True)
        console.print(f"native kernels: {native_build.state()}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"compiled programs: {cache_state()}", highlight=False, markup=False, soft_wrap=True)
    if not devices:
        console.print("devices: `tensorgraft doctor --devices` starts the backends", highlight=False, markup=False)


def _state(package: str, is_installed: bool, command: str) -> tuple[str, str]:
    """Return (the package and its version, the command that installs a suitable one)."""
    if not is_installed:
        return f"[dim]{escape(package)}[/dim]", escape(command)
    installed, least = version(package), _least_version(package)
    if installed and least and _parts(installed) < _parts(least):
        return f"[red]{escape(package)} {installed}[/red], needs {least}", escape(command)
    return f"{escape(package)} {installed}", ""


def _least_version(package: str) -> str:
    """Return the least version of a package that this one asks for; "" where it does not say."""
    try:
        requirements = importlib.metadata.requires("tensorgraft") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    matches = (re.match(rf"{re.escape(package)}>=([\d.]+)", requirement) for requirement in requirements)
    return next((match[1] for match in matches if match), "")


def _parts(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text.partition("+")[0])[:3]]


def _not_loaded() -> str:
    """Return why PyTorch does not load the front end when it is imported; "" where it does."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        return "TORCH_DEVICE_BACKEND_AUTOLOAD=0 (`tensorgraft.device` does)"
    points = importlib.metadata.entry_points(group="torch.backends")
    if not any(map(is_ours, points)):
        return "its entry point is not installed (`tensorgraft.device` does)"
    other_points = [point.name for point in points if not is_ours(point)]
    if other_points and os.environ.get("TENSORGRAFT_AUTOLOAD") != "1":
        return f"PyTorch's one device of an extension is left to {', '.join(other_points)} (`tensorgraft run` takes it)"
    return ""


def build_native() -> None:
    """Compile the native kernels of PyTorch's eager operators. Raises OSError where that fails."""
    if importlib.util.find_spec("torch") is None:
        raise OSError("the native kernels are those of PyTorch's operators, and PyTorch is not installed")
    with Console().status("compiling the native kernels (20 seconds)"):
        native_build.build()


def cache_state() -> str:
    """Return where compiled programs are kept from process to process, and how many there are."""
    base = compile_cache.root()
    if base is None:
        return "not kept (TENSORGRAFT_CACHE=0, or nowhere to keep them)"
    if not compile_cache.writable(base):
        return f"not kept: {base} cannot be written"
    files, size = compile_cache.contents(base)
    return f"{files:,} files, {size / 2**20:.1f} MiB of {compile_cache.LIMIT / 2**20:,.0f} MiB in {base}"


def version(package: str) -> str:
    """Return the version of an installed package, or "" where none is recorded."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _problem(info: registry.BackendInfo) -> str:
    """Return why a backend cannot work, as far as its metadata tell; "" otherwise."""
    top = info.entry.partition(":")[0].partition(".")[0]
    if importlib.util.find_spec(top) is None:
        return f"[red]does not work[/red]: ModuleNotFoundError: No module named {escape(repr(top))}"
    return ""


def _start_query(info: registry.BackendInfo) -> subprocess.Popen[str]:
    # JAX and TensorFlow tell of missing GPUs while they are imported: the table says what there is
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    command = [sys.executable, "-m", "tensorgraft.cli.devices", info.entry]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _devices_of(info: registry.BackendInfo, process: subprocess.Popen[str]) -> str:
    """Return the devices of an installed backend, one on a line; or why they cannot be told."""
    try:
        out, err = process.communicate(timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"[red]does not work[/red]: it has not started after {_LIMIT} s"
    if process.returncode:  # a broken installation may fail in any way, which the doctor is to report
        lines = err.strip().splitlines() or [f"exit code {process.returncode}"]
        return f"[red]does not work[/red]: {escape(lines[-1])}"
    names = json.loads(out.splitlines()[-1])
    return escape("\n".join(f"{info.name}{f':{i}' if i else ''}  {name}" for i, name in enumerate(names)))
