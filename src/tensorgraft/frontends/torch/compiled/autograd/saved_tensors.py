"""Tensors that autograd's graph has saved, and the nodes of a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.frontends.torch.core import codes
from tensorgraft.frontends.torch.core.metadata import Metadata
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.hub.array import Array
from tensorgraft.storage import Storage

Tensor = torch.Tensor


@dataclass
class Residual:
    """A tensor saved by autograd's graph, as keys of residuals and its metadata."""

    keys: tuple[int, ...]  # keys of its residuals; a quantised tensor has several
    metadata: Metadata
    conj: bool
    neg: bool

    def on(self, cell: Storage) -> Tensor:
        t = self.metadata.on(cell)
        t = torch.conj(t) if self.conj else t
        return torch.ops.aten._neg_view(t) if self.neg else t


class Saved:
    """A tensor outside, or an alias of it, whose memory the graph has saved. The backward pass reads its current
    values, so it sees writes through `.data`; other writes raise PyTorch's error."""

    def __init__(self, t: Tensor, keys: tuple[int, ...]) -> None:
        self.t, self.version, self._keys = t, t._version, keys
        self._geometry = t.dtype, t.size(), t.stride(), t.storage_offset()

    def put(self, residuals: list[Array]) -> None:
        """Put its current arrays into the residuals. Raises RuntimeError if it was modified in place."""
        t = self.t
        if t._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation:"
                f" a tensor of shape {tuple(t.shape)} saved by a compiled function is at version {t._version};"
                f" expected version {self.version} instead"
            )
        if (t.dtype, t.size(), t.stride(), t.storage_offset()) != self._geometry:
            raise RuntimeError(
                "a tensor that a compiled function has saved for its backward pass, of shape"
                f" {tuple(self._geometry[1])} and {self._geometry[0]}, has changed its shape, dtype or layout:"
                f" {tuple(t.shape)}, {t.dtype}"
            )
        for key, cell in zip(self._keys, codes.split_quantized([cell_of(t)]), strict=True):
            residuals[key] = cell.array


def saved_of_node(node: Any, name: str) -> list[tuple[Any, Tensor]]:
    """Return the saved tensors of a node, as autograd holds them and themselves; none for one in a checkpoint. Raises
    PyTorch's RuntimeError where one was written since, or was freed; RunsUncompiled for what hooks have packed.
    """
    raw = getattr(node, name)
    raw = list(raw) if isinstance(raw, list | tuple) else [raw]
    hooks = {saved.unpack_hook for saved in raw} - {None}
    if any(hook.__module__ == "torch.utils.checkpoint" for hook in hooks):
        return []
    if hooks:
        raise RunsUncompiled("saves tensors through saved_tensors_hooks for a backward pass outside")
    values = getattr(node, "saved_tensors" if name == "_raw_saved_tensors" else name.removeprefix("_raw"))
    values = values if isinstance(values, list | tuple) else [values]
    return [(saved, value) for saved, value in zip(raw, values, strict=True) if value is not None]


def nodes(roots: Sequence[Tensor]) -> Iterator[Any]:
    """Yield the nodes of the autograd graph of tensors."""
    return nodes_from([t.grad_fn for t in roots])


def nodes_from(stack: list[Any]) -> Iterator[Any]:
    """Yield the nodes of autograd's graph from these on, each once; None is no node."""
    seen_nodes = set()
    while stack:
        node = stack.pop()
        if node is None or node in seen_nodes:
            continue
        seen_nodes.add(node)
        yield node
        stack.extend(next_nodes(node))


def next_nodes(node: Any) -> list[Any]:
    return [next_node for next_node, _ in node.next_functions]


class Parts(NamedTuple):
    """The parts of a graph that have no node in common, other than leaves. A backward pass through one keeps the saved
    tensors of the others."""

    of_roots: list[int]  # for each tensor at which the graph begins, the number of its part
    saving: set[int]  # parts with saved tensors
    residuals: dict[int, set[int]]  # {part: keys of residuals that no other part has saved}


def separate_parts(roots: Sequence[Tensor], saving: dict[Any, set[int]]) -> Parts | None:
    """Return the unconnected parts of the autograd graph of tensors, or None if there is only one. `saving`: nodes with
    saved tensors, and the keys of their residuals."""
    numbers = list(range(len(roots)))
    reached: dict[Any, int] = {}

    def number(i: int) -> int:
        while numbers[i] != i:
            i = numbers[i]
        return i

    for i, root in enumerate(roots):
        stack = [root.grad_fn]
        while stack:
            node = stack.pop()
            if node is None or getattr(node, "variable", None) is not None:
                continue
            if node in reached:
                a, b = sorted((number(i), number(reached[node])))
                numbers[b] = a
                continue
            reached[node] = i
            stack.extend(next_nodes(node))
    of_roots = [number(i) for i in range(len(roots))]
    if not any(of_roots):
        return None
    by_part: dict[int, set[int]] = {}
    for node, keys in saving.items():
        by_part.setdefault(number(reached[node]), set()).update(keys)
    times = Counter(key for keys in by_part.values() for key in keys)
    own_keys = {part: {key for key in keys if times[key] == 1} for part, keys in by_part.items()}
    return Parts(of_roots, {*by_part}, own_keys)
