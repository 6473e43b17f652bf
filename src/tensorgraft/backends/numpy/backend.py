"""`NumpyBackend`: its arrays, its device, and the areas that make it up."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.backends.numpy.coded import NumpyCoded
from tensorgraft.backends.numpy.control_flow import NumpyControlFlow
from tensorgraft.backends.numpy.dialect import NumpyDialect
from tensorgraft.backends.numpy.elementwise import NumpyElementwise
from tensorgraft.backends.numpy.fft import NumpyFFT
from tensorgraft.backends.numpy.indexing import NumpyIndexing
from tensorgraft.backends.numpy.linalg import NumpyLinearAlgebra
from tensorgraft.backends.numpy.random import NumpyRandom
from tensorgraft.backends.numpy.reduction import NumpyReduction
from tensorgraft.backends.numpy.shape import NumpyShape
from tensorgraft.backends.numpy.sorting import NumpySorting
from tensorgraft.backends.numpy.sparse import NumpySparse
from tensorgraft.backends.numpy.windowed import NumpyWindowed
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.dlpack import from_dlpack
from tensorgraft.hub.runtime import cpu_devices
from tensorgraft.hub.tape import ByTape

_ARRAYS = (np.ndarray, np.generic)


def _references_to_base(x: np.ndarray) -> int:
    base = x.base
    return sys.getrefcount(base)


_OF_A_SOLE_VIEW = _references_to_base(np.zeros(2).reshape(1, 2))


def _is_sole_view(x: np.ndarray) -> bool:
    """Return True if `x` is a view of all of an array that nothing else refers to, as results of operations that end in
    a reshape are."""
    base = x.base
    if type(base) is not np.ndarray or not base.flags.owndata or base.nbytes != x.nbytes or not x.flags.writeable:
        return False
    del base
    return _references_to_base(x) == _OF_A_SOLE_VIEW


@np.errstate(all="ignore")
def _quiet(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)


class NumpyBackend(
    NumpyElementwise,
    NumpyReduction,
    NumpyShape,
    NumpyIndexing,
    NumpySorting,
    NumpySparse,
    NumpyLinearAlgebra,
    NumpyWindowed,
    NumpyFFT,
    NumpyRandom,
    NumpyControlFlow,
    NumpyCoded,
    ByTape,
    Backend,
):
    """NumPy on the CPU. Arrays are `numpy.ndarray`, or NumPy scalars where NumPy returns them."""

    name = "numpy"
    grafted_as = "program"
    mutable = True
    compiles = False

    def __init__(self, index: int = 0, platform: str | None = None) -> None:
        if not 0 <= index < (count := self.device_count()) or platform not in (None, "cpu"):
            device_name = ":".join(map(str, filter(None, ("numpy", platform, str(index)))))
            has = "one, 'numpy' (or 'numpy:cpu:0')" if count == 1 else f"{count}, one for each process"
            raise ValueError(f"{device_name!r} is not a device: NumPy has {has}")
        super().__init__(index, platform)

    @classmethod
    def device_count(cls) -> int:
        return cpu_devices()

    def is_array(self, x: Any, /) -> bool:
        return isinstance(x, _ARRAYS)

    def is_traced(self, x: Array, /) -> bool:
        return False

    def shape(self, x: Array, /) -> tuple[int, ...]:
        return x.shape

    def asarray(self, x: np.ndarray, /) -> Array:
        return np.array(x, order="C")  # a copy: arrays of this backend are written in place

    def to_numpy(self, x: Array, /) -> np.ndarray:
        return np.asarray(x)

    def copy(self, x: Array, /) -> Array:
        return np.array(x, order="C")

    def from_dlpack(self, x: Any, /) -> Array:
        return from_dlpack(x)

    def over_memory(self, x: np.ndarray, /) -> Array | None:
        return x

    def strided_view(
        self, x: Array, /, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: np.dtype
    ) -> Array:
        if 0 in shape:  # the offset may be after the end of the memory
            return np.empty(shape, dtype)
        size = dtype.itemsize
        if x.dtype.isbuiltin != 1 or not x.flags.c_contiguous:  # the dtypes of ml_dtypes export no buffer
            x = x.reshape(-1).view(np.uint8)
        return np.ndarray(shape, dtype, x, offset * size, [n * size for n in strides])

    def memory(self, x: Array, /) -> tuple[Array, tuple[int, ...], int] | None:
        size = x.dtype.itemsize
        if (
            not isinstance(x, np.ndarray)
            or not (x.flags.writeable and x.flags.aligned)
            or any(n % size for n in x.strides)
        ):
            return None
        strides = tuple(n // size for n in x.strides)
        if not x.size:
            return np.empty(0, x.dtype), strides, 0
        last_offsets = [(n - 1) * s for n, s in zip(x.shape, strides, strict=True)]
        first = x[tuple(slice(-1, None) if b < 0 else slice(0, 1) for b in last_offsets)]  # the lowest address
        extent = 1 + sum(map(abs, last_offsets))
        line = np.lib.stride_tricks.as_strided(first.reshape(1) if x.ndim else x, (extent,), (size,), subok=False)
        return line, strides, -sum(b for b in last_offsets if b < 0)

    def ensure_owned(self, x: Array, /) -> Array:
        x = np.asarray(x)
        if x.flags.c_contiguous and (x.flags.owndata or _is_sole_view(x)):
            return x
        return np.array(x, order="C")

    def assign(self, view: Array, value: Array, /) -> None:
        view[...] = value

    def scope(self) -> contextlib.AbstractContextManager[None]:
        return np.errstate(all="ignore")

    def dialect(self) -> NumpyDialect:
        return NumpyDialect()

    def compile(self, fn: Callable[..., Any], /, donate: Sequence[int] = ()) -> Callable[..., Any]:
        return functools.partial(_quiet, fn)

    def native_function(self, primal: Any, forward: Any, backward: Any, /) -> Callable[..., tuple[Array, ...]]:
        """NumPy has no derivatives: the function alone. Its results are arrays of their own, which may be written."""

        def run(*arrays: Array) -> tuple[Array, ...]:
            with self.scope():
                return tuple(np.array(x) for x in primal(*arrays))

        return run

    def synchronize(self) -> None:
        return None

    def memory_stats(self) -> dict[str, int]:
        return {}

    def device_name(self) -> str:
        return "CPU"
