"""DLPack: exports share the memory of a tensor's array, without a copy, and foreign arrays become tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.dlpack

from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE, slot_of
from tensorgraft.frontends.torch.core.tensors import cell_of, from_array, numpy_to_cpu, to_array
from tensorgraft.frontends.torch.core.traced_values import asked_for_values
from tensorgraft.storage import in_rows


def exported(t: torch.Tensor) -> Any:
    """Return the object that exports `t` by DLPack: the array, or a CPU tensor over its memory where arrays are views.

    Raises BufferError as PyTorch does for tensors that DLPack cannot describe.
    """
    if t.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if t.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    if t.layout is not torch.strided:
        raise BufferError("Can't export tensors with layout other than torch.strided")
    if t.dtype is torch.complex32:  # backends have its parts
        return torch.view_as_complex(torch.from_dlpack(exported(torch.view_as_real(t))))
    cell = cell_of(t)
    if state.now.capture is not None:
        raise asked_for_values(t)
    xp, array = cell.backend, to_array(t)
    cell.shared = True
    if isinstance(array, torch.Tensor):
        return array
    return numpy_to_cpu(xp.to_numpy(array)) if xp.mutable else xp.materialize(array)


def export(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __dlpack__(
        self: torch.Tensor,
        *,
        stream: Any = -1,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if self.device.type != TYPE:
            return original(self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
        options: dict[str, Any] = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
        if stream not in (None, -1):
            options["stream"] = stream
        return exported(self).__dlpack__(**{name: v for name, v in options.items() if v is not None})

    return __dlpack__


def export_device(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __dlpack_device__(self: torch.Tensor) -> tuple[Any, int]:
        if self.device.type != TYPE:
            return original(self)
        return exported(self.detach()).__dlpack_device__()

    return __dlpack_device__


def to_dlpack(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(tensor: torch.Tensor) -> Any:
        return tensor.__dlpack__() if tensor.device.type == TYPE else original(tensor)

    return functools.wraps(original)(call)


def from_dlpack(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def call(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> torch.Tensor:
        if device is None or torch.device(device).type != TYPE:
            return original(ext_tensor, device=device, copy=copy)
        slot = slot_of(device)
        xp = slot.backend
        if isinstance(ext_tensor, torch.Tensor) and ext_tensor.dtype is torch.complex32:
            return torch.view_as_complex(call(torch.view_as_real(ext_tensor), device=device, copy=copy))
        if not hasattr(ext_tensor, "__dlpack__"):  # a capsule, which only PyTorch takes
            ext_tensor = original(ext_tensor)
        with xp.scope():
            array = xp.from_dlpack(ext_tensor)
            if copy:
                array = xp.copy(array)
            elif xp.mutable and xp.ensure_owned(array) is not array and not in_rows(xp, array):
                if copy is False:
                    raise ValueError(
                        "a tensor that is not row-major can be exported only by a copy, but copy=False was given"
                    )
                array = xp.copy(array)
            t = from_array(array, slot)
        cell_of(t).shared = not copy
        return t

    return functools.wraps(original)(call)
