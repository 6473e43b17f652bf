"""`tensorgraft doctor`: what is installed here, and the command that installs the rest."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from tensorgraft.hub import compile_cache, registry

# What a front end needs: its framework, whose presence says that it can be used.
FRONT_ENDS = {"torch": "torch"}


def print_report() -> None:
    """Print what is known of every backend and front end; a broken one is a row that says so."""
    # JAX and TensorFlow tell of missing GPUs while they are imported: the table says what there is.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    console = Console()
    own, python = version("tensorgraft"), platform.python_version()
    console.print(f"tensorgraft {own}, Python {python}, {platform.platform()}", highlight=False)

    table = Table("backend", "framework", "devices", Column("to install", overflow="fold"))
    for info in registry.known().values():
        table.add_row(
            info.name,
            f"{info.requires} {version(info.requires)}" if info.installed else f"[dim]{info.requires}[/dim]",
            devices(info) if info.installed else "",
            "" if info.installed else escape(info.install_command),
        )
    console.print(table)

    table = Table("front end", "framework", Column("to install", overflow="fold"))
    for name, package in FRONT_ENDS.items():
        here = importlib.util.find_spec(package) is not None
        framework = f"{package} {version(package)}" if here else f"[dim]{package}[/dim]"
        table.add_row(name, framework, "" if here else escape(f'pip install "tensorgraft[{name}]"'))
    console.print(table)
    console.print(f"compiled programs: {kept()}", highlight=False, markup=False, soft_wrap=True)


def kept() -> str:
    """Where compiled programs are kept from process to process, and how many there are."""
    base = compile_cache.root()
    if base is None:
        return "not kept (TENSORGRAFT_CACHE=0, or nowhere to keep them)"
    if not compile_cache.writable(base):
        return f"not kept: {base} cannot be written"
    files, size = compile_cache.contents(base)
    return f"{files:,} files, {size / 2**20:.1f} MiB of {compile_cache.LIMIT / 2**20:,.0f} MiB in {base}"


def version(package: str) -> str:
    """The version of an installed package, or "" where none is recorded."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def devices(info: registry.BackendInfo) -> str:
    """The devices of an installed backend, one on a line; or why they cannot be told."""
    try:
        count = registry.backend_class(info.name).device_count()
        names = [registry.get(f"{info.name}:{i}" if i else info.name).device_name() for i in range(count)]
    except Exception as error:  # a broken installation may raise anything, and is what a doctor is asked about
        return f"[red]does not work[/red]: {escape(f'{type(error).__name__}: {error}')}"
    return escape("\n".join(f"{info.name}{f':{i}' if i else ''}  {name}" for i, name in enumerate(names)))
