"""Arrays from other libraries and from other backends: without a copy where that is safe, else over DLPack or the host.

Memory of backends that write in place (NumPy, PyTorch) is never shared with arrays of one whose arrays are values.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.array_api.core import tracing
from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.devices import device_named, device_of, resolve
from tensorgraft.frontends.array_api.core.promotion import NARROW, STANDARD
from tensorgraft.hub import registry
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Geometry, Storage, contiguous_strides

# errors that exporters and importers raise for unsupported arrays
_REFUSALS = (BufferError, TypeError, ValueError, RuntimeError, NotImplementedError)


def backend_that_made(x: Any) -> Backend | None:
    """Return the backend whose own array `x` is (jax.Array, torch.Tensor, tf.Tensor; np.ndarray is NumPy's)."""
    package = type(x).__module__.partition(".")[0]
    for name in registry.backends():
        requires = registry.lookup(name).requires
        if requires not in sys.modules or package not in (requires, f"{requires}lib", "numpy"):
            continue
        xp = registry.get(name)
        if not xp.is_array(x):
            continue
        count = registry.device_count(name)
        other_devices = [registry.get(f"{name}:{i}") for i in range(1, count)]
        return next((b for b in (xp, *other_devices) if _is_on(x, b)), xp)
    return None


def _is_on(x: Any, xp: Backend) -> bool:
    """Return whether a native array is on the backend's device, where its framework has several."""
    if xp.is_traced(x):  # inside a transform of the framework, which has no places
        return True
    device = getattr(xp, "device", None)
    placed = getattr(x, "devices", None)
    return device in placed() if callable(placed) else getattr(x, "device", None) == device


def wrapped(x: Any, xp: Backend, copy: bool | None) -> Array:
    """Return a native array of the backend as an `Array`, sharing its memory unless `copy`.

    Raises ValueError where `copy` is False and it cannot be shared: memory that is read-only.
    """
    dtype = _dtype_of(x, xp)
    with xp.scope():
        if copy:
            return _marked(Array(Storage(xp.copy(x), xp)), False)
        if not xp.mutable:
            return _marked(Array(Storage(xp.ensure_owned(x), xp)), True)
        memory = xp.memory(x)
        if memory is None:
            if copy is False:
                raise ValueError("asarray: copy=False, but the array's memory cannot be written or cannot be shared")
            return _marked(Array(Storage(xp.copy(x), xp)), False)
        line, strides, offset = memory
        shape = xp.shape(x)
        if not offset and strides == contiguous_strides(shape) and xp.size(x) == xp.size(line):
            return _marked(Array(Storage(xp.reshape(line, shape), xp)), True)
        return _marked(Array(Storage(line, xp), Geometry(shape, strides, offset, dtype)), True)


def _dtype_of(x: Any, xp: Backend) -> np.dtype:
    """Return the dtype of a native array. Raises TypeError for one that no `Array` has, on whatever backend."""
    try:
        dtype = xp.dtype_of(x)
    except KeyError:  # none of NumPy's
        dtype = None
    if dtype not in STANDARD and dtype not in NARROW:
        named = x.dtype if dtype is None else dtype
        raise TypeError(f"asarray: {named} is not a dtype of the standard: {', '.join(map(str, STANDARD))}")
    return dtype


def _marked(x: Array, shared: bool) -> Array:
    x._cell.shared = shared
    return x


@functools.cache
def _dlpack_device(xp: Backend) -> tuple[int, int] | None:
    """Return the device of a backend in DLPack's terms."""
    with xp.scope():
        try:
            example: Any = xp.zeros((), np.dtype(np.float32))
            kind, index = example.__dlpack_device__()
        except (*_REFUSALS, AttributeError):
            return None
    return int(kind), int(index)


_CPU = 1
# class of a backend (of a kind of arrays in `array.kinds`) -> a function (array, backend to move to) -> the array there
movers: dict[type[Backend], Callable[[Any, Backend], Array]] = {}


def moved_to(x: Array, target: Backend) -> Array:
    """Return a copy of `x` on another backend. Two backends whose arrays are values share it where both are on one
    device; on a GPU it stays there. Inside of a transform it is an array of the transform that is on the other
    device."""
    if (level := tracing.level_of(x._cell)) is not None:
        xp = level.on(device_of(target))
        with x._cell.backend.scope():
            return new_array(xp.copy(x._value()), xp)
    source = x._cell.backend
    mover = movers.get(type(source))
    if mover is not None:
        return mover(x, target)
    source_device = _dlpack_device(source)
    values = not (source.mutable or target.mutable)
    if source_device is not None and source_device == _dlpack_device(target) and (values or source_device[0] != _CPU):
        native = x.native
        with target.scope():
            try:
                array = target.from_dlpack(native)
                storage = Storage(array if values else target.copy(array), target)
            except _REFUSALS:  # a dtype that one of them cannot exchange
                return _over_the_host(x, target)
        storage.shared = values
        return Array(storage)
    return _over_the_host(x, target)


def to_device(x: Array, device: Any, /, *, stream: Any = None) -> Array:
    """Return a copy on another device, or the array itself if it is there already."""
    if stream is not None:
        raise ValueError("to_device: stream must be None, since backends order their work themselves")
    where = resolve(device)
    return x if x.device == where else moved_to(x, where.backend)


def _over_the_host(x: Array, target: Backend) -> Array:
    values = x._host()
    with target.scope():
        return Array(Storage(target.asarray(values), target))


def imported(x: Any, device: Any, copy: bool | None) -> Array:
    """Call `from_dlpack` for an object that is no array of a backend here, onto `device` (a backend, or None for the
    host's)."""
    kind = int(x.__dlpack_device__()[0])
    target = device if device is not None else device_named("numpy").backend
    if copy is False and not target.mutable:
        raise ValueError(
            f"from_dlpack: copy=False, but arrays on {target.name} are immutable, and the memory of a"
            f" {type(x).__module__}.{type(x).__qualname__} may be"
        )
    if kind == _CPU:
        host = device_named("numpy").backend
        values = host.from_dlpack(x)
        _dtype_of(values, host)
        if target is host:
            return wrapped(values, host, copy)
        if copy is False:
            return wrapped(target.from_dlpack(values), target, copy)
        with target.scope():
            return Array(Storage(target.asarray(np.asarray(values)), target))
    with target.scope():
        array = target.from_dlpack(x)
        return wrapped(array, target, copy) if target.mutable else Array(Storage(target.copy(array), target))


def _same_memory(x: Any, source: Backend, target: Backend) -> Array | None:
    """Return a native array of a backend that writes in place, as one of another; None where one cannot see the
    memory."""
    with source.scope():
        memory = source.memory(x)
    if memory is None or _dlpack_device(source) != _dlpack_device(target):
        return None
    line, strides, offset = memory
    with target.scope():
        try:
            array = target.from_dlpack(line)
        except _REFUSALS:
            return None
        host = _dlpack_device(source) == (_CPU, 0)
        if host and not np.may_share_memory(source.to_numpy(line), target.to_numpy(array)):
            return None  # a dtype that the exporter does not support is copied
        return _marked(
            Array(Storage(array, target), Geometry(source.shape(x), strides, offset, source.dtype_of(x))), True
        )


def shared_between(x: Any, source: Backend, target: Backend, copy: bool | None) -> Array:
    """Return a native array of one backend on another, sharing memory where both write in place and `copy` is not True.

    Raises ValueError where `copy` is False and it cannot.
    """
    _dtype_of(x, source)
    if source.mutable and target.mutable and not copy:
        array = _same_memory(x, source, target)
        if array is not None:
            return array
        if copy is False:
            raise ValueError(f"copy=False, but {source.name} and {target.name} cannot share this array")
    elif copy is False and (source.mutable or target.mutable):
        raise ValueError(
            f"copy=False, but {source.name} and {target.name} cannot share memory: arrays of one are mutable,"
            " those of the other are not"
        )
    return moved_to(wrapped(x, source, None), target)
