"""Estimates to a tolerance: more products until the standard error is small enough."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np

from tensorgraft.errors import TracedValueError
from tensorgraft.operators.estimators.hutchinson import GrowingEstimator, Pair


def grow_until(method: GrowingEstimator, rtol: float, most: int, progress: bool) -> tuple[Pair, bool]:
    """Increase the number of products of a method by half, until `standard_error <= rtol * |value|` (for diagonals in
    the 2-norm), or `most` products are made. Returns the estimate, and whether the tolerance is met."""
    method.adaptive = True
    k = min(method.first, most)
    with _progress_bar(progress, most) as show:
        while True:
            method.grow(k)
            value, error = method.estimate()
            if value._cell.backend.is_traced(value._cell.array):
                raise TracedValueError(
                    "the number of products of an estimate to a tolerance (rtol=) depends on values, which are"
                    " unknown in a program that is being traced.\n"
                    "Pass a budget inside tg.jit: k=100."
                )
            size, error_size = (float(np.linalg.norm(np.atleast_1d(np.asarray(x)))) for x in (value, error))
            show(k, size, error_size)
            # a single sample has no spread; an operator that is zero has none either, and is done
            if error_size <= rtol * size and not np.isnan(error_size):
                return (value, error), True
            if k >= most:
                return (value, error), False
            k = min(most, k + max(k // 2, 2))


@contextlib.contextmanager
def _progress_bar(enabled: bool, most: int) -> Iterator[Callable[[int, float, float], None]]:
    """A context with a function that updates a progress bar of Rich (or does nothing)."""
    if not enabled:
        yield lambda k, size, error_size: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} products"),
               TextColumn("{task.fields[error]}"), TimeElapsedColumn())  # fmt: skip
    with Progress(*columns) as bar:
        task = bar.add_task("estimating", total=most, error="")

        def show(k: int, size: float, error_size: float) -> None:
            bar.update(task, completed=k, error=f"relative error about {error_size / size if size else 0.0:.1e}")

        yield show
