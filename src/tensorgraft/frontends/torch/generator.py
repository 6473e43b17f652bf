"""Random generators: the device's own state, and what a `torch.Generator` passed by a program means."""

from __future__ import annotations

from typing import Any

import torch

from tensorgraft.frontends.torch import state
from tensorgraft.frontends.torch.state import RandomState, random_state


def draw(generator: torch.Generator | None, index: int) -> Any:
    """The words (uint32 (4,)) of the next draw on a device index.

    A generator that the program passes gives one 63-bit number, from which the key is made: its state advances, and
    the same state gives the same numbers.
    """
    if generator is None:
        return random_state(index).draw()
    if state.capture is not None:
        return state.capture.draw_from(generator)
    return RandomState(seed=seed_from(generator)).words()


def seed_from(generator: torch.Generator) -> int:
    """A new seed out of a CPU generator."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
