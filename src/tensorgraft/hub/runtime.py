"""Arrays in the memory of a device, and the device."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from tensorgraft.hub.array import Array
from tensorgraft.hub.collectives import CollectiveCall, Group
from tensorgraft.hub.placement import Placement
from tensorgraft.hub.primitive import primitive


def cpu_devices() -> int:
    """Return the number of devices that the CPU counts as on a machine without accelerators; each computes on all of
    it.

    `$TENSORGRAFT_DEVICES` (`tensorgraft run --devices`), or as many as there are processes of one program on this
    machine, as `torchrun` says in `$LOCAL_WORLD_SIZE`: each takes the device whose number it has among them. Else 1.
    """
    text = os.environ.get("TENSORGRAFT_DEVICES") or os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(text)) if text.isdigit() else 1


class Runtime:
    """Arrays, memory, devices, synchronisation."""

    name: str  # the name in `tg.device(name)`
    index: int
    platform: str | None
    mutable = False  # arrays can be written in place, and views of them are views
    compound = False  # an array may be several of another backend, codes and scales: see `quantization.backend`
    small_host: Any = None  # a backend that computes on small arrays of the same memory (`lend`) more quickly
    few_rows = 0  # products `a @ b.T` in float32 of at most so many rows read `b` as it lies, without a copy
    recalls = False  # it may know what a view of an array is: `recall(array, geometry, read)` says it, else reads

    # ---- arrays ----------------------------------------------------------------------------------------------------

    @primitive
    def is_array(self, x: Any, /) -> bool:
        raise NotImplementedError

    @primitive
    def is_traced(self, x: Array, /) -> bool:
        """Return True if `x` represents a value that a trace has not computed yet."""
        raise NotImplementedError

    def is_differentiated(self, x: Array, /) -> bool:
        """Return whether a derivative is being taken in which `x` has a part: its values alone would lose it."""
        return False

    @primitive
    def shape(self, x: Array, /) -> tuple[int, ...]:
        raise NotImplementedError

    def dtype_of(self, *operands: Any) -> np.dtype:
        """Return the dtype of the first operand that is an array."""
        for x in operands:
            dtype = getattr(x, "dtype", None)
            if dtype is not None:
                return np.dtype(dtype)
        raise TypeError("no operand is an array")

    def signature(self, x: Array, /) -> Hashable:
        """Equal for two arrays of this backend if, and only if, their shapes and dtypes are; quickly told."""
        return self.shape(x), self.dtype_of(x)

    @primitive
    def asarray(self, x: np.ndarray, /) -> Array:
        """Return a host array, moved to this backend's device. May share memory only where the backend never writes
        it."""
        raise NotImplementedError

    @primitive
    def to_numpy(self, x: Array, /) -> np.ndarray:
        """Return the values on the host; possibly a read-only view. Raises `TracedValueError` inside a trace."""
        raise NotImplementedError

    def materialize(self, x: Array, /) -> Array:
        """Return `x` as an array of the framework itself."""
        return x

    def lifted(self, x: Array, /) -> Array:
        """Return an array of the backend that this one computes on, as an array of this one; else `x`."""
        return x

    def when_known(self, x: Array, check: Callable[[np.ndarray], None], /) -> None:
        """Call `check`, which raises where something is wrong, with the values of `x` as soon as they are known."""
        check(self.to_numpy(x))

    # ---- devices ---------------------------------------------------------------------------------------------------

    @primitive
    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which this backend's operations are to be called (JAX: 64-bit types allowed, its device
        the default; NumPy: floating-point warnings off). Compiled functions enter it by themselves."""
        raise NotImplementedError

    @primitive
    def synchronize(self) -> None:
        """Wait until all operations have finished."""
        raise NotImplementedError

    @primitive
    def memory_stats(self) -> dict[str, int]:
        """Return a dictionary of `allocated` and `peak` bytes, empty if the framework does not report them."""
        raise NotImplementedError

    @primitive
    def device_name(self) -> str:
        """Return the usual name of the device, for example "NVIDIA H200" or "CPU"."""
        raise NotImplementedError

    @classmethod
    def device_count(cls) -> int:
        """Return the number of devices of this backend; `Backend(index)` is one of them. A machine without accelerators
        has `cpu_devices()`."""
        return 1

    def mesh_ids(self, count: int, /) -> tuple[int, ...] | None:
        """Return numbers of `count` devices over which arrays can be spread, neighbours next to each other; None where
        there are not so many. Here: the one device."""
        return (self.index,) if count == 1 else None

    def processes(self) -> tuple[int, int]:
        """Return (the number of this process, of how many over whose devices arrays can be spread)"""
        return 0, 1

    def parts_fed(self, placement: Placement, /) -> tuple[int, int]:
        """Return (number of the part, number of parts) of the first dimension of an array with this placement that is
        on this process's devices."""
        return 0, 1

    def assembled(self, part: Array, placement: Placement, /) -> Array:
        """Return an array with this placement, of which each process passes its part: see `parts_fed`. For arrays
        outside of traces."""
        return self.constrain(part, placement)

    def same_everywhere(self, action: str, arrays: Mapping[str, Array], /) -> None:
        """Raise RuntimeError, on every process, if named arrays that each process has in full differ between processes;
        `action` describes the call in the message."""

    def placement(self, x: Array, /) -> Placement | None:
        """Return where the pieces of `x` lie; None for an array that is not spread over a mesh, or is being traced."""
        return None

    def bytes_by_device(self, x: Array, /) -> dict[int, int]:
        """Return the bytes of `x` that each device holds, by its number."""
        return {self.index: math.prod(self.shape(x)) * self.dtype_of(x).itemsize}

    def pieces(self, x: Array, /) -> dict[tuple[int, ...], Array]:
        """Return the pieces of `x` that devices of this process have, by their offsets: each once, however many have
        it."""
        return {(0,) * len(self.shape(x)): x}

    def with_piece(self, x: Array, offset: tuple[int, ...], piece: np.ndarray, /) -> Array:
        """Return `x` with another piece at an offset of `pieces`, on every device of this process that holds it.
        `piece` must not be written afterwards."""
        return self.asarray(piece)

    def joined_as(self) -> int | None:
        """Return the number of this device among those of all processes of the program, if the framework has joined
        them for collectives; otherwise None."""
        return None

    def collective(self, call: CollectiveCall, arrays: Sequence[Array], group: Group, /) -> tuple[Array, ...]:
        """Compute a collective of the processes of a group (`hub.collectives`) on arrays of each; in a trace, add it to
        the program.

        Raises RuntimeError if the processes call different ones."""
        raise TypeError(f"the backend {self.name} does not support several processes")

    def place(self, n: int, /) -> Any:
        """Return an index as an argument of compiled functions that is cheap to pass in many calls."""
        return n

    def observe(self, fn: Callable[[np.ndarray], None], x: Array, /) -> None:
        """Call `fn` with the values of `x`: now, or, in a trace, whenever the program has computed them (`synchronize`
        waits for that). Raises TypeError if such a program cannot call Python."""
        if self.is_traced(x):
            raise TypeError(f"a compiled program of {self.name} cannot report intermediate values")
        fn(self.to_numpy(x))

    # ---- the memory of the host, which a cold tier computes on -----------------------------------------------------

    def over_memory(self, x: np.ndarray, /) -> Array | None:
        """Return an array over the memory of a host array, which sees later writes of the host; None if that is not
        possible (another device's memory, or an unsuitable layout)."""
        return None

    def lend(self, x: Array, /) -> Any | None:
        """Return, for a backend with a cold tier, an object with `__dlpack__` over the host's memory of `x`, row-major,
        computed and read-only, or a host array: if DLPack lacks the dtype, and a copy if the memory is not
        `host_visible` (`hub.host_copies`). None for an array that is traced or elsewhere."""
        return None

    def capsules(self, arrays: Sequence[Array], /) -> list[Any] | None:
        """Return DLPack capsules of arrays that are computed and in the host's memory, read-only; None if one is
        elsewhere, or of a dtype that the protocol lacks."""
        return None

    def adopt(self, x: np.ndarray, /) -> Array:
        """Return an array of a host array that is not written any more, on the same memory if possible. Enters `scope`
        by itself, and has values also inside a trace."""
        with self.scope():
            return self.asarray(x)

    # ---- mutable backends only -------------------------------------------------------------------------------------

    def strided_view(
        self, x: Array, /, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: np.dtype
    ) -> Array:
        """Return a view of the memory of the contiguous array `x`; strides and offset in elements of `dtype`."""
        raise TypeError(f"arrays of the backend {self.name} have no views")

    def assign(self, view: Array, value: Array, /) -> None:
        """Write `value` into a view; they may overlap."""
        raise TypeError(f"arrays of the backend {self.name} cannot be written")

    def memory(self, x: Array, /) -> tuple[Array, tuple[int, ...], int] | None:
        """Return (a one-dimensional contiguous array over the memory of `x`, the strides and the offset of `x` in it,
        in elements); None if the memory cannot be written, or has no such strides."""
        raise TypeError(f"arrays of the backend {self.name} do not own their memory")

    def ensure_owned(self, x: Array, /) -> Array:
        """Return `x` itself if it is row-major and no other array shares its memory, else a copy."""
        return x
