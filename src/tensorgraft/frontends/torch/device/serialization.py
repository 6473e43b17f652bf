"""Saving and sending tensors of the device: `torch.save`, `torch.load`, pickle, `torch.multiprocessing`.

PyTorch's serialization moves storages through the CPU, by methods that `storages` serves; where they were is told as
`file_locations` says. Loading fills storages with bytes, which are kept as an array of the tensor's dtype from then on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing.reductions as reductions

from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.device import storages


def register_sending() -> None:
    # Between processes: a copy, since the memory of a backend cannot be shared.
    ForkingPickler.register(torch.UntypedStorage, _reduce(reductions.reduce_storage))


def rebuild(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def _rebuild_tensor(storage: Any, *args: Any) -> torch.Tensor:
        untyped = getattr(storage, "_untyped_storage", None)  # a file may say that anything is one: PyTorch refuses it
        if untyped is not None and untyped.device.type == TYPE and hasattr(untyped, "cell"):
            storages.reinterpret(untyped, storage.dtype)
        return original(storage, *args)

    return functools.wraps(original)(_rebuild_tensor)


def _reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_storage(storage: torch.UntypedStorage) -> Any:
        if storage.device.type != TYPE:
            return original(storage)
        return _from_bytes, (storages.as_bytes(storage).cpu().numpy().tobytes(), str(storage.device))

    return reduce_storage


def _from_bytes(content: bytes, device: str) -> torch.UntypedStorage:
    host = torch.UntypedStorage(len(content))
    if content:
        torch.empty(0, dtype=torch.uint8, device="cpu").set_(host).copy_(
            torch.frombuffer(bytearray(content), dtype=torch.uint8)
        )
    return host.to(device=device)
