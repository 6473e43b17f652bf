"""Comparison of a generated file with its program: both are run, the file in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgraft.codegen.output.weights import write_weights
from tensorgraft.codegen.program import Evaluation, SourceProgram, error_line
from tensorgraft.codegen.targets import Target
from tensorgraft.codegen.trace import SourceTrace, steps, variables
from tensorgraft.codegen.verification.runners import script
from tensorgraft.codegen.verification.testing import test_of
from tensorgraft.hub import dtypes

FORWARD, GRADIENT = 1e-5, 1e-4  # relative to the largest entry of an array
# tolerances of 16-bit floats as multiples of their epsilon: frameworks round at other points, and gradients are sums
ROUNDINGS = 2, 8
# Gradients of a parameter below this fraction of the largest gradient are compared with that fraction instead: they are
# rounding errors (such as those of a bias before a normalisation).
LEAST = 2e-2

Example = tuple[str, tuple[Any, ...], dict[str, Any]]  # sizes in words, arguments


@dataclass
class Row:
    """A comparison: its subject, the sizes, the largest difference relative to the largest entry, and the limit."""

    what: str
    sizes: str
    arrays: int
    error: float
    limit: float
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.error <= self.limit

    def __str__(self) -> str:
        outcome = "equal" if self.ok else f"DIFFERS: {self.detail}"
        return (
            f"  {self.what:<10} {self.sizes:<28} {self.arrays:>4} arrays  {self.error:.1e} (limit {self.limit:.0e})"
            f"  {outcome}"
        )


@dataclass
class Checked:
    """The comparisons that were made, and the data with which a test repeats them: inputs and expected results by
    example."""

    rows: list[Row]
    data: dict[str, np.ndarray]
    runner: str
    function: str
    wide: bool
    limits: tuple[float, float]
    notes: list[str]  # comparisons that were not made, and why

    def test(self, model: str) -> str:
        """Return the source of a test of the file `MODEL.py`."""
        return test_of(model, self.function, self.runner, self.wide, *self.limits)


def check(
    source: str,
    weights: Mapping[str, np.ndarray],
    function: str,
    target: Target,
    program: SourceProgram,
    examples: Sequence[Sequence[Example]],
    stateful: bool,
    random: bool,
    key: bool = False,
    epsilon: float = 0.0,
    names_in_file: Mapping[str, str] | None = None,
) -> Checked:
    """Compare the results of the file with the program's at each of the `examples`, and the gradients at the first.

    An example may have several sizes, of which the first is used at which the program itself runs.

    `epsilon` is that of the narrowest float that the program computes with: results computed in bfloat16 differ by its
    rounding errors, whatever their own dtype is. `names_in_file` maps the names of parameters in the file to those in
    the program.

    Raises RuntimeError with the output of the file if it does not run.
    """
    forward, gradient = (max(least, n * epsilon) for least, n in zip((FORWARD, GRADIENT), ROUNDINGS, strict=True))
    wide = any(map(_is_wide, weights.values()))
    rows: list[Row] = []
    data: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        examples_with_results, notes = _evaluated(program, examples, target.trains, random)
        for k, ((_, args, kwargs), _) in enumerate(examples_with_results):
            arrays = [program.numpy(x) for x in program.flatten(args, kwargs)[0]]
            if key:  # the last argument of a written function: the key of its random numbers
                arrays.append(np.array([0, 1], target.key))
            wide |= any(map(_is_wide, arrays))
            requests = {"gradients": not k and target.trains, "buffers": stateful, "numbers": random, "key": key}
            flags: dict[str, Any] = {name: 1 for name, value in requests.items() if value}
            np.savez(os.path.join(folder, f"inputs_{k}.npz"), **{f"a{i}": x for i, x in enumerate(arrays)} | flags)
        if wide:
            open(os.path.join(folder, "wide"), "w").close()
        _run(source, weights, function, target, folder)
        for k, ((sizes, _, _), expected) in enumerate(examples_with_results):
            inputs, files = (dict(np.load(os.path.join(folder, f"{name}_{k}.npz"))) for name in ("inputs", "outputs"))
            data |= {f"{k}/{n}": v for n, v in inputs.items()}
            expected_outputs = expected.outputs
            if stateful:
                expected_outputs = {"0" if n == "result" else f"0.{n}": v for n, v in expected_outputs.items()}
                expected_outputs |= {f"1.{n}": v for n, v in expected.buffers.items()}
            if expected_outputs:  # empty for results that depend on the framework's random numbers
                data |= {f"{k}/o:{n}": v for n, v in expected_outputs.items()}
                data |= {f"{k}/g:{n}": v for n, v in expected.gradients.items()}
                outputs = {n[2:]: v for n, v in files.items() if n.startswith("o:")}
                rows.append(compared("results", sizes, expected_outputs, outputs, forward, 0.0))
                if expected.gradients:
                    gradients = {
                        (names_in_file or {}).get(n[2:], n[2:]): v for n, v in files.items() if n.startswith("g:")
                    }
                    rows.append(_gradient_row(sizes, expected.gradients, gradients, gradient))
    return Checked(rows, data, target.runner, function, wide, (forward, gradient), notes)


def _is_wide(x: np.ndarray) -> bool:
    return x.dtype in (np.float64, np.complex128)


def _run(source: str, weights: Mapping[str, np.ndarray], function: str, target: Target, folder: str) -> None:
    """Run the file on the inputs in a folder, and write its outputs there. Raises RuntimeError if it does not run."""
    model, checkpoint = os.path.join(folder, "model.py"), os.path.join(folder, "model.safetensors")
    with open(model, "w") as file:
        file.write(source)
    write_weights(weights, checkpoint)
    command = [sys.executable, "-I", "-c", script(target.runner), model, checkpoint, function, folder]
    completed = subprocess.run(command, capture_output=True, text=True)
    if completed.returncode:
        _, trace, rest = completed.stderr.partition("Traceback (most recent call last)")  # not what frameworks log
        raise RuntimeError(f"the generated file does not run:\n{(trace + rest or completed.stderr)[-3000:]}")


def _gradient_row(sizes: str, expected: Mapping[str, np.ndarray], actual: dict[str, np.ndarray], limit: float) -> Row:
    for n, g in expected.items():  # a parameter that no result depends on is missing in `actual`
        actual.setdefault(n, np.zeros_like(g))
    top = max((float(np.abs(g).max(initial=0)) for g in expected.values()), default=0.0)
    return compared("gradients", sizes, expected, actual, limit, LEAST * top)


def _evaluated(
    program: SourceProgram, examples: Sequence[Sequence[Example]], gradients: bool, random: bool
) -> tuple[list[tuple[Example, Evaluation]], list[str]]:
    """Return (the examples to compare, with the program's results; notes on parts that are not compared)."""
    evaluated: list[tuple[Example, Evaluation]] = []
    notes: list[str] = []
    for k, sizes in enumerate(examples):
        reason = ""
        for example in sizes:
            try:
                evaluated.append((example, program.evaluate(*example[1:], not k and gradients, random)))
                break
            except Exception as error:  # any error that the program raises at sizes other than the user's
                if not k:
                    raise
                reason = reason or f"{example[0]} is not compared, the program itself fails: {error_line(error)}"
        else:
            notes.append(reason)
    return evaluated, notes + [evaluation.note for _, evaluation in evaluated if evaluation.note]


def epsilon_of(trace: SourceTrace) -> float:
    """Return the machine epsilon of the narrowest 16-bit float in the computation, or 0 if there is none."""
    computed = (v.dtype for step in steps(trace.root) for v in variables(step.results))
    narrow = {dtype for dtype in computed if dtypes.is_floating(dtype) and dtype.itemsize == 2}
    return max((float(dtypes.finfo(dtype).eps) for dtype in narrow), default=0.0)


def compared(
    kind: str,
    sizes: str,
    expected: Mapping[str, np.ndarray],
    actual: Mapping[str, np.ndarray],
    limit: float,
    least: float,
) -> Row:
    """Return the comparison of arrays by name; differences are relative to the largest entry, at least to `least`."""
    worst_error, detail = 0.0, ""
    for name, wanted in expected.items():
        found = actual.get(name, actual.get("result") if len(expected) == 1 else None)
        if found is None:
            error, reason = float("inf"), "is missing"
        elif found.shape != wanted.shape:
            error, reason = float("inf"), f"has the shape {found.shape}, expected {wanted.shape}"
        elif found.dtype.kind != wanted.dtype.kind and wanted.dtype.isbuiltin == 1:
            error, reason = float("inf"), f"is {found.dtype}, expected {wanted.dtype}"
        else:
            error, reason = _error(wanted, found, least)
        if not error <= worst_error:
            worst_error, detail = error, f"{name} {reason}"
    return Row(kind, sizes, len(expected), worst_error, limit, detail if not worst_error <= limit else "")


def _error(wanted: np.ndarray, found: np.ndarray, least: float) -> tuple[float, str]:
    """Return (the largest difference of two arrays of one shape, relative to the largest entry; a word on it)."""
    if wanted.dtype.kind in "biu":
        return (0.0, "") if np.array_equal(wanted, found) else (float("inf"), "has other elements")
    wanted, found = wanted.astype(np.complex128), found.astype(np.complex128)
    if not np.array_equal(np.isnan(wanted), np.isnan(found)):
        return float("inf"), "has NaN in other places"
    equal = (wanted == found) | np.isnan(wanted)
    finite = np.abs(wanted[np.isfinite(wanted)])
    with np.errstate(invalid="ignore"):
        error = np.where(equal, 0.0, np.abs(wanted - found)).max(initial=0.0)
    size = max(float(finite.max(initial=0.0)), least, 1e-30)
    return float(error) / size, "differs"
