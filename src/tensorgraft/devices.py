"""Devices and backend arrays, from the user's side.

A device is a `torch.device` (type `graft`), which the Array API front end takes, too; PyTorch is imported on first use.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tensorgraft.hub import registry
from tensorgraft.storage import in_rows

if TYPE_CHECKING:
    import torch

    from tensorgraft.frontends.torch.core.devices import Slot


def device(name: str) -> torch.device:
    """Return the `torch.device` of a backend: `"jax"`, `"numpy"`, `"jax:1"`, `"jax:gpu:0"`.

    Raises BackendNotAvailableError, which lists what is installed, for a backend unknown or not installed; ValueError
    for an index that the backend does not have.

    >>> import tensorgraft as tg, torch
    >>> torch.ones(2, device=tg.device("numpy")).tolist()
    [1.0, 1.0]
    """
    registry.lookup(registry.parse(name)[0])
    from tensorgraft.frontends.torch.core import devices

    return devices.slot_named(name).device


def set_default_device(name: str) -> None:
    """Make this backend the default: of `torch.device("graft")`, without an index, in factory functions, and of arrays
    that `tensorgraft.array_api` makes without `device=`. Needs no PyTorch.

    Raises BackendNotAvailableError, which lists what is installed, for a backend unknown or not installed; ValueError
    for an index that the backend does not have.
    """
    registry.get(name)  # raises for an index that the backend does not have
    registry.set_default(name)
    front_end = sys.modules.get("tensorgraft.frontends.torch.core.devices")
    if front_end is not None:
        front_end.follow_default()


def to_backend_array(t: torch.Tensor) -> Any:
    """Return the array inside a tensor on the device, as the tensor sees it (`jax.Array`, `numpy.ndarray`).

    Its shape and dtype are the tensor's. On a backend with mutable arrays it shares the tensor's memory; on others it
    is the value as of now. Raises TypeError for a tensor that is on no device of ours, or of complex32.

    >>> import tensorgraft as tg, torch
    >>> tg.to_backend_array(torch.ones(2, device=tg.device("numpy")))
    array([1., 1.], dtype=float32)
    """
    from tensorgraft.frontends.torch.core import tensors

    cell = tensors.cell_of(t)
    tensors.foreign_dtype(t.dtype)
    cell.shared = True
    return cell.backend.materialize(tensors.to_array(t))


def from_backend_array(a: Any) -> torch.Tensor:
    """Return a tensor around an array of an installed backend, on that backend's device, without a copy.

    A NumPy array is shared: writes to the tensor change it (one that cannot be written is copied). Raises TypeError
    for what is no array of a backend or of a dtype that PyTorch lacks, ValueError for a NumPy array that is not
    row-major.

    >>> import numpy as np, tensorgraft as tg
    >>> array = np.zeros(2)
    >>> tg.from_backend_array(array).add_(1).device == tg.device("numpy"), array.tolist()
    (True, [1.0, 1.0])
    """
    from tensorgraft.frontends.torch.core import devices, tensors

    slot = _slot_of(a, devices.numbered())
    if slot is None:
        raise TypeError(f"{type(a).__module__}.{type(a).__qualname__} is not an array of an installed backend")
    xp = slot.backend
    if xp.dtype_of(a) not in tensors.FROM_NUMPY:
        raise TypeError(f"PyTorch has no tensors of {a.dtype}")
    with xp.scope():
        if xp.mutable and not in_rows(xp, a):
            raise ValueError(
                "from_backend_array shares the memory of the array, which must be row-major, but the array of"
                f" shape {xp.shape(a)} is not. Make a copy with numpy.ascontiguousarray, or with `.contiguous()`"
                " for a tensor."
            )
        if xp.mutable and xp.memory(a) is None:  # a scalar, or the memory of something immutable
            a = xp.copy(a)
        elif not xp.mutable:
            a = xp.ensure_owned(a)
        t = tensors.from_array(a, slot)
    tensors.cell_of(t).shared = True
    return t


def _slot_of(a: Any, slots: list[Slot]) -> Slot | None:
    """Return the device that an array is on: of several of one backend, the one that the array names."""
    package = type(a).__module__.partition(".")[0]
    candidates = [s for s in slots if package in (s.name.partition(":")[0], "jaxlib") and s.backend.is_array(a)]
    placed = getattr(a, "devices", None)
    if callable(placed):
        devices = placed()
        candidates = [s for s in candidates if getattr(s.backend, "device", None) in devices] or candidates
    return candidates[0] if candidates else None
