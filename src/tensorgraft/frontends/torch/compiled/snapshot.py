"""Python state that a function may change, as it was: for calls that must leave no trace."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from tensorgraft.frontends.torch.core import state


@contextlib.contextmanager
def unchanged(objects: Iterable[Any]) -> Iterator[None]:
    """Afterwards every list, dictionary, set and attribute of these objects is what it was, and so are random states
    (Python's, NumPy's, PyTorch's, the devices'). What is in tensors is not looked at."""
    undo = [call for value in objects for call in _undo(value)]
    dice = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = {index: dataclasses.replace(one) for index, one in state.random_states.items()}
    try:
        yield
    finally:
        for call in undo:
            call()
        random.setstate(dice[0])
        np.random.set_state(dice[1])
        torch.set_rng_state(dice[2])
        for index, one in devices.items():
            state.random_states[index].seed, state.random_states[index].offset = one.seed, one.offset


def _undo(value: Any) -> Iterator[Callable[[], None]]:
    """Functions that put an object back as it is now."""
    if isinstance(value, torch.Tensor | torch.Generator):
        return
    if isinstance(value, dict):
        yield _restoring_dict(value)
    elif isinstance(value, list | deque):
        yield _restoring(value, value.extend)
    elif isinstance(value, set):
        yield _restoring(value, value.update)
    if isinstance(held := getattr(value, "__dict__", None), dict):
        yield _restoring_dict(held)
        for inner in held.values():  # attributes with a leading underscore are not all walked by their owner
            if isinstance(inner, dict):
                yield _restoring_dict(inner)


def _restoring_dict(value: dict[Any, Any]) -> Callable[[], None]:
    saved = list(value.items())

    def restore() -> None:
        now = list(value.items())
        if len(now) != len(saved) or any(
            a is not b for x, y in zip(now, saved, strict=True) for a, b in zip(x, y, strict=True)
        ):
            value.clear()
            value.update(saved)

    return restore


def _restoring(value: Any, put: Callable[[list[Any]], None]) -> Callable[[], None]:
    saved = list(value)

    def restore() -> None:
        now = list(value)
        if len(now) != len(saved) or any(a is not b for a, b in zip(now, saved, strict=True)):
            value.clear()
            put(saved)

    return restore
