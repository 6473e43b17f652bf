"""`tg.load`: a function that was saved, without the framework it was written in."""

from __future__ import annotations

from pathlib import Path

from tensorgraft.hub import registry
from tensorgraft.hub.recorded.function import Function


def load(directory: str | Path, *, onto: str = "numpy") -> Function:
    """What `f.save(directory)` wrote, `f` a function that `tg.graft(module, onto="numpy")` gave.

    The function takes arrays of the backend `onto`, of the shapes and dtypes that `f` was called with, and runs on it;
    nothing else is imported. Files are JSON and `.npz` (`tensorgraft.hub.recorded.function` says what is in them), and
    are checked: nothing in them is code.

    Raises:
        FileNotFoundError: where there is no saved function.
        ValueError: for one that is broken, or of another version.
        BackendNotAvailableError: for a backend unknown or not installed.
    """
    return Function.load(directory, registry.get(onto))
