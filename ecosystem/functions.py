"""Programs that are functions: of JAX, onto other frameworks; of any array of the standard, on other backends.

`python -m ecosystem.functions jax diffrax_solve numpy` prints a line of JSON for each case: a process for each program,
since some set the precision of JAX.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import optree

from ecosystem.compare import apart, tolerance
from ecosystem.outcome import Outcome

PROGRAMS = Path(__file__).parent / "programs"
LIMIT = 1200  # seconds


def names(area: str) -> list[str]:
    return sorted(path.stem for path in (PROGRAMS / area).glob("*.py"))


def run(area: str, name: str, backend: str, cases: Iterable[str] = ()) -> list[Outcome]:
    """Each case of the program (those named, else all) on `backend`, in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "ecosystem.functions", area, name, backend, *cases]
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "SCIPY_ARRAY_API": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return [Outcome(area, name, backend, error=f"more than {LIMIT} s")]
    outcomes = [Outcome(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:] or [f"exit code {done.returncode}"]
        outcomes.append(Outcome(area, name, backend, error=last[0]))
    return outcomes


def load(area: str, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PROGRAMS / area / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    start = time.process_time()
    result = _plain(function(*arguments))
    return result, time.process_time() - start


def _plain(result: Any) -> Any:
    """Arrays of any framework, and keys of JAX, as NumPy's."""
    jax = sys.modules.get("jax")
    if jax is not None:
        result = jax.tree_util.tree_map(lambda a: jax.random.key_data(a) if _is_key(jax, a) else a, result)
        leaves = jax.tree_util.tree_leaves(result)
    else:
        leaves = optree.tree_leaves(result)
    return [np.asarray(leaf.detach() if hasattr(leaf, "detach") else leaf) for leaf in leaves]


def _is_key(jax: ModuleType, a: Any) -> bool:
    return isinstance(a, jax.Array) and jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key)


def _jax_case(function: Callable[..., Any], arguments: tuple[Any, ...], backend: str) -> tuple[Any, ...]:
    import jax

    import tensorgraft as tg

    want, native = _timed(jax.jit(function), *arguments)  # eagerly some libraries write what they are given
    got, seconds = _timed(tg.graft(function, onto=backend), *arguments)
    return want, native, got, seconds


def _array_case(function: Callable[..., Any], arguments: tuple[Any, ...], backend: str) -> tuple[Any, ...]:
    import tensorgraft as tg
    import tensorgraft.array_api as xp

    tg.set_default_device(backend)
    want, native = _timed(function, *arguments)
    arrays = tuple(xp.asarray(a, copy=True) if isinstance(a, np.ndarray) else a for a in arguments)
    result = function(*arrays)
    for leaf in optree.tree_leaves(result):
        if not isinstance(leaf, (xp.Array, int, float, complex)):
            raise TypeError(f"the result is a {type(leaf).__qualname__}, not an array of {backend}")
    got, seconds = _timed(function, *arrays)
    return want, native, got, seconds


def main(area: str, name: str, backend: str, *chosen: str) -> None:
    run_case = {"jax": _jax_case, "arrays": _array_case}[area]
    for case, (function, arguments) in load(area, name).cases().items():
        if chosen and case not in chosen:
            continue
        outcome = Outcome(area, f"{name}: {case}", backend)
        try:
            want, outcome.native, got, outcome.seconds = run_case(function, arguments, backend)
            outcome.apart, outcome.tolerance = apart(want, got), tolerance(want)
        except Exception as error:
            lines = str(error).splitlines()
            outcome.error = f"{type(error).__name__}: {lines[0] if lines else ''}"
        print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
