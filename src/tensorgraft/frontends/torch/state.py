"""What the front end is doing now: the trace under way, if any, and the random state of each device."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tensorgraft.frontends.torch.capture import Capture

# The capture that is being traced; kernels tell it which storages they touch. One at a time: JAX traces are per
# thread, and so is everything that a trace runs (the autograd engine included, see `autograd.py`).
capture: Capture | None = None


@dataclass
class RandomState:
    """The random numbers of one device: draw number `offset` of the stream `seed` (Threefry, counter-based)."""

    seed: int = field(default_factory=lambda: time.time_ns() & 0x7FFFFFFFFFFFFFFF)
    offset: int = 0

    def words(self) -> np.ndarray:
        """uint32 (4,): the seed and the offset, high word first."""
        seed = self.seed & 0xFFFFFFFFFFFFFFFF
        return np.array([seed >> 32, seed & 0xFFFFFFFF, self.offset >> 32, self.offset & 0xFFFFFFFF], dtype=np.uint32)

    def draw(self) -> Any:
        """The words of the next draw: a host array, or a traced one inside a capture."""
        if capture is not None:
            return capture.draw(self)
        words = self.words()
        self.offset += 1
        return words


random_states: dict[int, RandomState] = {}


def random_state(index: int) -> RandomState:
    """The random state of a device index."""
    if index not in random_states:
        random_states[index] = RandomState()
    return random_states[index]
