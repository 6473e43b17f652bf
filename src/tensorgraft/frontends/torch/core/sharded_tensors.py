"""Tensors of the device that are spread over a mesh.

A placement is the storage's: every tensor on it, views and tied parameters too, is where the storage's pieces are.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.tensors import cell_of, to_array
from tensorgraft.hub.placement import Placement
from tensorgraft.storage import Storage, is_dense, pin

Tensor = torch.Tensor

moves = 0  # how often placements of existing storages have changed, which compiled functions depend on


def retrace_functions() -> None:
    """Functions of `tg.jit` are traced again."""
    global moves
    moves += 1


def fills(t: Tensor) -> bool:
    """Return True if a tensor covers all of its storage, each element once."""
    return (
        not t.storage_offset()
        and is_dense(tuple(t.size()), t.stride())
        and t.untyped_storage().nbytes() == t.numel() * t.element_size()
    )


def place(t: Tensor, placement: Placement) -> None:
    """Spread the storage of a tensor, which fills it, and keep it so: writes do not move it. Of a tensor of the device
    `meta` it is noted where it would lie."""
    if t.device.type == "meta":
        t.untyped_storage().placement = placement.permuted(by_strides(t))  # type: ignore[attr-defined]
        return
    cell = cell_of(t)
    if t.dtype is torch.complex32:
        raise TypeError(f"tensors of {t.dtype} cannot be placed on a mesh: place their parts, torch.view_as_real(x)")
    state.touch(cell)
    xp = cell.backend
    if xp.compound:  # codes and scales have the tensor's placement
        pin(cell, cell.array, placement)
        return
    order = by_strides(t)
    with xp.scope():
        array = cell.array
        rows = tuple(t.shape[d] for d in order)
        if xp.shape(array) != rows or xp.dtype_of(array) != xp.dtype_of(to_array(t)):
            array = to_array(t.detach().permute(order))
    pin(cell, array, placement.permuted(order))


def by_strides(t: Tensor) -> list[int]:
    """Return the dimensions in the order in which they lie."""
    strides = t.stride()
    return sorted(range(t.dim()), key=lambda d: (-strides[d], d))


def pinned(t: Tensor) -> Placement | None:
    """Return the placement that writes do not change, of a tensor that fills its storage."""
    storage = t.untyped_storage()
    placement: Placement | None = getattr(getattr(storage, "cell", storage), "placement", None)
    if placement is None or not fills(t):
        return None
    order = by_strides(t)
    if len(placement.spec) != len(order):
        return None
    return placement.permuted([order.index(d) for d in range(len(order))])


def inherit_placement(new: Tensor, like: Tensor) -> None:
    """Give a new tensor the placement of one of its shape."""
    cell: Storage | None = getattr(like.untyped_storage(), "cell", None) if like.device.type == TYPE else None
    if cell is None or cell.placement is None or new.size() != like.size() or new.device != like.device:
        return
    placement = pinned(like)
    if placement is not None and fills(new):
        place(new, placement)


class Follow:
    """A hook of a parameter that gives its gradient the parameter's placement."""

    def __init__(self, parameter: Tensor) -> None:
        self._parameter = weakref.ref(parameter)

    def __call__(self, gradient: Tensor) -> None:
        like = self._parameter()
        if like is not None and gradient.device.type == TYPE and gradient.layout == torch.strided and fills(gradient):
            inherit_placement(gradient, like)


def hook(parameter: Tensor) -> None:
    """Let the gradients of a parameter lie as it does, from now on."""
    hooks = parameter._backward_hooks or {}
    if parameter.requires_grad and not any(isinstance(h, Follow) for h in hooks.values()):
        parameter.register_hook(Follow(parameter))


# ---- what PyTorch makes of a parameter (`torch_entry/patches`) -------------------------------------------------------


def copying(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap `copy.deepcopy` of a parameter so that the copy keeps the sharding; PyTorch copies no hooks."""

    @functools.wraps(original)
    def deepcopy(self: Tensor, memo: dict[int, Any]) -> Tensor:
        new = original(self, memo)
        inherit_placement(new, self)
        if self._backward_hooks and any(isinstance(h, Follow) for h in self._backward_hooks.values()):
            hook(new)
        return new

    return deepcopy


def loading(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap the function that makes an optimizer's state from a state dict: it gets the placement of its parameter."""

    @functools.wraps(original)
    def process(param: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        new = original(param, value, *args, **kwargs)
        inherit_placement(new, param)
        return new

    return process
