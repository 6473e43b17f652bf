"""`tensorgraft bench`: one operation of the Array API on several backends, eagerly and compiled."""

from __future__ import annotations

import inspect
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from tensorgraft.errors import BackendNotAvailableError
from tensorgraft.hub import registry, tiers

USAGE_ERROR = 2
_SECONDS = 0.2  # the duration of one burst


def bench(name: str, shape: Sequence[int], on: Sequence[str], dtype: str, repeat: int, out: Path | None) -> int:
    """Print the table; returns 0, or 2 for wrong usage."""
    console = Console(stderr=out == Path("-"))
    try:
        with tiers.eager("compiled"):  # backends are timed, not their cold tiers
            rows = [_measured(name, tuple(shape), backend, dtype, repeat) for backend in on]
    except (BackendNotAvailableError, ValueError, TypeError) as error:
        console.print(f"tensorgraft: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return USAGE_ERROR
    table = Table(
        "backend",
        *(Column(c, justify="right") for c in ("eager", "compiled", "spread", f"/ {on[0]}", "GFLOP/s")),
        title=f"{name} of {dtype} {'x'.join(map(str, shape))}",
    )
    for row in rows:
        fastest = min(v for v in (row["eager"], row["compiled"]) if v is not None)
        reference = min(v for v in (rows[0]["eager"], rows[0]["compiled"]) if v is not None)
        table.add_row(
            row["backend"],
            f"{row['eager'] * 1e6:.1f} us",
            "" if row["compiled"] is None else f"{row['compiled'] * 1e6:.1f} us",
            f"{row['spread'] * 1e6:.1f} us",
            f"{fastest / reference:.2f}",
            "" if name != "matmul" else f"{2 * np.prod(shape, dtype=float) / fastest / 1e9:.1f}",
        )
    console.print(table)
    if out is not None:
        text = json.dumps({"operation": name, "shape": list(shape), "dtype": dtype, "backends": rows}, indent=1)
        print(text) if out == Path("-") else out.write_text(text)
    return 0


def _measured(name: str, shape: tuple[int, ...], backend: str, dtype: str, repeat: int) -> dict[str, Any]:
    import tensorgraft as tg
    import tensorgraft.array_api as xp

    registry.lookup(registry.parse(backend)[0])
    fn = getattr(xp, name, None)
    if not inspect.isfunction(fn):
        raise ValueError(f"the Array API standard has no function {name!r}")
    rng = np.random.default_rng(0)

    def operand(s: tuple[int, ...]) -> Any:
        values = rng.standard_normal(s) if dtype.startswith(("f", "b", "c")) else rng.integers(1, 9, s)
        return xp.astype(xp.asarray(values, device=backend), np.dtype(dtype))

    operands = [operand(s) for s in _shapes(name, fn, shape)]
    compiled = tg.jit(fn) if registry.get(backend).traces else None
    eager, noise = _time(lambda: fn(*operands), backend, repeat)
    fast = None if compiled is None else _time(lambda: compiled(*operands), backend, repeat)
    return {
        "backend": backend,
        "eager": eager,
        "compiled": None if fast is None else fast[0],
        "spread": noise if fast is None else fast[1],
    }


def _shapes(name: str, fn: Callable[..., Any], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    if name == "matmul":
        if len(shape) != 3:
            raise ValueError(f"matmul takes --shape rows,inner,columns, got {','.join(map(str, shape))}")
        m, k, n = shape
        return [(m, k), (k, n)]
    parameters = inspect.signature(fn).parameters.values()
    count = sum(p.kind is p.POSITIONAL_ONLY and p.default is p.empty for p in parameters)
    if not count:
        raise ValueError(f"{name} takes no arrays: bench measures functions of arrays")
    return [shape] * count


def _time(call: Callable[[], Any], backend: str, repeat: int) -> tuple[float, float]:
    """Return (median, spread between the quartiles) of the seconds of a call; the backend is waited for after each
    burst."""
    xp = registry.get(backend)
    call()
    xp.synchronize()
    start = time.perf_counter()
    call()
    xp.synchronize()
    call_seconds = max(time.perf_counter() - start, 1e-7)
    n = max(1, int(_SECONDS / repeat / call_seconds))
    seconds = []
    for _ in range(max(repeat, 2)):
        start = time.perf_counter()
        for _ in range(n):
            call()
        xp.synchronize()
        seconds.append((time.perf_counter() - start) / n)
    low, middle, high = statistics.quantiles(seconds, n=4)
    return middle, high - low
