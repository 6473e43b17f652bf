"""`torch.distributed.checkpoint` of tensors that are placed over a mesh: each piece is saved separately.

Such a tensor is a plain `torch.Tensor`, for which PyTorch would plan one item: all of it, on the host. Here it has an
item for each piece that this process holds; what several processes hold, PyTorch's planner writes once. A piece is
brought to the host when it is written, and one that has been read goes to the devices that have it: the whole tensor
is nowhere. Which pieces a checkpoint has and which a tensor takes need not be the same; that is PyTorch's resharding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import distributed

from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.sharded_tensors import by_strides, fills
from tensorgraft.frontends.torch.core.tensors import cell_of, cpu_to_numpy, numpy_to_cpu, to_array
from tensorgraft.hub import processes

Tensor = torch.Tensor
Offset = tuple[int, ...]


class HeldPieces:
    """The pieces of a tensor that this process holds, by their offsets in it."""

    def __init__(self, t: Tensor) -> None:
        self._cell, self._order = cell_of(t), by_strides(t)
        xp = self._cell.backend
        with xp.scope():
            self._array = to_array(t.detach().permute(self._order))  # axes in the order of memory
            self._pieces_at = {self._of_tensor(at): piece for at, piece in xp.pieces(self._array).items()}

    def _of_tensor(self, by_axis: Offset) -> Offset:
        return tuple(by_axis[self._order.index(d)] for d in range(len(by_axis)))

    def sizes(self) -> dict[Offset, torch.Size]:
        shape = self._cell.backend.shape
        return {at: torch.Size(self._of_tensor(shape(piece))) for at, piece in self._pieces_at.items()}

    def get(self, offset: Offset) -> Tensor:
        """Return a copy of a piece, on the CPU."""
        xp = self._cell.backend
        with xp.scope():
            host = numpy_to_cpu(np.array(xp.to_numpy(self._pieces_at[offset]), order="C"))
        return host.permute([self._order.index(d) for d in range(host.dim())]).contiguous()

    def put(self, offset: Offset, piece: Tensor) -> None:
        """Make a CPU tensor that is not written any more a piece."""
        xp = self._cell.backend
        with xp.scope():
            host = np.asarray(cpu_to_numpy(piece.permute(self._order)), order="C")
            self._cell.array = xp.with_piece(self._array, tuple(offset[d] for d in self._order), host)


class StagedPieces:
    """Pieces copied to the host, of a tensor that the program continues to write."""

    def __init__(self, pieces: HeldPieces) -> None:
        self._sizes = pieces.sizes()
        self._pieces_at = {at: pieces.get(at) for at in self._sizes}

    def sizes(self) -> dict[Offset, torch.Size]:
        return self._sizes

    def get(self, offset: Offset) -> Tensor:
        return self._pieces_at[offset]


def pieces_of(x: Any) -> HeldPieces | StagedPieces | None:
    """Return the pieces of a tensor, or None if it is not placed over several devices, or is a view of a part of a
    storage."""
    if type(x) not in (Tensor, torch.nn.Parameter) or state.now.capture is not None:
        return None
    if x.device.type == "meta":
        return getattr(x, "staged_pieces", None)
    if x.device.type != TYPE or x.layout != torch.strided or x.is_conj() or x.is_neg() or not fills(x):
        return None
    cell = cell_of(x)
    if cell.cold is not None or cell.backend.compound:
        return None
    placement = cell.backend.placement(cell.array)
    return None if placement is None or placement.mesh.size == 1 else HeldPieces(x)


# ---- PyTorch's functions ---------------------------------------------------------------------------------------------


def write_items(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `_create_write_items`: a tensor that is spread over a mesh has an item for each piece."""
    from torch.distributed.checkpoint import metadata, planner

    @functools.wraps(original)
    def _create_write_items(fqn: str, object: Any) -> Any:
        pieces = pieces_of(object)
        if pieces is None:
            return original(fqn, object)
        if processes.joined and not distributed.is_initialized():
            raise RuntimeError(
                f"torch.distributed.checkpoint: {fqn!r} is sharded over the devices of several processes, which"
                " are not connected: call torch.distributed.init_process_group('graft') first, in all of them"
            )
        properties = metadata.TensorProperties.create_from_tensor(object)
        return [
            planner.WriteItem(
                index=metadata.MetadataIndex(fqn, torch.Size(at)),
                type=planner.WriteItemType.SHARD,
                tensor_data=planner.TensorWriteData(_chunk(at, size), properties, object.size()),
            )
            for at, size in pieces.sizes().items()
        ]

    return _create_write_items


def chunk_list(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `_create_chunk_list`: a tensor that is spread over a mesh is read piece by piece."""

    @functools.wraps(original)
    def _create_chunk_list(tensor: Any) -> Any:
        pieces = pieces_of(tensor)
        return original(tensor) if pieces is None else [_chunk(at, size) for at, size in pieces.sizes().items()]

    return _create_chunk_list


def _chunk(offset: Offset, size: torch.Size) -> Any:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    return ChunkStorageMetadata(torch.Size(offset), size)


def find_shard(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a piece of a tensor, for writing it to a file or reading it from one."""

    @functools.wraps(original)
    def find_tensor_shard(tensor: Any, index: Any) -> Any:
        pieces = pieces_of(tensor)
        return original(tensor, index) if pieces is None else pieces.get(tuple(index.offset))

    return find_tensor_shard


def commit(original: Callable[..., Any]) -> Callable[..., Any]:
    """Called when a tensor, or a piece of one, has been read."""

    @functools.wraps(original)
    def commit_tensor(self: Any, read_item: Any, tensor: Tensor) -> Any:
        target = self.state_dict.get(read_item.dest_index.fqn)
        pieces = pieces_of(target)
        if not isinstance(pieces, HeldPieces):
            return original(self, read_item, tensor)
        at = tuple(read_item.dest_index.offset)
        if tensor.size() != pieces.sizes()[at]:
            piece = pieces.get(at)
            corner = zip(read_item.dest_offsets, read_item.lengths, strict=True)
            piece[tuple(slice(start, start + n) for start, n in corner)] = tensor
            tensor = piece
        pieces.put(at, tensor.to(target.dtype))
        torch.autograd.graph.increment_version(target)
        return original(self, read_item, tensor)

    return commit_tensor


def staging(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy on the host of a tensor that is saved while the program continues."""

    @functools.wraps(original)
    def _offload_tensor(self: Any, x: Tensor, memo: dict[int, Any], *args: Any, **kwargs: Any) -> Tensor:
        pieces = pieces_of(x)
        if not isinstance(pieces, HeldPieces):
            return original(self, x, memo, *args, **kwargs)
        staged = torch.empty(x.size(), dtype=x.dtype, device="meta", requires_grad=x.requires_grad)
        staged.staged_pieces = StagedPieces(pieces)  # type: ignore[attr-defined]
        memo[id(x)] = staged
        return staged

    return _offload_tensor
