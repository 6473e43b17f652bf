"""`tensorgraft port` and the comparison of two programs: which array of one network is which of another, and where
both differ."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from tensorgraft import files
from tensorgraft.cli.programs import example_of, imported

USAGE_ERROR = 2


@dataclass(frozen=True)
class Outputs:
    """The files that `port` is asked for."""

    mapping: Path | None = None
    converter: Path | None = None
    checkpoint: Path | None = None  # to be read
    out: Path | None = None


def port(
    source: str,
    target: str,
    *,
    inputs: Sequence[str],
    target_inputs: Sequence[str],
    hints: Sequence[str],
    outputs: Outputs,
    table: bool,
) -> int:
    """Return the exit status: 0; 1 if programs differ or parameters are unmatched; 2 for wrong usage."""
    import tensorgraft as tg

    try:
        if (outputs.checkpoint is None) != (outputs.out is None):
            raise ValueError("--checkpoint and --out go together: the file that is read, and the one that is written")
        a, b, example, target_example = _pair(source, target, inputs, target_inputs)
        with _status(f"{source} to {target}"):
            ported = tg.port(a, b, *example, target_example=target_example, hints=dict(map(_hint, hints)))
    except _USAGE as error:
        return _refused("port", error)
    typer.echo(str(ported))
    if table:
        typer.echo(f"\n{ported.report.table()}")
    if outputs.mapping is not None:
        ported.mapping.save(outputs.mapping)
        typer.echo(f"written: {outputs.mapping}")
    if ported.mapping.unmatched and (outputs.converter or outputs.out):
        typer.echo("tensorgraft port: parameters are unmatched: nothing is converted; see --hint", err=True)
        return 1
    if outputs.converter is not None:
        files.write(outputs.converter, ported.source().encode())
        typer.echo(f"written: {outputs.converter}")
    if outputs.out is not None and (status := _converted(ported.mapping, outputs)):
        return status
    return 0 if ported.ok else 1


def convert_weights(
    mapping: Path, checkpoint: Path, out: Path, shapes: Path | None = None, sizes: Sequence[str] = ()
) -> int:
    """Convert a checkpoint by a mapping that was saved, of smaller networks if there are shapes; returns 0, or 2 where
    it is not possible."""
    from tensorgraft.porting.mapping import Mapping

    try:
        found = Mapping.load(mapping)
        if sizes and shapes is None:
            raise ValueError("--size is for mappings of another size: give the target's with --shapes")
        if shapes is not None:
            found = found.resized(checkpoint, shapes, dict(map(_size, sizes)))
    except (OSError, ValueError) as error:
        return _refused("convert-weights", error)
    return _converted(found, Outputs(checkpoint=checkpoint, out=out), "convert-weights")


def diff(source: str, target: str, *, inputs: Sequence[str], target_inputs: Sequence[str], table: bool) -> int:
    """Compare two programs that have their weights; returns 0; 1 if they differ; 2 for wrong usage."""
    import tensorgraft as tg

    try:
        a, b, example, target_example = _pair(source, target, inputs, target_inputs)
        with _status(f"{source} and {target}"):
            report = tg.diff(a, b, *example, target_example=target_example)
    except _USAGE as error:
        return _refused("compare", error)
    typer.echo(str(report))
    if table:
        typer.echo(f"\n{report.table()}")
    return 0 if report.ok else 1


_USAGE = (ValueError, TypeError, ImportError, AttributeError, FileNotFoundError, NotImplementedError, RuntimeError)


def _pair(
    source: str, target: str, inputs: Sequence[str], target_inputs: Sequence[str]
) -> tuple[Any, Any, tuple[Any, ...], tuple[Any, ...]]:
    """Both programs in evaluation mode, and what they are called with."""
    a, b = (_evaluating(imported(text)) for text in (source, target))
    example = _by_position(a, source, inputs)
    if target_inputs or inputs:  # the same random numbers, as arrays of its own framework
        return a, b, example, _by_position(b, target, target_inputs or inputs)
    return a, b, example, tuple(x.detach().numpy() if hasattr(x, "detach") else x for x in example)


def _evaluating(program: Any) -> Any:
    if hasattr(program, "eval"):  # modules of PyTorch and Flax
        program.eval()
    return program


def _by_position(program: Any, text: str, inputs: Sequence[str]) -> tuple[Any, ...]:
    model = program[0] if isinstance(program, tuple) else program  # a function of JAX and its weights
    args, kwargs = example_of(model, text, list(inputs))
    if kwargs:
        raise ValueError(f"{text}: examples are arguments by position here, not by name: {', '.join(kwargs)}")
    return args


def _hint(text: str) -> tuple[str, str]:
    target, separator, source = text.partition("=")
    if not separator:
        raise ValueError(f"--hint {text!r}: expected TARGET=SOURCE, two names of parameters")
    return target, source


def _size(text: str) -> tuple[int, int]:
    small, _, large = text.partition("=")
    if not (small.isdigit() and large.isdigit()):
        raise ValueError(f"--size {text!r}: expected SMALL=LARGE, two sizes")
    return int(small), int(large)


def _converted(mapping: Any, outputs: Outputs, command: str = "port") -> int:
    try:
        with _status(f"writing {outputs.out}"):
            mapping.convert(outputs.checkpoint, outputs.out)
    except (OSError, ValueError) as error:
        return _refused(command, error)
    typer.echo(f"written: {outputs.out}")
    return 0


def _status(text: str) -> Any:
    return Console(file=sys.stderr).status(text)


def _refused(command: str, error: Exception) -> int:
    message = "\n".join([str(error), *getattr(error, "__notes__", ())])
    typer.echo(f"tensorgraft {command}: {message}", err=True)
    return USAGE_ERROR
