"""`tg.load`: a function that was saved, without the framework it was written in."""

from __future__ import annotations

from pathlib import Path

from tensorgraft.hub import registry
from tensorgraft.hub.recorded.function import Function


def load(directory: str | Path, *, onto: str = "numpy") -> Function:
    """Load a function that was saved by `f.save(directory)`, where `f` is the result of `tg.graft(module,
    onto="numpy")`.

    The function takes arrays of the backend `onto`, of the shapes and dtypes that `f` was called with, and runs on it;
    nothing else is imported. Files are JSON and `.npz` (described in `tensorgraft.hub.recorded.function`), and are
    checked: they contain no code.

    Raises:
        FileNotFoundError: if there is no saved function.
        ValueError: for a broken file, or one of another version.
        BackendNotAvailableError: for a backend unknown or not installed.

    >>> import tempfile, numpy as np, tensorgraft as tg, torch
    >>> f = tg.graft(torch.nn.ReLU(), onto="numpy")
    >>> _ = f(np.ones(2, np.float32))  # what it was called with is what is saved
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     f.save(directory)
    ...     tg.load(directory)(np.asarray([-1, 1], np.float32)).tolist()
    [0.0, 1.0]
    """
    return Function.load(directory, registry.get(onto))
