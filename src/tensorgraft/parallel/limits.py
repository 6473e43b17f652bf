"""A limit of memory for each device, where devices are simulated or have more than a program is to have."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from tensorgraft.compiled.function import TracedFunction
from tensorgraft.compiled.rendering import size
from tensorgraft.storage import Storage

_limits: list[_Limit] = []  # those in force


@contextlib.contextmanager
def memory_limit(bytes: int) -> Iterator[None]:
    """Limit the memory of devices inside a `with` statement: each may hold at most so many bytes of arrays created
    inside.

    The memory of tensors and arrays of the Array API is counted as by `bytes_by_device`: parameters, gradients, the
    state of optimizers, and activations of eager code. The temporary memory of compiled programs is not counted
    (`tg.parallel.plan` shows it), nor are results that lazy mode has not computed yet. `auto` chooses by the limit.

    Raises `torch.OutOfMemoryError` (MemoryError without PyTorch) with the request and the device if a device would hold
    more; ValueError for a limit below 1.

    >>> import tensorgraft as tg, torch
    >>> with tg.parallel.memory_limit(1000):
    ...     x = torch.ones(100, device=tg.device("numpy"))
    >>> x.nbytes
    400
    """
    if bytes < 1:
        raise ValueError(f"memory_limit: expected bytes of at least 1, got {bytes}")
    limit = _Limit(bytes)
    make_storage, call_traced = Storage.__init__, TracedFunction.__call__

    def init(self: Storage, *args: Any, **kwargs: Any) -> None:
        make_storage(self, *args, **kwargs)
        limit.add(self)

    def call(self: TracedFunction, *args: Any, **kwargs: Any) -> Any:
        result = call_traced(self, *args, **kwargs)
        limit.check("what a compiled function has made")
        return result

    _limits.append(limit)
    Storage.__init__, TracedFunction.__call__ = init, call  # type: ignore[method-assign]
    try:
        yield
    finally:
        Storage.__init__, TracedFunction.__call__ = make_storage, call_traced  # type: ignore[method-assign]
        _limits.remove(limit)


def limit_in_force() -> int | None:
    return min((limit.bytes for limit in _limits), default=None)


class _Limit:
    def __init__(self, bytes: int) -> None:
        self.bytes = bytes
        self._cells: weakref.WeakSet[Storage] = weakref.WeakSet()
        self._in_use = 0  # bytes in use on the fullest device, when they were last counted
        self._since = 0  # bytes allocated since

    def add(self, cell: Storage) -> None:
        self._cells.add(cell)
        self._since += max(_by_device(cell).values(), default=0)
        if self._in_use + self._since > self.bytes:
            self.check(cell)

    def check(self, request: Storage | str) -> None:
        for collected in (False, True):
            if collected:
                gc.collect()  # frees unreachable arrays
            in_use: dict[int, int] = {}
            for cell in self._cells:
                for device, n in _by_device(cell).items():
                    in_use[device] = in_use.get(device, 0) + n
            self._in_use, self._since = max(in_use.values(), default=0), 0
            if self._in_use <= self.bytes:
                return
        device = max(in_use, key=lambda d: in_use[d])
        raise _error()(self._words(device, in_use[device], request))

    def _words(self, device: int, in_use: int, request: Storage | str) -> str:
        if isinstance(request, Storage):
            n = _by_device(request).get(device, 0)
            request, in_use = f"{_described(request)} asks for {size(n)}, {n} bytes,", in_use - n
        else:
            request += " is too much"
        largest = sorted(self._cells, key=lambda c: -_by_device(c).get(device, 0))[:3]
        return (
            f"device {device} is out of memory: {request} where {size(in_use)}, {in_use} bytes, are held already and"
            f" memory_limit is {self.bytes} bytes; the largest are {', '.join(map(_described, largest))}. Let each"
            " device have a part: tg.parallel.shard_(model, mesh, tg.parallel.fully_sharded()), of a model on the CPU,"
            " shard_batch for the batch, or more devices in the mesh"
        )


def _by_device(cell: Storage) -> dict[int, int]:
    xp = cell.backend
    if cell.cold is not None:
        return {xp.index: cell.cold.nbytes}
    array = getattr(cell, "array", None)
    if array is None or xp.records or xp.is_traced(array):
        return {}
    with xp.scope():
        return xp.bytes_by_device(array)


def _described(cell: Storage) -> str:
    array = cell.cold if cell.cold is not None else cell.array
    shape = tuple(array.shape)
    name = str(array.dtype).removeprefix("torch.")
    placed = "" if cell.placement is None else f" placed {cell.placement}"
    return f"a {name} array of shape {shape}{placed}"


def _error() -> type[Exception]:
    torch = sys.modules.get("torch")
    return MemoryError if torch is None else torch.OutOfMemoryError
