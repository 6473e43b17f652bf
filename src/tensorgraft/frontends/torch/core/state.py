"""The current state of the front end: the trace under way, if any, and the random state of each device."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorgraft.hub import processes

if TYPE_CHECKING:
    from tensorgraft.frontends.torch.core.active_capture import ActiveCapture
    from tensorgraft.storage import Storage


class _Thread(threading.local):
    # The capture that is being traced; kernels tell it which storages they touch. JAX traces are per thread, and so is
    # everything that a trace runs (the autograd engine included, see `autograd.py`).
    capture: ActiveCapture | None = None
    scripted: bool = False  # TorchScript is running, which replaces errors of kernels by its own:
    raised: BaseException | None = None  # the error of the kernel
    leaves: Sequence[Any] = ()  # the arguments of the compiled function that is being called
    planning: bool = False  # tensors from outside have no memory: nothing is computed, not even on the way
    computed: dict[Any, list[Any]]  # results that the host has computed for that call (`host.HostStep`)
    # replaces the results of operators that would run on the CPU, while a function is only analysed
    in_place_of_the_cpu: Callable[..., Any] | None = None
    unraised: bool | None = None  # the truth that lets a check in PyTorch's C++ pass, while a trace is in it
    decomposing: bool = False  # one of PyTorch's decompositions is running as a kernel
    # inside tensorgraft's code, which `__torch_function__` does not see: the context for functions of the program
    below: Callable[[], AbstractContextManager[None]] | None = None
    resized: bool = False  # room was made in `out=` tensors after PyTorch had taken the call: nothing refuses it now

    def __init__(self) -> None:
        self.computed = {}


now = _Thread()
rebindings = 0  # how often existing tensors have been given another geometry or storage


def count_rebinding() -> None:
    """Called before a tensor is given another geometry or storage: compiled functions then check their tensors
    again."""
    global rebindings
    rebindings += 1


def created(cell: Storage) -> Storage:
    """Tell the capture under way, if any, of a storage that was just made; gives it back."""
    if now.capture is not None:
        now.capture.created(cell)
    return cell


def touch(*cells: Storage) -> None:
    """Tell the capture under way, if any, of storages that are about to be read or written."""
    if now.capture is not None:
        now.capture.touch(cells)


@dataclass
class RandomState:
    """The random numbers of one device: draw number `offset` of the stream `seed` (Threefry, counter-based)."""

    seed: int = field(default_factory=lambda: unknown_seed())
    offset: int = 0

    def reseed(self, seed: int) -> None:
        _refuse_inside()
        self.seed, self.offset = seed & 0xFFFFFFFFFFFFFFFF, 0

    def get_state(self) -> bytes:
        """16 bytes: seed and offset."""
        offset = self.offset if now.capture is None else now.capture.mark_draws(self)
        return b"".join((n & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little") for n in (self.seed, offset))

    def set_state(self, saved: bytes) -> None:
        seed, offset = (int.from_bytes(saved[at : at + 8], "little") for at in (0, 8))
        if now.capture is None:
            self.seed, self.offset = seed, offset
        else:
            now.capture.rewind_draws(self, offset)

    def words(self) -> np.ndarray:
        """Return uint32 (4,): the seed and the offset, high word first."""
        seed = self.seed & 0xFFFFFFFFFFFFFFFF
        return np.array([seed >> 32, seed & 0xFFFFFFFF, self.offset >> 32, self.offset & 0xFFFFFFFF], dtype=np.uint32)

    def draw(self) -> Any:
        """Return the words of the next draw: a host array, or a traced one inside a capture."""
        if now.capture is not None:
            return now.capture.draw(self)
        words = self.words()
        self.offset += 1
        return words


random_states: dict[int, RandomState] = {}
_seed_of_all: int | None = None  # the last argument of `torch.manual_seed`, for devices that are used later


def random_state(index: int) -> RandomState:
    """Return the random state of a device index."""
    if index not in random_states:
        random_states[index] = RandomState() if _seed_of_all is None else RandomState(_seed_of_all)
    return random_states[index]


def _refuse_inside() -> None:
    if now.capture is not None:
        raise now.capture.reseeded("seeds the device")


def seed_all(seed: int) -> None:
    """Seed every device."""
    global _seed_of_all
    _refuse_inside()
    _seed_of_all = seed & 0xFFFFFFFFFFFFFFFF
    for generator in random_states.values():
        generator.reseed(seed)


_PYTORCHS = 67280421310721  # `default_rng_seed_val`


def unknown_seed() -> int:
    """63 bits that differ from program to program; for each process of one program the same, as of a GPU in PyTorch."""
    if processes.may_be_distributed():
        return _PYTORCHS
    return int.from_bytes(os.urandom(8), "little") >> 1
