"""`Array`: a storage and a geometry. Views share the storage, and see each other's writes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorgraft import views
from tensorgraft.arrays import array_class
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.array_api.core import traced_value_errors, tracing
from tensorgraft.frontends.array_api.core.devices import Device, device_of
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Geometry, Storage, contiguous_geometry, read, write

if TYPE_CHECKING:
    from tensorgraft.frontends.array_api.declared import Operators
else:
    Operators = object

Shape = tuple[int, ...]
_CPU = 1  # DLPack's number of the CPU
_whole = functools.lru_cache(maxsize=4096)(contiguous_geometry)


@array_class
class Array(Operators):
    """An array of the Array API standard, on a device of any backend.

    Indexing with integers and slices, `.T`, `reshape` where strides allow, `broadcast_to` and the like return views,
    which share memory with the array. Arrays are made by functions of `tensorgraft.array_api`, not by the class.
    """

    __slots__ = ("__weakref__", "_cell", "_geometry")

    def __init__(self, cell: Storage, geometry: Geometry | None = None) -> None:
        self._cell = cell
        self._geometry = geometry  # None: all of the storage, in the order of its array
        if geometry is None and tracing.now.capture is not None:
            tracing.now.capture.note(cell)

    # ---- the standard's attributes -----------------------------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype:
        return self._cell.backend.dtype_of(self._cell.array) if self._geometry is None else self._geometry.dtype

    @property
    def shape(self) -> Shape:
        return self._cell.backend.shape(self._cell.array) if self._geometry is None else self._geometry.shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def device(self) -> Device:
        return device_of(self._cell.backend)

    @property
    def T(self) -> Array:
        """A view of a two-dimensional array with its axes exchanged."""
        if self.ndim != 2:
            raise ValueError(
                f"T requires an array of two dimensions, but this one has shape {self.shape}: use mT or permute_dims"
            )
        return self._view(views.permuted(self._full_geometry(), (1, 0)))

    @property
    def mT(self) -> Array:
        """A view with the last two axes exchanged."""
        n = self.ndim
        if n < 2:
            raise ValueError(f"mT requires an array of at least two dimensions, but this one has shape {self.shape}")
        return self._view(views.permuted(self._full_geometry(), (*range(n - 2), n - 1, n - 2)))

    # ---- beyond the standard -----------------------------------------------------------------------------------------

    @property
    def native(self) -> Any:
        """The array of the backend: of mutable ones a view of the same memory, of others the value as of now."""
        xp = self._cell.backend
        self._cell.shared = True
        with xp.scope():
            return xp.materialize(self._value())

    @property
    def strides(self) -> Shape:
        """The strides in bytes, as NumPy has them."""
        g = self._full_geometry()
        return tuple(n * g.dtype.itemsize for n in g.strides)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def tolist(self) -> Any:
        return self._exported("tolist").tolist()

    def item(self) -> Any:
        return self._exported("item").item()

    # ---- devices and exchange ----------------------------------------------------------------------------------------

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        self._check_exportable("__dlpack__")
        if not self._is_known():
            raise traced_value_errors.value_needed(self, "__dlpack__")
        if min(self.strides, default=0) < 0:  # many importers refuse negative strides, and PyTorch's crashes
            if copy is False:
                raise BufferError(
                    f"an array with negative strides, {self.strides}, can be exported only by a copy, but copy=False"
                    " was given"
                )
            copy = True
        native = self.native
        device = native.__dlpack_device__()
        if copy and int(device[0]) == _CPU and self.dtype.kind in "biufc":
            native = np.array(self._host())  # NumPy's, for arrays of others count as read-only
        elif copy:
            with self._cell.backend.scope():
                native = self._cell.backend.copy(native)
        # not every framework takes all options: those that say nothing new are not passed on
        other_device = dl_device is not None and tuple(map(int, dl_device)) != tuple(map(int, device))
        options = {
            "stream": stream if int(device[0]) != _CPU else None,  # on the CPU there are none
            "max_version": max_version if max_version and max_version[0] else None,  # None means version 0
            "dl_device": dl_device if other_device else None,
            "copy": False if copy is False and other_device else None,
        }
        return native.__dlpack__(**{name: value for name, value in options.items() if value is not None})

    def __dlpack_device__(self) -> tuple[Any, int]:
        self._check_exportable("__dlpack_device__")
        if not self._is_known():
            raise traced_value_errors.value_needed(self, "__dlpack__")
        return self.native.__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self._exported("__array__")
        if dtype is not None and values.dtype != dtype:
            if copy is False:
                raise ValueError(f"an array of {values.dtype} cannot become an array of {dtype} without a copy")
            return values.astype(dtype)
        # compiled code of libraries requires writable memory, and JAX's is read-only
        return values.copy() if copy or (copy is None and not values.flags.writeable) else values

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        """TensorFlow's functions and operators take an array of its own backend, and no other over the host."""
        convert = getattr(self.native, "__tf_tensor__", None)
        if convert is None:
            raise TypeError(f"an array on {self.device} is not a tensor of TensorFlow: move it with to_device")
        return convert(dtype, name)

    # ---- copies ------------------------------------------------------------------------------------------------------

    def __copy__(self) -> Array:
        xp = self._cell.backend
        with xp.scope():
            return new_array(xp.copy(self._value()), xp)

    def __deepcopy__(self, memo: Any) -> Array:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_host, (np.array(self._exported("pickle")), self.device)

    # ---- values ------------------------------------------------------------------------------------------------------

    def _host(self, conversion: str = "values") -> np.ndarray:
        """Return the values. `conversion`: what reads them, for an error. Raises TracedValueError if there are none
        yet."""
        xp, capture = self._cell.backend, tracing.now.capture
        if capture is not None and capture.is_input(self._cell):
            raise traced_value_errors.value_needed(self, conversion)
        try:
            with xp.scope():
                value = self._value()
                if capture is not None and (known := capture.constant(self._cell)) is not None:
                    value = known if self._geometry is None else read(xp, known, self._geometry)
                return xp.to_numpy(value)
        except TracedValueError:
            pass
        raise traced_value_errors.value_needed(self, conversion)

    def _exported(self, conversion: str) -> np.ndarray:
        """Return the values, for a result outside of all derivatives. Raises TracedValueError where it has one."""
        values = self._host(conversion)
        self._check_exportable(conversion)
        return values

    def _check_exportable(self, conversion: str) -> None:
        xp = self._cell.backend
        if self.dtype.kind in "biu":
            return
        with xp.scope():
            if xp.is_differentiated(self._cell.array):
                raise traced_value_errors.derivative_lost(self, conversion)

    def _scalar(self, name: str) -> Any:
        if self.ndim:
            raise TypeError(f"{name}() requires a 0-dimensional array, but this one has shape {self.shape}")
        return self._host(name)[()]

    def __bool__(self) -> bool:
        return bool(self._scalar("bool"))

    def __int__(self) -> int:
        value = self._scalar("int")
        if value.dtype.kind == "c":
            raise TypeError("int() of a complex array")
        return int(value)

    def __float__(self) -> float:
        value = self._scalar("float")
        self._check_exportable("float")
        if value.dtype.kind == "c":
            raise TypeError("float() of a complex array")
        return float(value)

    def __complex__(self) -> complex:
        value = self._scalar("complex")
        self._check_exportable("complex")
        return complex(value)

    def __floor__(self) -> int:
        return math.floor(self._scalar("floor").item())

    def __ceil__(self) -> int:
        return math.ceil(self._scalar("ceil").item())

    def __trunc__(self) -> int:
        return math.trunc(self._scalar("trunc").item())

    def __format__(self, spec: str) -> str:
        """Format a 0-dimensional array as its number; other arrays accept no format."""
        if self.ndim or (not spec and not self._is_known()):
            return super().__format__(spec)
        return format(self._host("format").item(), spec)

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError(f"an array of {self.dtype} cannot be an index: use an array of integers")
        return int(self._scalar("index"))

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of a 0-dimensional array")
        return self.shape[0]

    def __iter__(self) -> Any:
        if not self.ndim:
            raise TypeError("iteration over a 0-dimensional array")
        return (self[i] for i in range(self.shape[0]))

    def _is_known(self) -> bool:
        """Return True if the array is not traced, and so has values now."""
        capture = tracing.now.capture
        if self._cell.backend.is_traced(self._cell.array):
            return False
        return capture is None or not capture.is_input(self._cell)

    def __repr__(self) -> str:
        if not self._is_known():
            return f"Array(traced, shape={self.shape}, dtype={self.dtype}, device={str(self.device)!r})"
        values = np.array2string(self._host(), separator=", ", prefix="Array(")
        return f"Array({values}, dtype={self.dtype}, device={str(self.device)!r})"

    __hash__ = None  # type: ignore[assignment]  # arrays are equal element by element

    # ---- views and writes --------------------------------------------------------------------------------------------

    def _cells(self) -> tuple[Storage, ...]:
        """Return the storages of the array."""
        return (self._cell,)

    def _view(self, geometry: Geometry) -> Array:
        """Another view of the same storage."""
        return Array(self._cell, geometry)

    def _full_geometry(self) -> Geometry:
        if self._geometry is None:
            return _whole(self.shape, self.dtype)
        return self._geometry

    def _value(self) -> Any:
        """Return the elements as an array of the backend; to be called in its scope."""
        cell = self._cell
        if tracing.now.capture is not None:
            tracing.now.capture.reading(cell)
        return cell.array if self._geometry is None else read(cell.backend, cell.array, self._geometry)

    def _dense(self) -> Any:
        """Return `_value`, dequantised where it is to be written into another array."""
        return self._value()

    def _write(self, value: Any, geometry: Geometry | None = None) -> None:
        """Write an array of the backend, of the right shape and dtype, at the array's geometry (or `geometry`)."""
        cell = self._cell
        g = self._full_geometry() if geometry is None else geometry
        if tracing.now.capture is not None:
            value = tracing.now.capture.writing(cell, value)
        if views.overlaps_itself(g):
            raise ValueError(
                f"a view of shape {g.shape} shows some elements several times (broadcast_to): it cannot be written"
            )
        cell.array = write(cell.backend, cell.array, g, value)


def _from_host(values: np.ndarray, device: Device) -> Array:
    xp = device.backend
    with xp.scope():
        return Array(Storage(xp.asarray(values), xp))


# a class of backends -> what makes an `Array` of one of its arrays, where that is more than a storage around it
kinds: dict[type[Backend], Callable[..., Array]] = {}


def new_array(array: Any, xp: Backend, *sources: Array) -> Array:
    """Return a new `Array` of an array of the backend. `sources`: operands; if one of them has this array itself, it is
    copied."""
    if (kind := kinds.get(type(xp))) is not None:
        return kind(array, xp, *sources)
    if any(array is x._cell.array for x in sources):
        array = xp.copy(array)
    return Array(Storage(xp.ensure_owned(array) if xp.mutable else array, xp))
