"""`tensorgraft run-model`: the model in a file, called on a backend."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from tensorgraft.cli.programs import example_of

USAGE_ERROR = 2


def run_model(path: Path, *, on: str, inputs: Sequence[str], out: Path | None, seed: int | None) -> int:
    """Return the exit status: 0, 1 if the model cannot be run, 2 for wrong usage. `out`: the file of the results."""
    import numpy as np

    import tensorgraft as tg

    console = Console(file=sys.stderr)
    try:
        if not inputs:
            raise ValueError("no inputs: pass --input x.npy, or --input NAME=SHAPE[:DTYPE] for random numbers")
        args, kwargs = example_of(None, str(path), list(inputs))
        with console.status(f"reading {path}"):
            model = tg.graft(path, onto=on)
    except (ValueError, TypeError, ImportError, FileNotFoundError, NotImplementedError) as error:
        return _refused(error, USAGE_ERROR)
    if seed is not None:
        kwargs["seed"] = seed
    start = time.perf_counter()
    try:
        with console.status(f"running on {on}"):
            results = _named(model(*(_native(x, on) for x in args), **{k: _native(x, on) for k, x in kwargs.items()}))
    except (ValueError, TypeError, IndexError, NotImplementedError, RuntimeError) as error:
        return _refused(error, 1)
    for name, x in results.items():
        typer.echo(f"{name}: {x.dtype}{x.shape} {_shown(x)}")
    typer.echo(f"{time.perf_counter() - start:.2f} s on {on}", err=True)
    if out is not None:
        np.savez(out, **results)
        typer.echo(f"written: {out}")
    return 0


def _native(x: Any, on: str) -> Any:
    """Return an array as users of the backend's framework have it."""
    if not hasattr(x, "dtype") or on != "torch":
        return x
    import torch

    return torch.from_numpy(x)


def _named(results: Any) -> dict[str, Any]:
    """Return results by name, or number, on the host."""
    import numpy as np

    if not isinstance(results, dict):
        results = dict(enumerate(results)) if isinstance(results, tuple | list) else {"result": results}
    return {str(k): np.asarray(x.detach().cpu() if hasattr(x, "detach") else x) for k, x in results.items()}


def _shown(x: Any) -> str:
    """Return the first elements of an array."""
    first = x.ravel()[:6]
    values = ", ".join(f"{v:.6g}" if first.dtype.kind == "f" else str(v) for v in first.tolist())
    return f"[{values}{', ...' if x.size > 6 else ''}]"


def _refused(error: Exception, status: int) -> int:
    message = "\n".join([str(error), *getattr(error, "__notes__", ())])
    typer.echo(f"tensorgraft run-model: {message}", err=True)
    return status
