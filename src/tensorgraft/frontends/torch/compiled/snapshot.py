"""Snapshots of Python state that a function may change, for calls whose changes are undone."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import is_
from typing import Any

import torch

from tensorgraft.frontends.torch.core import state
from tensorgraft.importing import random_numbers_kept


@contextlib.contextmanager
def unchanged(objects: Iterable[Any]) -> Iterator[None]:
    """A context after which every list, dictionary, set and attribute of these objects is restored, and random states
    are, too (Python's, NumPy's, PyTorch's, the devices'). Values of tensors are not restored."""
    undo = [call for value in objects for call in _undo(value)]
    of_torch = torch.get_rng_state()
    devices = {index: dataclasses.replace(random_state) for index, random_state in state.random_states.items()}
    try:
        with random_numbers_kept():
            yield
    finally:
        for call in undo:
            call()
        torch.set_rng_state(of_torch)
        for index, random_state in devices.items():
            state.random_states[index].seed, state.random_states[index].offset = random_state.seed, random_state.offset


def _undo(value: Any) -> Iterator[Callable[[], None]]:
    """Functions that put an object back as it is now."""
    if isinstance(value, torch.Tensor | torch.Generator):
        return
    if isinstance(value, dict | list | deque | set):
        yield _restoring(value)
    if isinstance(attributes := getattr(value, "__dict__", None), dict):
        yield _restoring(attributes)
        for inner in attributes.values():  # attributes with a leading underscore are not all walked by their owner
            if isinstance(inner, dict):
                yield _restoring(inner)


def _restoring(value: Any) -> Callable[[], None]:
    def contents() -> list[Any]:
        return [*value, *value.values()] if isinstance(value, dict) else list(value)

    before, saved = contents(), dict(value) if isinstance(value, dict) else list(value)

    def restore() -> None:
        contents_after = contents()
        if len(contents_after) != len(before) or not all(map(is_, contents_after, before)):
            value.clear()
            value.extend(saved) if isinstance(value, list | deque) else value.update(saved)

    return restore
