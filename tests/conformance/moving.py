"""Copies of arguments on the device: strides, offsets, aliases, lazy conjugation and `requires_grad` stay."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

Tensor = torch.Tensor


class Move:
    """Moves pytrees to a device. One object moves a tensor, and a storage, once: aliases stay aliases."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}  # with the source, which keeps its id taken
        self._storages: dict[tuple[int, torch.dtype], Tensor] = {}

    def afresh(self) -> Move:
        """One that has moved nothing yet."""
        return Move(self.device)

    def __call__(self, tree: Any) -> Any:
        return tree_map(self._leaf, tree)

    def _leaf(self, a: Any) -> Any:
        if isinstance(a, Tensor):
            if id(a) not in self._tensors:
                self._tensors[id(a)] = (a, self._tensor(a))
            return self._tensors[id(a)][1]
        if (isinstance(a, torch.device) and a.type == "cpu") or (isinstance(a, str) and a == "cpu"):
            return self.device
        return a

    def _tensor(self, t: Tensor) -> Tensor:
        if t.layout is not torch.strided or t.is_quantized:
            return t.detach().to(self.device).requires_grad_(t.requires_grad)
        plain = t.detach()
        if plain.is_neg():
            return torch._neg_view(self._strided(torch._neg_view(plain))).requires_grad_(t.requires_grad)
        if plain.is_conj():
            return self._strided(plain.conj()).conj().requires_grad_(t.requires_grad)
        return self._strided(plain).requires_grad_(t.requires_grad)

    def _strided(self, t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        key = (storage._cdata, t.dtype)
        if key not in self._storages:
            whole = torch.empty(0, dtype=t.dtype, device=t.device)
            whole.set_(storage, 0, (storage.nbytes() // t.itemsize,), (1,))
            self._storages[key] = whole.to(self.device, copy=True)
        view = self._storages[key].as_strided(t.size(), t.stride(), t.storage_offset())
        return view if view.dtype is t.dtype else view.view(t.dtype)


def double(tree: Any) -> Any:
    """The same arguments in double precision."""
    wide = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}

    def leaf(a: Any) -> Any:
        if isinstance(a, Tensor) and (a.is_floating_point() or a.is_complex()):
            return a.detach().to(wide.get(a.dtype, torch.complex128 if a.is_complex() else torch.float64))
        if isinstance(a, torch.dtype) and (a.is_floating_point or a.is_complex):
            return torch.complex128 if a.is_complex else torch.float64
        return a

    return tree_map(leaf, tree)
