"""`tensorgraft convert`: a program as source of another framework, in a file."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Iterator
from typing import Any

import typer

from tensorgraft.cli.programs import example_of, imported

USAGE_ERROR = 2


def convert(
    program: str,
    *,
    to: str,
    out: str,
    inputs: list[str],
    style: str | None,
    weights: str | None,
    training: bool,
    check_file: bool,
) -> int:
    """Return the exit status: 0, 1 if the file differs from the program, 2 if there is none."""
    import tensorgraft as tg
    from tensorgraft.exporting.formats import PACKAGES

    try:
        model = imported(program)
        args, kwargs = example_of(model, program, inputs)
    except (ValueError, ImportError, AttributeError, FileNotFoundError) as error:
        typer.echo(f"tensorgraft convert: {error}", err=True)
        return USAGE_ERROR
    if hasattr(model, "train"):
        model.train(training)
        if weights is not None:
            from safetensors.torch import load_file

            model.load_state_dict(load_file(weights))
    elif "tensorflow" in sys.modules:
        try:
            kwargs |= _of_tensorflow(model, weights, training)
        except ValueError as error:
            typer.echo(f"tensorgraft convert: {error}", err=True)
            return USAGE_ERROR
    if to in PACKAGES:
        return _export(model, args, kwargs, to, out)
    try:
        source = tg.source(model, *args, onto=to, style=style, **kwargs)
    except (NotImplementedError, ValueError, TypeError, RuntimeError) as error:
        message = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        typer.echo(f"tensorgraft convert: {message}\nNothing was written.", err=True)
        return USAGE_ERROR
    source.save(out, check=check_file)
    typer.echo(str(source.report))
    files = [out, *([os.path.splitext(out)[0] + ".safetensors"] if source.weights else [])]
    typer.echo(f"written: {', '.join(files)}")
    return 0 if source.report.ok else 1


def _export(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], to: str, out: str) -> int:
    """Write a file of another runtime. Returns the exit status."""
    import tensorgraft as tg

    try:
        with progress():
            report = tg.export(model, *args, to=to, path=out, **kwargs)
    except tg.CheckError as error:
        typer.echo(f"tensorgraft convert: {error}", err=True)
        return 1
    except Exception as error:  # of any exporter
        message = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        typer.echo(f"tensorgraft convert: {message}\nNothing was written.", err=True)
        return USAGE_ERROR
    typer.echo(str(report))
    typer.echo(f"written: {out}, {os.path.splitext(out)[0]}.export.json")
    return 0


@contextlib.contextmanager
def progress() -> Iterator[None]:
    """A context in which a terminal shows the steps of an export, on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from tensorgraft.exporting.progress import listening

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = TimeElapsedColumn(), BarColumn(20), TextColumn("{task.description}")
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("running the program", total=None)

        def show(text: str, part: int, parts: int) -> None:
            bar.update(task, description=text, completed=part, total=parts if parts > 1 else None)

        with listening(show):
            yield


def inspect_file(path: str) -> int:
    """Print what is in a file. Returns the exit status: 0, 1 if a backend lacks an operator of it, 2 if it cannot be
    read."""
    from tensorgraft.exporting.inspection import inspect

    try:
        description = inspect(path)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        typer.echo(f"tensorgraft inspect: {error}", err=True)
        return USAGE_ERROR
    typer.echo(str(description))
    return int(any(description.lacking.values()))


def _of_tensorflow(model: Any, weights: str | None, training: bool) -> dict[str, Any]:
    """Return the mode of a layer or model as an argument, after loading its weights. Raises ValueError for unknown
    names."""
    from tensorgraft.frontends.tensorflow.codegen.models import held_by

    if weights is not None:
        from safetensors.numpy import load_file

        variables, values = held_by(model).variables, load_file(weights)
        # states of random generators, which are no weights
        seeds = {name for name in variables if name.endswith("seed_generator_state")}
        if strange := sorted(values.keys() ^ (variables.keys() - seeds)):
            raise ValueError(f"{weights} does not match the variables of the program: {', '.join(strange)}")
        for name, value in values.items():
            variables[name].assign(value)
    has_modes = "training" in inspect.signature(getattr(model, "call", model)).parameters
    return {"training": True} if training and has_modes else {}
