"""Programs of the device `meta`, on the device as far as a trace can tell: tensors that have no memory there either."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from tensorgraft.compiled.captured_objects import arguments, objects_behind
from tensorgraft.frontends.torch.compiled.optimizers.numbers import prepare
from tensorgraft.frontends.torch.compiled.snapshot import unchanged
from tensorgraft.frontends.torch.core import sharded_tensors, state
from tensorgraft.frontends.torch.core.devices import Slot, slot_named
from tensorgraft.frontends.torch.core.source_location import in_library
from tensorgraft.frontends.torch.core.tensors import attach, cell_of, set_storage, stored_as
from tensorgraft.hub.placement import Mesh
from tensorgraft.storage import Storage, pin

Tensor = torch.Tensor
Optimizer = torch.optim.Optimizer


@contextlib.contextmanager
def imagined(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Mesh]:
    """Context in which tensors of the device `meta` that a call reaches are treated as tensors on the device, with
    their placements; parameters of a module and of its optimizer stay the same objects. Optimizers have the state that
    their first step creates. Yields the mesh.

    Raises ValueError where they lie on no mesh or on several, and for a tensor with a history."""
    roots = [*arguments(fn, args, kwargs), ("", fn)]
    objects = [value for _, value in objects_behind(roots, in_library)]
    meshes = list(dict.fromkeys(where.mesh for x in objects if _is_meta(x) and (where := sharded_tensors.pinned(x))))
    if not meshes:
        raise ValueError(
            "plan: none of the meta tensors that the step receives or reaches has been placed on a mesh: call"
            " shard_(model, mesh, plan) and shard_batch(inputs, mesh) with tg.parallel.mesh(shape, names,"
            " abstract=True)"
        )
    if len(meshes) > 1:
        raise ValueError(f"plan: tensors lie on different meshes: the {', the '.join(map(str, meshes))}")
    with unchanged(objects), _Exchange(slot_named(meshes[0].backend)) as exchange:
        for optimizer in objects:
            if isinstance(optimizer, Optimizer) and any(map(_is_meta, _parameters(optimizer))):
                _give_state(optimizer)
                exchange.all(v for e in optimizer.state.values() if isinstance(e, dict) for v in e.values())
        exchange.all(objects)
        state.now.planning = True
        try:
            yield meshes[0]
        finally:
            state.now.planning = False


def _is_meta(x: Any) -> bool:
    return isinstance(x, Tensor) and x.device.type == "meta"


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _give_state(optimizer: Optimizer) -> None:
    """Give an optimizer the state of its first step, which it makes for parameters with gradients only."""
    without_gradient = [p for p in _parameters(optimizer) if p.grad is None and p.requires_grad]
    fused = [(group, group["fused"]) for group in optimizer.param_groups if "fused" in group]
    for p in without_gradient:
        p.grad = torch.empty_like(p)
    for group, _ in fused:
        group["fused"] = False  # the fused implementation would query the device
    try:
        prepare(optimizer)
    finally:
        for p in without_gradient:
            p.grad = None
        for group, value in fused:
            group["fused"] = value
    for p, entries in optimizer.state.items():
        where = sharded_tensors.pinned(p) if _is_meta(p) else None
        for value in entries.values() if isinstance(entries, dict) else ():
            if where is not None and _is_meta(value) and value.shape == p.shape and sharded_tensors.fills(value):
                sharded_tensors.place(value, where)


class _Exchange:
    """Tensors whose inside is another one's, for a time."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._first: dict[int, Tensor] = {}  # on the device, for each storage
        self._exchanged: dict[int, tuple[Tensor, Tensor, Any]] = {}
        self._alive: list[Any] = []  # so that no other storage has the place of one of these

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        for t, before, hooks in reversed(self._exchanged.values()):
            torch._C._swap_tensor_impl(t, before)
            t._backward_hooks = hooks

    def all(self, values: Iterable[Any]) -> None:
        for value in values:
            if _is_meta(value) and id(value) not in self._exchanged:
                self._exchange_tensor(value)

    def _exchange_tensor(self, t: Tensor) -> None:
        if not t.is_leaf:
            raise ValueError(
                f"plan: a tensor of the device meta, of shape {tuple(t.shape)}, has a grad_fn: detach it, or"
                " create it inside"
            )
        abstract, grad, hooks = self._abstract(t), t.grad, t._backward_hooks
        abstract.requires_grad_(t.requires_grad)
        torch._C._swap_tensor_impl(t, abstract)
        self._exchanged[id(t)] = t, abstract, hooks
        if grad is not None:
            t.grad = self._abstract(grad)
        if hooks:
            t._backward_hooks = hooks
        if cell_of(t).placement is not None:
            t._backward_hooks = dict(hooks) if hooks else None
            sharded_tensors.hook(t)

    def _abstract(self, t: Tensor) -> Tensor:
        """Return a tensor of the device with the geometry of `t`."""
        storage, slot, xp = t.untyped_storage(), self._slot, self._slot.backend
        size, stride, offset, nbytes = tuple(t.size()), t.stride(), int(t.storage_offset()), storage.nbytes()
        first = self._first.get(storage._cdata)
        if first is not None:
            new = attach(cell_of(first), slot, t.dtype, (0,), (1,), 0)
            return set_storage(new, first.untyped_storage(), offset, size, stride)
        rows = (
            tuple(t.shape[d] for d in sharded_tensors.by_strides(t))
            if sharded_tensors.fills(t)
            else (nbytes // t.dtype.itemsize,)
        )
        where = getattr(storage, "placement", None)
        array = xp.abstract(*stored_as(rows, t.dtype), where)
        cell = Storage(array, xp)
        if where is not None:
            pin(cell, array, where)
        new = attach(cell, slot, t.dtype, size, stride, nbytes, offset)
        self._first[storage._cdata] = new
        self._alive.append(storage)
        return new
