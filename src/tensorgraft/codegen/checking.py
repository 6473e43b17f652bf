"""Whether a generated file does what the program does: both are run, the file in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgraft.codegen.program import Evaluation, SourceProgram
from tensorgraft.codegen.targets import Target
from tensorgraft.codegen.testing import test_of
from tensorgraft.codegen.weights import write_weights

FORWARD, GRADIENT = 1e-5, 1e-4  # relative to the largest entry of an array
LEAST = 2e-2  # of the largest gradient: below it gradients are rounding (a bias before a normalisation has none)


@dataclass
class Row:
    """A comparison: of what, at which sizes, the largest difference relative to the largest entry, and the limit."""

    what: str
    sizes: str
    arrays: int
    error: float
    limit: float
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.error <= self.limit


@dataclass
class Checked:
    """What was compared, and all that a test needs which does it again: inputs, and what was expected, by example."""

    rows: list[Row]
    data: dict[str, np.ndarray]
    runner: str
    function: str
    wide: bool

    def test(self, model: str) -> str:
        """The text of a test of the file `MODEL.py`."""
        return test_of(model, self.function, self.runner, self.wide, FORWARD, GRADIENT)


def check(
    source: str,
    weights: Mapping[str, np.ndarray],
    function: str,
    target: Target,
    program: SourceProgram,
    examples: Sequence[tuple[str, tuple[Any, ...], dict[str, Any]]],
    stateful: bool,
    compare_values: bool,
    key: bool = False,
) -> Checked:
    """A row for the results at each of the `examples` (sizes in words, arguments), and for the gradients of the first.

    Raises RuntimeError with what the file printed, where it does not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        model, checkpoint = os.path.join(folder, "model.py"), os.path.join(folder, "model.safetensors")
        with open(model, "w") as file:
            file.write(source)
        write_weights(weights, checkpoint)
        expected: list[Evaluation] = []
        wide = any(w.dtype in (np.float64, np.complex128) for w in weights.values())
        for k, (_, args, kwargs) in enumerate(examples):
            arrays = [program.numpy(x) for x in program.flatten(args, kwargs)[0]]
            if key:  # the last argument of what is written: where its random numbers come from
                arrays.append(np.array([0, 1], np.uint32))
            wide |= any(x.dtype in (np.float64, np.complex128) for x in arrays)
            more: dict[str, Any] = {"gradients": 1} if not k and target.trains else {}
            more |= ({"buffers": 1} if stateful else {}) | ({"key": 1} if key else {})
            np.savez(os.path.join(folder, f"inputs_{k}.npz"), **{**{f"a{i}": x for i, x in enumerate(arrays)}, **more})
            expected.append(program.evaluate(args, kwargs, gradients=not k and target.trains))
        if wide:
            open(os.path.join(folder, "wide"), "w").close()
        runner = os.path.join(os.path.dirname(__file__), "runners", f"{target.runner}.py")
        done = subprocess.run(
            [sys.executable, "-I", runner, model, checkpoint, function, folder], capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"the generated file does not run:\n{done.stderr[-3000:]}")
        rows: list[Row] = []
        data: dict[str, np.ndarray] = {}
        for k, (sizes, _, _) in enumerate(examples):
            found = dict(np.load(os.path.join(folder, f"outputs_{k}.npz")))
            outputs = {n[2:]: v for n, v in found.items() if n.startswith("o:")}
            wanted = expected[k].outputs
            if stateful:
                wanted = {"0" if n == "result" else f"0.{n}": v for n, v in wanted.items()}
                wanted |= {f"1.{n}": v for n, v in expected[k].buffers.items()}
            data |= {f"{k}/{n}": v for n, v in np.load(os.path.join(folder, f"inputs_{k}.npz")).items()}
            if compare_values:
                data |= {f"{k}/o:{n}": v for n, v in wanted.items()}
                data |= {f"{k}/g:{n}": v for n, v in expected[k].gradients.items()}
                rows.append(_row("results", sizes, wanted, outputs, FORWARD, 0.0))
                if not k and expected[k].gradients:
                    gradients = {n[2:]: v for n, v in found.items() if n.startswith("g:")}
                    top = max((float(np.abs(g).max(initial=0)) for g in expected[k].gradients.values()), default=0.0)
                    rows.append(_row("gradients", sizes, expected[k].gradients, gradients, GRADIENT, LEAST * top))
        return Checked(rows, data, target.runner, function, wide)


def _row(
    what: str,
    sizes: str,
    wanted: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
    limit: float,
    least: float,
) -> Row:
    worst, detail = 0.0, ""
    for name, w in wanted.items():
        f = found.get(name, found.get("result") if len(wanted) == 1 else None)
        if f is None:
            error, why = float("inf"), "is missing"
        elif f.shape != w.shape:
            error, why = float("inf"), f"has the shape {f.shape}, expected {w.shape}"
        elif f.dtype.kind != w.dtype.kind and w.dtype.isbuiltin == 1:
            error, why = float("inf"), f"is {f.dtype}, expected {w.dtype}"
        else:
            error, why = _error(w, f, least)
        if not error <= worst:
            worst, detail = error, f"{name} {why}"
    return Row(what, sizes, len(wanted), worst, limit, detail if not worst <= limit else "")


def _error(w: np.ndarray, f: np.ndarray, least: float) -> tuple[float, str]:
    if w.dtype.kind in "biu":
        return (0.0, "") if np.array_equal(w, f) else (float("inf"), "has other elements")
    w, f = w.astype(np.complex128), f.astype(np.complex128)
    if not np.array_equal(np.isnan(w), np.isnan(f)):
        return float("inf"), "has NaN in other places"
    equal = (w == f) | np.isnan(w)
    finite = np.abs(w[np.isfinite(w)])
    with np.errstate(invalid="ignore"):
        error = np.where(equal, 0.0, np.abs(w - f)).max(initial=0.0)
    size = max(float(finite.max(initial=0.0)), least, 1e-30)
    return float(error) / size, "differs"
