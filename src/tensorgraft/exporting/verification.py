"""The check at the end of an export: the file is run in its own runtime, in another process, and compared with the
program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tensorgraft.codegen.program import Evaluation
from tensorgraft.codegen.verification.checking import FORWARD, GRADIENT, ROUNDINGS, Row, compared
from tensorgraft.codegen.verification.runners import script
from tensorgraft.exporting.conversion import Converted
from tensorgraft.exporting.report import ArrayDescription
from tensorgraft.exporting.sizes import OpenSizes
from tensorgraft.exporting.structure import encoded
from tensorgraft.exporting.subject import Subject, tensor_name
from tensorgraft.hub import dtypes

RUNNERS = "tensorgraft.exporting.runners"
_WIDE = (np.float64, np.complex128)


def check(
    path: str, runner: str, subject: Subject, converted: Converted, sizes: OpenSizes
) -> tuple[list[Row], list[str], list[ArrayDescription]]:
    """Return (the comparisons of the file's results with those of the program, notes, the results of the file).

    Raises RuntimeError with the output of the process if the file does not run.
    """
    expected = subject.evaluate(subject.arrays)
    examples: list[tuple[str, list[Any], Evaluation]] = [("as the example", subject.arrays, expected)]
    for (g, size), evaluation in sizes.results.items():
        if g in sizes.open():
            examples.append((f"{sizes.symbols[g]} of {size}", sizes.arrays({g: size}), evaluation))
    written = bool(converted.state or converted.state_results) or subject.writes(expected.buffers)
    with tempfile.TemporaryDirectory() as folder:
        _write_job(folder, subject, converted, written, expected.outputs, [arrays for _, arrays, _ in examples])
        _run(path, runner, folder)
        rows: list[Row] = []
        results: list[dict[str, np.ndarray]] = []
        for k, (title, _, evaluation) in enumerate(examples):
            found = dict(np.load(os.path.join(folder, f"outputs_{k}.npz")))
            results.append({name[2:]: x for name, x in found.items()})
            wanted = _wanted(evaluation, written)
            limit = _limit(max(FORWARD, converted.tolerance), 0, subject, evaluation)
            rows.append(compared("results", title, wanted, results[k], limit, 0.0))
            if written:
                paths = converted.state_results.values() or evaluation.buffers
                state = {f"1.{n}": evaluation.buffers[n] for n in paths}
                limit = _limit(GRADIENT, 1, subject, evaluation)
                rows.append(compared("state", title, state, results[k], limit, 0.0))
    outputs = _described(results, [{}, *({sizes.symbols[g]: n} for g, n in sizes.results if g in sizes.open())], sizes)
    if not all(row.ok for row in rows) and _draws(subject, expected):
        return [], ["results are not compared: the program draws random numbers"], outputs
    return rows, [], outputs


def _described(
    results: list[dict[str, np.ndarray]], at: list[dict[str, int]], sizes: OpenSizes
) -> list[ArrayDescription]:
    """Return the results of a file. An extent that changes with a size has its symbol: if it equals that, as it is."""
    example = {sizes.symbols[g]: sizes.groups[g].size for g in sizes.open()}
    descriptions = []
    for name, x in results[0].items():
        shape: list[int | str] = [*x.shape]
        for values, others in zip(at[1:], results[1:], strict=True):
            ((symbol, size),) = values.items()
            other = others[name].shape
            for axis, n in enumerate(x.shape):
                if other[axis] != n:
                    equal = (n, other[axis]) == (example[symbol], size)
                    shape[axis] = symbol if equal else f"f({symbol})"
        descriptions.append(ArrayDescription(name, x.dtype.name, shape))
    return descriptions


def _wanted(evaluation: Evaluation, written: bool) -> dict[str, np.ndarray]:
    if not written:
        return evaluation.outputs
    return {"0" if n == "result" else f"0.{n}": x for n, x in evaluation.outputs.items()}


def _limit(least: float, kind: int, subject: Subject, evaluation: Evaluation) -> float:
    """Return the limit of a difference. What a training step writes is computed from gradients."""
    kinds = {x.dtype for x in [*evaluation.outputs.values(), *map(subject.source.numpy, subject.arrays)]}
    narrow = [float(dtypes.finfo(t).eps) for t in kinds if dtypes.is_floating(t) and t.itemsize == 2]
    return max(least, ROUNDINGS[kind] * max(narrow, default=0.0))


def _draws(subject: Subject, before: Evaluation) -> bool:
    again = subject.evaluate(subject.arrays).outputs
    return any(not np.array_equal(x, again[name], equal_nan=x.dtype.kind in "fc") for name, x in before.outputs.items())


def _write_job(
    folder: str, subject: Subject, converted: Converted, written: bool, paths: Iterable[str], examples: list[list[Any]]
) -> None:
    arrays = [[subject.source.numpy(x) for x in example] for example in examples]
    job: dict[str, Any] = {
        "structure": encoded(subject.structure),
        "dtypes": [x.dtype.name for x in arrays[0]],
        "names": subject.names,
        "tensors": [tensor_name(name) for name in subject.names],
        "results": {tensor_name(path): path for path in paths},
        "state_results": converted.state_results,
    }
    if converted.state:
        job["state"] = True
        job["state_arguments"] = [name for _, name in sorted((p, n) for n, p in converted.state_arguments.items())]
        write_arrays(os.path.join(folder, "state.npz"), state_leaves(converted.state))
    elif written:
        job["stateful"] = True
    for k, example in enumerate(arrays):
        write_arrays(os.path.join(folder, f"inputs_{k}.npz"), example)
    if any(x.dtype in _WIDE for x in arrays[0]):
        open(os.path.join(folder, "wide"), "w").close()
    with open(os.path.join(folder, "job.json"), "w") as file:
        json.dump(job, file)


def state_leaves(state: Mapping[str, Any]) -> list[np.ndarray]:
    return [np.asarray(x) for x in sys.modules["jax"].tree.leaves(state)]


def write_arrays(path: str, arrays: list[np.ndarray]) -> None:
    """Write arrays as `a0, a1, ...`; those of dtypes that NumPy lacks as float32."""
    widened = [x if x.dtype.isbuiltin == 1 else x.astype(np.float32) for x in arrays]
    named: dict[str, Any] = {f"a{k}": x for k, x in enumerate(widened)}
    np.savez(path, **named)


def _run(path: str, runner: str, folder: str) -> None:
    command = [sys.executable, "-I", "-c", script(runner, RUNNERS), path, folder]
    completed = subprocess.run(command, capture_output=True, text=True)
    if completed.returncode:
        ended = f" (ended by {signal.Signals(-completed.returncode).name})" if completed.returncode < 0 else ""
        _, trace, rest = completed.stderr.partition("Traceback (most recent call last)")  # not what frameworks log
        raise RuntimeError(f"the exported file does not run{ended}:\n{(trace + rest or completed.stderr)[-3000:]}")
