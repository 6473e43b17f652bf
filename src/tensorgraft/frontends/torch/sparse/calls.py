"""Calls of operators on sparse tensors: by a kernel of ours, or redispatched to PyTorch's own for the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._dynamo.eval_frame import set_eval_frame

from tensorgraft.frontends.torch.core import devices, schema, state
from tensorgraft.frontends.torch.core.devices import TYPE

Tensor = torch.Tensor


def entry(
    op: Any, kernel: Callable[..., Any] | None, keys: torch.DispatchKeySet, on_any_device: bool = False
) -> Callable[..., Any]:
    """Return a function that calls a kernel of ours, or, without one or where it returns None, PyTorch's own for
    `keys`. Tensors have to be on one device, unless the operator works between devices (`on_any_device`)."""
    signature, redispatch = schema.signature(op), op.redispatch

    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = tensors_of(*args, *kwargs.values())
        device = next((t.device for t in tensors if t.device.type == TYPE), None) or kwargs.get("device")
        if not on_any_device:
            _check_devices(tensors)
        # PyTorch gives the number that a tensor is made of instead of the tensor
        args = tuple(
            _as_tensor(tensors[0], a) if signature.types[n] == "Tensor" and isinstance(a, int | float | complex) else a
            for n, a in zip(signature.positional, args, strict=False)
        )
        with current_device(device), not_traced_by_dynamo():
            if (capture := state.now.capture) is not None and capture.sparse is not None:
                capture.sparse.note(tensors)
            result = None if kernel is None else kernel(*args, **kwargs)
            return redispatch(keys, *args, **kwargs) if result is None else result

    return call


def tensors_of(*args: Any) -> list[Tensor]:
    return [t for a in args for t in (a if isinstance(a, list | tuple) else (a,)) if isinstance(t, Tensor)]


def _check_devices(tensors: list[Tensor]) -> None:
    """Raises RuntimeError where sparse tensors meet others from elsewhere; numbers may be the CPU's."""
    devices = {t.device for t in tensors if t.dim() or t.layout is not torch.strided or t.device.type != "cpu"}
    if len(devices) > 1:
        first, other = sorted(map(str, devices))[:2]
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {first} and {other}!"
        )


def _as_tensor(like: Tensor, number: complex) -> Tensor:
    """Return a tensor on the CPU that promotes with `like` as the number does. It has all of the number's digits if
    `like` has dimensions."""
    dtype = torch.result_type(like, number)
    if like.dim() and dtype.is_complex == like.is_complex() and dtype.is_floating_point == like.is_floating_point():
        integer_dtype = dtype if dtype is torch.bool else torch.int64
        dtype = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else integer_dtype
    return torch.tensor(number, dtype=dtype, device="cpu")


@contextmanager
def not_traced_by_dynamo() -> Iterator[None]:
    """Let no function that a kernel calls be compiled: Dynamo leaves functions of sparse tensors to Python, and would
    compile each one that is called below."""
    before = set_eval_frame(None)
    try:
        yield
    finally:
        set_eval_frame(before)


@contextmanager
def current_device(device: torch.device | None) -> Iterator[None]:
    """Make the device the current one: PyTorch creates a sparse tensor from empty ones there, and asserts that others
    are on the same device."""
    before, index = devices.current_index(), devices.slot_of(device).index
    if before == index:
        yield
        return
    devices.set_current_index(index)
    try:
        yield
    finally:
        devices.set_current_index(before)
