"""`tensorgraft run` of a TensorFlow or Keras script: its `tf.function`s run on a backend, and are reported."""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorgraft.importing import when_imported

if TYPE_CHECKING:
    from rich.console import Console

NAMES = {"tensorflow", "keras", "tf_keras"}
_MOST_ROWS = 20
_switches: list[Any] = []  # of this process: one, once TensorFlow is imported


def imports(program: Sequence[str], module: bool = False) -> set[str]:
    """Return the packages that a script imports, anywhere in its file; none where it cannot be read."""
    path: str | None = program[0]
    if module:
        parts = program[0].split(".")
        spec = importlib.util.find_spec(parts[0]) if len(parts) == 1 else None
        path = os.path.join(*parts) + ".py" if spec is None else spec.origin
    elif os.path.isdir(program[0]):
        path = os.path.join(program[0], "__main__.py")
    try:
        with open(path or "", "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):  # Python says so when it runs it
        return set()
    packages: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.add(node.module.partition(".")[0])
    return packages


def switch_functions(on: str, strict: bool) -> None:
    """Compute TensorFlow's functions on the backend `on`, from the import of TensorFlow on."""

    def install() -> None:
        from tensorgraft.frontends.tensorflow.function_override.switch import FunctionSwitch

        switch = FunctionSwitch(on, strict)
        switch.install()
        _switches.append(switch)

    when_imported("tensorflow", install)


def print_functions(console: Console, on: str, jit_report: bool) -> None:
    """Print the functions that TensorFlow computed instead of the backend, the most frequent first; with `jit_report`
    also those of the backend."""
    from rich.markup import escape
    from rich.table import Column, Table

    for switch in _switches:
        if not switch.calls and not switch.left:
            continue  # the program has none, or is not one of TensorFlow
        reasons = {"computed by TensorFlow, not": switch.left, "run step by step, not compiled,": switch.run.uncompiled}
        for heading, counts in reasons.items():
            if counts:
                times = Column("calls" if counts is switch.left else "programs", justify="right")
                table = Table("function or operation", Column("because", overflow="fold"), times)
                for (name, reason), count in counts.most_common(_MOST_ROWS):
                    table.add_row(escape(name), escape(reason), str(count))
                console.print(f"{heading} on {on}:", highlight=False)
                console.print(table)
        if jit_report:
            right = [Column(name, justify="right") for name in ("programs", "calls")]
            table = Table("function of TensorFlow", *right)
            for name, calls in switch.calls.most_common(_MOST_ROWS):
                table.add_row(escape(name), str(switch.run.programs[name]), str(calls))
            console.print(table)


def any_switched() -> bool:
    """Return whether the backend, or TensorFlow in its place, computed a function."""
    return any(switch.calls or switch.left for switch in _switches)
