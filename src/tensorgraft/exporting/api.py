"""`tg.export`: a program as a file of another runtime."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from tensorgraft import files
from tensorgraft.codegen.program import error_line
from tensorgraft.codegen.recorders.calls import NotExpressibleError
from tensorgraft.errors import CheckError
from tensorgraft.exporting.conversion import Converted, conversions
from tensorgraft.exporting.formats import Format, format_named
from tensorgraft.exporting.progress import step
from tensorgraft.exporting.report import ArrayDescription, ExportReport
from tensorgraft.exporting.sizes import Dynamic, OpenSizes, open_sizes
from tensorgraft.exporting.subject import Subject
from tensorgraft.exporting.verification import check as check_file


def export(
    program: Any,
    *args: Any,
    to: str,
    path: str | os.PathLike[str],
    dynamic: Dynamic = True,
    check: bool = True,
    platforms: tuple[str, ...] | None = None,
    opset: int | None = None,
    quantize: str | None = None,
    calibrate: Iterable[Any] | None = None,
    **kwargs: Any,
) -> ExportReport:
    """Write a program of any framework as a file of another runtime, run the file there, and compare.

        report = tg.export(model, x, to="stablehlo", path="model.stablehlo")

    The arrays of the arguments are the inputs of the file, in the program's own structure; other arguments are
    constants. Weights are in the file. A training step is a function of its state that returns the new state, or a
    program that writes its variables.

    Args:
        program: a `torch.nn.Module`; a function or model of JAX; a function of TensorFlow, a `tf.Module`, a layer or
            model of Keras; a function of the Array API; the path of a file .onnx, .pt2 or .stablehlo.
        *args, **kwargs: example arguments.
        to: "stablehlo" (a file of `jax.export`), "onnx", "saved_model" (a folder), "pt2" (a file of `torch.export`),
            "litert".
        path: the file or folder. `ROOT.export.json` beside it is the report.
        dynamic: leave open the sizes with which the program also runs (batches, lengths); or the sizes to leave open,
            as {name of an argument: {axis: symbol}}.
        check: run the file in its own runtime, in another process, with the example and with other sizes.
        platforms: for "stablehlo", those of "cpu", "cuda", "rocm" and "tpu" that the file is for; the default is all
            but rocm, as far as JAX has its operations there.
        opset: for "onnx", 18 to 24; the default is 20.
        quantize: for "litert", the scheme of products: "int8_dynamic" (weights int8, the other operand quantised when
            the model runs) or "int8_static_asymmetric" (its range is measured beforehand).
        calibrate: batches for "int8_static_asymmetric", each an array, or a tuple of the positional arguments.

    Returns: an `ExportReport`.

    Raises:
        ValueError: for an unknown format, and sizes that cannot be left open although `dynamic` names them.
        TypeError: for programs of unknown kinds.
        FileExistsError: if `path` is a folder that is no SavedModel.
        CheckError: if the results of the file differ from those of the program. Nothing is left at `path`.
        NotImplementedError, ModuleNotFoundError, and other errors of the framework's exporter.
    """
    fmt, options = _format(to, {"platforms": platforms, "opset": opset, "quantize": quantize, "calibrate": calibrate})
    if calibrate is not None:
        options["calibrate"] = [_arrays_of(program, batch, kwargs) for batch in calibrate]
    fmt.validate(options)
    _refuse_folder(os.fspath(path))
    return _export(fmt, Subject(program, args, kwargs), os.fspath(path), dynamic, check, options)


def _export(
    fmt: Format, subject: Subject, path: str, dynamic: Dynamic, check: bool, options: dict[str, Any]
) -> ExportReport:
    sizes, named = open_sizes(subject, dynamic), isinstance(dynamic, Mapping)
    with _part(path) as part:
        while True:
            converted, own, notes = _written(fmt, subject, sizes, part, options, named)
            report = _report(fmt, subject, converted, own, path)
            report.notes = [*converted.notes, *notes]
            report.options = {n: len(x) if n == "calibrate" else x for n, x in options.items()}
            if not check:
                break
            step(f"running the file ({fmt.runner})")
            try:
                report.rows, more, report.outputs = check_file(part, fmt.runner, subject, converted, own)
            except (
                RuntimeError
            ) as error:  # its runtime refuses the file, or aborts: it may take one with fewer open sizes
                if named or not own.open():
                    raise
                lengths = [g for g in own.open() if g not in _batches(own)]
                sizes.fix(lengths or own.open(), f"the file does not run: {error_line(error)}")
                _remove(part)
                continue
            report.notes += more
            if not report.ok:
                raise CheckError(f"tg.export: the file differs from the program, and was not kept\n{report}")
            break
        _write_state(converted, path, report)
        files.write(f"{_root(path)}.export.json", report.json().encode())
        _move(part, path)
    return report


def _arrays_of(program: Any, batch: Any, kwargs: dict[str, Any]) -> list[np.ndarray]:
    """Return the arrays of the arguments of a batch."""
    subject = Subject(program, batch if isinstance(batch, tuple) else (batch,), kwargs)
    return [subject.source.numpy(x) for x in subject.arrays]


def _report(fmt: Format, subject: Subject, converted: Converted, sizes: OpenSizes, path: str) -> ExportReport:
    """Return a report in which nothing is checked yet."""
    inputs = [
        ArrayDescription(name, subject.source.numpy(x).dtype.name, sizes.shape(k))
        for k, (name, x) in enumerate(zip(subject.names, subject.arrays, strict=True))
    ]
    title = f"{subject.name} ({subject.origin})"
    return ExportReport(title, fmt.name, path, converted.conversion, inputs, [], sizes.groups)


def _format(name: str, given: Mapping[str, Any]) -> tuple[Format, dict[str, Any]]:
    """Return a format and the options that are set. Raises ValueError for those that it does not have."""
    fmt = format_named(name)
    options = {option: value for option, value in given.items() if value is not None}
    if unknown := [option for option in options if option not in fmt.options]:
        raise ValueError(f"to={name!r} takes no {', '.join(unknown)}")
    return fmt, options


def _written(
    fmt: Format, subject: Subject, sizes: OpenSizes, path: str, options: Mapping[str, Any], named: bool
) -> tuple[Converted, OpenSizes, list[str]]:
    """Write the file with as many sizes open as one of the conversions allows; above all, the batch."""
    failures: list[tuple[str, Exception]] = []
    lengths = [g for g in sizes.open() if g not in _batches(sizes)]
    levels = [[]] if named else [[], lengths, sizes.open()]
    functional = not fmt.keeps_state and subject.is_stateful()
    tried: list[list[int]] = []
    for fixed in levels:
        if fixed in tried:
            continue
        tried.append(fixed)
        second: tuple[Converted, OpenSizes, list[str]] | None = None  # a file whose batch is fixed
        for conversion, convert in conversions(subject, fmt.framework, sizes, functional):
            step(f"writing {fmt.name} ({conversion})")
            try:
                converted, own = convert()
                own.fix(fixed, error_line(failures[0][1]) if failures else "")
                notes = fmt.write(converted, subject, own, path, options)
                if named and len(own.open()) < len(sizes.open()):
                    reasons = "; ".join(g.reason for g in own.groups if g.reason)
                    raise ValueError(f"dynamic: a size cannot be left open: {reasons}")
                if _batches(own) >= _batches(sizes) - {*fixed}:
                    return converted, own, notes
                if second is None or len(_batches(own)) > len(_batches(second[1])):
                    second = converted, own, notes
                    _set_aside(path)
            except Exception as error:  # an error of any exporter: another way, or fewer open sizes, may do
                failures.append((conversion, error))
                if fmt.framework is None and isinstance(error, NotExpressibleError):
                    raise  # whatever sizes are open
            _remove(path)
        if second is not None:
            _put_back(path)
            return second
    first = failures[0][1]
    for conversion, failure in failures[1:]:
        first.add_note(f"{conversion}: {error_line(failure)}")
    raise first


def _batches(sizes: OpenSizes) -> set[int]:
    return {g for g in sizes.open() if sizes.groups[g].title == "batch"}


# ---- files -----------------------------------------------------------------------------------------------------------


def _root(path: str) -> str:
    return os.path.splitext(path)[0]


def _refuse_folder(path: str) -> None:
    if os.path.isdir(path) and os.listdir(path) and not os.path.exists(os.path.join(path, "saved_model.pb")):
        raise FileExistsError(f"{path} is a folder that is no SavedModel: choose another path, or remove it")


@contextmanager
def _part(path: str) -> Iterator[str]:
    """A context with a path beside `path` whose files are removed at its end."""
    folder, name = os.path.split(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    part = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.part")
    os.mkdir(part)
    try:
        yield os.path.join(part, name)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.unlink(path)


def _aside(path: str) -> str:
    return os.path.join(os.path.dirname(path), ".aside")


def _set_aside(path: str) -> None:
    """Keep a file that was written, with what is beside it, while another is tried."""
    shutil.rmtree(_aside(path), ignore_errors=True)
    names = os.listdir(os.path.dirname(path))
    os.mkdir(_aside(path))
    for name in names:
        if name != ".aside":
            shutil.move(os.path.join(os.path.dirname(path), name), _aside(path))


def _put_back(path: str) -> None:
    for name in os.listdir(_aside(path)):
        shutil.move(os.path.join(_aside(path), name), os.path.dirname(path))
    os.rmdir(_aside(path))


def _move(part: str, path: str) -> None:
    """Put the files of a part in their places, the one at `path` last."""
    folder = os.path.dirname(os.path.abspath(path))
    shutil.rmtree(_aside(part), ignore_errors=True)
    for name in os.listdir(os.path.dirname(part)):
        if name != os.path.basename(part):
            os.replace(os.path.join(os.path.dirname(part), name), os.path.join(folder, name))
    if os.path.isdir(path) or os.path.isdir(part):
        _remove(path)
    os.replace(part, path)
    files.sync_folder(folder)


def _write_state(converted: Converted, path: str, report: ExportReport) -> None:
    """Write the first state of a program that takes it, as arrays by their paths."""
    if converted.state:
        from tensorgraft.codegen.output.weights import write_weights
        from tensorgraft.codegen.program import by_path

        name = f"{_root(path)}.state.safetensors"
        write_weights({n: np.asarray(x) for n, x in by_path(converted.state).items()}, name)
        place = "first, and returns (results, new state)"
        if converted.state_arguments:
            place = "as arguments, and returns it as NAME_new"
        report.notes.append(f"the file takes its state {place}: {name}")
