"""The functions that files of PyTorch's name, as pickling its tensors says them; asked for when one is pickled, as that
leaves marks in PyTorch's classes."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

Rebuild = Callable[..., torch.Tensor]


@functools.cache
def parameter() -> Rebuild:
    """Takes data, `requires_grad` and hooks."""
    return _rebuilt_by(torch.nn.Parameter(torch.empty(0, device="cpu")))


@functools.cache
def parameter_with_state() -> Rebuild:
    """Takes the same, and attributes."""
    example = torch.nn.Parameter(torch.empty(0, device="cpu"))
    example.attribute = None  # type: ignore[attr-defined]
    return _rebuilt_by(example)


@functools.cache
def sparse() -> Rebuild:
    """Return a sparse tensor of a layout and its parts."""
    none = torch.zeros((1, 0), dtype=torch.int64, device="cpu")
    return _rebuilt_by(torch.sparse_coo_tensor(none, torch.empty(0, device="cpu"), (0,), check_invariants=False))


def _rebuilt_by(x: torch.Tensor) -> Rebuild:
    function: Rebuild = x.__reduce_ex__(2)[0]
    return function
