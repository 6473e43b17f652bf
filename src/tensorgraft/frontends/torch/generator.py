"""Random generators: the device's own state, and what a `torch.Generator` passed by a program means."""

from __future__ import annotations

from typing import Any

import torch

from tensorgraft.frontends.torch import devices, state
from tensorgraft.frontends.torch.state import RandomState, random_state

_Generator: Any = torch._C.Generator


def draw(generator: torch.Generator | None, index: int) -> Any:
    """The words (uint32 (4,)) of the next draw on a device index.

    A generator that the program passes gives one 63-bit number, from which the key is made: its state advances, and
    the same state gives the same numbers.
    """
    if generator is None:
        return random_state(index).draw()
    if state.now.capture is not None:
        return state.now.capture.draw_from(generator)
    return RandomState(seed=seed_from(generator)).words()


def seed_from(generator: torch.Generator | None) -> int:
    """A new seed out of a CPU generator; None: PyTorch's own."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item())


class GeneratorType(type(_Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, _Generator)

    def __subclasscheck__(cls, sub: type) -> bool:
        return type.__subclasscheck__(_Generator, sub)


class Generator(_Generator, metaclass=GeneratorType):
    """`torch.Generator`. One for the device is a generator of the CPU underneath: PyTorch lets no Python device make
    its own. It has the CPU generator's state, and kernels of the device draw their keys from it."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type != devices.TYPE:
            return _Generator(device)
        self = _Generator.__new__(cls, "cpu")
        self._index = devices.slot_of(device).index
        return self

    @property
    def device(self) -> torch.device:
        return devices.slot_at(self._index).device

    def clone_state(self) -> Generator:
        copy = Generator(self.device)
        copy.set_state(self.get_state())
        return copy

    def __reduce__(self) -> Any:
        return _rebuild, (self.device, self.get_state())


def _rebuild(device: torch.device, state: torch.Tensor) -> Generator:
    made = Generator(device)
    made.set_state(state)
    return made


def install() -> None:
    """`torch.Generator(device="graft")` makes one of ours; `isinstance` with it holds for every generator."""
    torch.Generator = Generator  # type: ignore[misc]
