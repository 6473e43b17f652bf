"""Random numbers: the state of a device, and the meaning of a `torch.Generator` of the program."""

from __future__ import annotations

from typing import Any

import torch

from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.state import RandomState, random_state


def draw(generator: torch.Generator | None, index: int) -> Any:
    """Return the words (uint32 (4,)) of the next draw on a device index.

    A generator that the program passes gives one 63-bit number, from which the key is made: its state advances, and
    the same state gives the same numbers.
    """
    if generator is None:
        return random_state(index).draw()
    if state.now.capture is not None:
        return state.now.capture.draw_from(generator)
    return RandomState(seed=seed_from(generator)).words()


def seed_from(generator: torch.Generator | None) -> int:
    """Return a new seed drawn from a CPU generator (None: PyTorch's default generator)."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item())


def rebuild(device: torch.device, state: torch.Tensor) -> torch.Generator:
    """Return the generator of the device that was pickled in this state."""
    generator = torch.Generator(device)
    generator.set_state(state)
    return generator
