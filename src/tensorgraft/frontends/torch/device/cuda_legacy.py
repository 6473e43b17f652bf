"""Tensor types of PyTorch before 0.4, such as `torch.cuda.FloatTensor`, and the default one."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import DeviceContext

from tensorgraft.frontends.torch.core import devices
from tensorgraft.frontends.torch.core.modes import function_modes
from tensorgraft.frontends.torch.device.cuda_translation import Patches
from tensorgraft.frontends.torch.sparse import coo

DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}
NAMES = (*DTYPES, *(f"sparse.{name}" for name in DTYPES))


class LegacyType(type):
    """The type of `torch.cuda.FloatTensor` and the others: a dtype on the device."""

    dtype: torch.dtype
    layout: torch.layout
    make: Callable[..., torch.Tensor]

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        return cls.make(*args, **kwargs).to("cuda")

    def __instancecheck__(cls, x: object) -> bool:
        if not isinstance(x, torch.Tensor) or x.device.type != devices.TYPE:
            return False
        return (x.dtype, x.layout) == (cls.dtype, cls.layout)


def install(patches: Patches) -> None:
    classes: dict[str, LegacyType] = {}
    for name, dtype in DTYPES.items():
        fields = {"dtype": dtype, "layout": torch.strided, "make": staticmethod(getattr(torch, name))}
        classes[name] = LegacyType(name, (), {**fields, "__module__": "torch.cuda"})
        patches.set(torch.cuda, name, classes[name])
        if hasattr(torch.cuda.sparse, name):
            make = staticmethod(functools.partial(coo.legacy, dtype, "cuda"))
            fields = {"dtype": dtype, "layout": torch.sparse_coo, "make": make, "__module__": "torch.cuda.sparse"}
            classes[f"sparse.{name}"] = LegacyType(name, (), fields)
            patches.set(torch.cuda.sparse, name, classes[f"sparse.{name}"])
    names = {f"torch.cuda.{name}": cls for name, cls in classes.items()}

    def legacy(t: Any) -> Any:
        """Return the class that a string names; other values unchanged."""
        return names.get(t, t) if isinstance(t, str) else t

    def type_(original: Callable[..., Any]) -> Callable[..., Any]:
        def type(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
            dtype = legacy(dtype)
            if isinstance(dtype, LegacyType):
                if dtype.layout is not self.layout:
                    raise RuntimeError(
                        f"type(): a tensor of the layout {self.layout} cannot be converted to {dtype.layout}"
                    )
                return self.to("cuda", dtype.dtype)
            if dtype is None and self.device.type == devices.TYPE:
                return original(self).replace(f"torch.{devices.TYPE}.", "torch.cuda.")
            return original(self, dtype, non_blocking, **kwargs)

        return type

    patches.wrap(torch.Tensor, "type", type_)
    _install_defaults(patches, legacy)


def _install_defaults(patches: Patches, legacy: Callable[[Any], Any]) -> None:
    """Let a default tensor type determine the device if no default device is set, or None was set again."""
    original_device, original_type = torch.set_default_device, torch.set_default_tensor_type
    context = next((mode for mode in function_modes() if isinstance(mode, DeviceContext)), None)
    default_state = threading.local()  # PyTorch has a default device for each thread, and one default type
    default_state.device = None if context is None else context.device
    on_cuda = False

    def set_default_device(device: Any) -> None:
        original_device("cuda" if device is None and on_cuda else device)
        default_state.device = device

    def set_default_tensor_type(t: Any, /) -> None:
        nonlocal on_cuda
        t = legacy(t)
        if isinstance(t, LegacyType):
            if not t.dtype.is_floating_point or t.layout is not torch.strided:
                raise TypeError("only dense floating-point types are supported as the default type")
            torch.set_default_dtype(t.dtype)
        else:
            original_type(t)
        on_cuda = isinstance(t, LegacyType)
        if getattr(default_state, "device", None) is None:
            original_device("cuda" if on_cuda else None)

    def new(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """Implement `torch.Tensor(...)` for a default type on the device."""

        def __new__(cls: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            if cls is torch.Tensor and on_cuda and not kwargs:
                return torch.empty(0, device="cuda").new(*args)
            return original(cls, *args, **kwargs)

        return __new__

    patches.callback(original_device, default_state.device)
    patches.set(torch, "set_default_device", functools.wraps(original_device)(set_default_device))
    patches.set(torch, "set_default_tensor_type", functools.wraps(original_type)(set_default_tensor_type))
    patches.wrap(torch.Tensor, "__new__", new)
