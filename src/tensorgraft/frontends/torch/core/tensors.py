"""Plain `torch.Tensor`s whose real storages carry a backend's arrays.

The C++ storage has a size and no memory; a Python attribute of its Python object, `cell`, is the `Storage` with the
array. The attribute lives exactly as long as the C++ storage, and survives `detach()`, `nn.Parameter()`, views and
autograd's saved tensors, which all share the storage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import torch

from tensorgraft import dynamic_offset
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE, Slot, slot_at
from tensorgraft.frontends.torch.core.new_tensors import empty_header, header, imported, write_import
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.straight_line import StraightLine
from tensorgraft.quantization.backend import quantizing
from tensorgraft.quantization.quantized import Quantized, with_own_codes
from tensorgraft.storage import Geometry, Storage, contiguous_strides, read, to_halves

CPU_KEY = torch.DispatchKeySet(torch.DispatchKey.CPU)
_new_storage = torch._C._construct_storage_from_data_pointer
_set = torch.ops.aten.set_.source_Storage_storage_offset.redispatch

TO_NUMPY: dict[torch.dtype, np.dtype] = {
    torch.bool: dtypes.bool_,
    torch.int8: dtypes.int8,
    torch.int16: dtypes.int16,
    torch.int32: dtypes.int32,
    torch.int64: dtypes.int64,
    torch.uint8: dtypes.uint8,
    torch.uint16: dtypes.uint16,
    torch.uint32: dtypes.uint32,
    torch.uint64: dtypes.uint64,
    torch.float16: dtypes.float16,
    torch.bfloat16: dtypes.bfloat16,
    torch.float32: dtypes.float32,
    torch.float64: dtypes.float64,
    torch.complex32: dtypes.complex64,  # of arrays of its values; storages hold pairs of float16
    torch.complex64: dtypes.complex64,
    torch.complex128: dtypes.complex128,
    torch.float8_e4m3fn: dtypes.float8_e4m3fn,
    torch.float8_e5m2: dtypes.float8_e5m2,
    torch.float8_e4m3fnuz: dtypes.float8_e4m3fnuz,
    torch.float8_e5m2fnuz: dtypes.float8_e5m2fnuz,
}
_E8M0 = torch.float8_e8m0fnu
MOST_AXES = 64  # NumPy's limit; tensors may have more
FROM_NUMPY = {ours: theirs for theirs, ours in TO_NUMPY.items()}


def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """Return the dtype of arrays of a dtype's values. Raises TypeError for dtypes that no backend has (quantised
    ones)."""
    try:
        return TO_NUMPY[dtype]
    except KeyError:
        hint = ": weights of torchao with such scales move by tg.quantization.from_torchao" if dtype == _E8M0 else ""
        raise TypeError(f"tensors of {dtype} cannot be on the device {TYPE!r}{hint}") from None


def element_dtype(dtype: torch.dtype) -> np.dtype:
    """Return the dtype of elements in a storage, of which geometries are. Raises TypeError as `numpy_dtype` does."""
    return dtypes.complex32 if dtype is torch.complex32 else numpy_dtype(dtype)


def stored_as(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[tuple[int, ...], np.dtype]:
    """Return the shape and the dtype of the array in which a storage has elements of a dtype. Raises TypeError as
    `numpy_dtype` does."""
    return ((*shape, 2), dtypes.float16) if dtype is torch.complex32 else (shape, numpy_dtype(dtype))


def foreign_dtype(dtype: torch.dtype) -> np.dtype:
    """Return the dtype of arrays that other frameworks take for tensors. Raises TypeError for dtypes that none has."""
    if dtype is torch.complex32:
        raise TypeError(
            f"no framework but PyTorch has arrays of {dtype}: convert the tensor, x.to(torch.complex64), or pass its"
            " parts, torch.view_as_real(x)"
        )
    return numpy_dtype(dtype)


def on_device(t: torch.Tensor) -> bool:
    """Return True if `t` is a tensor on the device."""
    return t.device.type == TYPE


def cell_of(t: torch.Tensor) -> Storage:
    """Return the storage of a tensor on the device."""
    try:
        s = t.untyped_storage()
    except NotImplementedError:
        raise NotImplementedError(
            f"a tensor whose layout is {t.layout} cannot be an argument or a result of a compiled function. Pass"
            " its indices and values (x._indices(), x._values()), or make it dense first."
        ) from None
    try:
        return s.cell  # type: ignore[attr-defined]
    except AttributeError:
        if t.device.type != TYPE:
            raise TypeError(f"a tensor on {t.device} has no array of a backend") from None
    cell = empty_cell(slot_at(t.device.index), s.nbytes())  # made by C++ (no bytes), or deserialised
    s.cell = cell  # type: ignore[attr-defined]
    return cell


def empty_cell(slot: Slot, nbytes: int) -> Storage:
    xp = slot.backend
    with xp.scope():
        return Storage(xp.zeros((nbytes,), dtypes.uint8), xp)


def geometry_of(t: torch.Tensor) -> Geometry:
    return Geometry(tuple(t.size()), t.stride(), int(t.storage_offset()), element_dtype(t.dtype))


def attach(
    cell: Storage,
    slot: Slot,
    dtype: torch.dtype,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    nbytes: int,
    offset: int = 0,
) -> torch.Tensor:
    """Return a tensor on a new storage that carries `cell`."""
    like = None if offset else header(slot.index, dtype, size, stride)
    if like is not None and like.nbytes == nbytes:
        tensor = imported(like.address)
        tensor.untyped_storage().cell = cell  # type: ignore[attr-defined]
        return tensor
    storage = _new_storage(0, slot.device, nbytes)
    storage.cell = cell  # type: ignore[attr-defined]
    tensor = imported(empty_header(slot.index, dtype).address)
    return _set(CPU_KEY, tensor, storage, offset, size, stride)


def maker(
    slot: Slot, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...], nbytes: int
) -> Callable[[Array], torch.Tensor]:
    """Return a specialised `attach` for many arrays of the same kind: the hot path of operators with one result."""
    backend, like = slot.backend, header(slot.index, dtype, size, stride)
    if like is None or like.nbytes != nbytes:
        return lambda array: attach(Storage(array, backend), slot, dtype, size, stride, nbytes)
    address = like.address

    def make(array: Array) -> torch.Tensor:
        tensor = imported(address)
        tensor.untyped_storage().cell = Storage(array, backend)  # type: ignore[attr-defined]
        return tensor

    def write(code: StraightLine, array: str) -> str:
        tensor = code.variable()
        code.do(f"{tensor} = {write_import(code, address)}")
        code.do(f"{tensor}.untyped_storage().cell = {code.name(Storage)}({array}, {code.name(backend)})")
        return tensor

    make.write = write  # type: ignore[attr-defined]
    return make


def set_storage(
    tensor: torch.Tensor, storage: torch.UntypedStorage, offset: int, size: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    """Give a tensor a storage and a geometry: metadata only."""
    state.count_rebinding()
    if state.now.capture is not None:
        state.now.capture.note_rebinding(tensor)
    return _set(CPU_KEY, tensor, storage, offset, size, stride)


def stored(array: Array, xp: Backend) -> Storage:
    """Return a storage of a new array, which may be quantised."""
    if array.__class__ is not Quantized:
        return Storage(xp.ensure_owned(array) if xp.mutable else array, xp)
    with xp.scope():
        return Storage(with_own_codes(xp, array), quantizing(xp))


def from_array(array: Array, slot: Slot, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a contiguous tensor over an array of the slot's backend. `dtype`: that of the tensor, where it may be
    complex32, which `array` holds as complex64."""
    xp = slot.backend
    shape = array.shape if array.__class__ is Quantized else xp.shape(array)
    if dtype is torch.complex32:
        with xp.scope():
            array = to_halves(xp, array)
    cell = state.created(stored(array, xp) if array.__class__ is Quantized else Storage(array, xp))
    if dtype is not torch.complex32:
        dtype = FROM_NUMPY[cell.backend.dtype_of(array)]
    return attach(cell, slot, dtype, shape, contiguous_strides(shape), math.prod(shape) * dtype.itemsize)


def worded(error: ValueError) -> Exception:
    """Return PyTorch's error for NumPy's of a tensor with more axes than its arrays have, any other error as it is."""
    if "maximum supported dimension" in str(error):
        return RuntimeError("only tensors with up to 64 dims are supported")
    return error


def to_array(t: torch.Tensor, codes: bool = False) -> Array:
    """Return the values of a tensor on the device as an array of its backend; a quantised one dense, unless `codes`."""
    cell = cell_of(t)
    xp = cell.backend
    with xp.scope():
        read_storage = dynamic_offset.read_concrete if state.now.capture is None else read
        try:
            array = read_storage(xp, cell.array, geometry_of(t))
        except ValueError as error:
            raise worded(error) from None
        if xp.compound and not codes:
            array, xp = xp.dense(array), xp.inner
        if t.is_conj():  # a view whose conjugation, or negation, is still to be done
            array = xp.conj(array)
        return xp.negative(array) if t.is_neg() else array


def cpu_to_numpy(t: torch.Tensor) -> np.ndarray:
    """Return a CPU tensor as a NumPy array over the same memory, also for dtypes that NumPy lacks; but a copy of
    complex32, whose values are complex64."""
    if t.requires_grad or t.is_conj() or t.is_neg():
        t = t.detach().resolve_conj().resolve_neg()
    if t.dtype is torch.complex32:
        t = t.to(torch.complex64)
    dtype = numpy_dtype(t.dtype)
    if dtype.isbuiltin == 1:
        return torch._C.TensorBase.numpy(t) if t.__class__ is torch.Tensor else t.numpy()
    carrier = {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
    return t.view(carrier).numpy().view(dtype)


def cpu_elements(t: torch.Tensor) -> np.ndarray:
    """Return a CPU tensor as a NumPy array over the same memory as a storage has its elements: those of complex32 in
    one more axis, of two halves."""
    if t.dtype is not torch.complex32:
        return cpu_to_numpy(t)
    return torch.view_as_real(t.detach().resolve_conj().resolve_neg()).numpy()


def numpy_to_cpu(a: np.ndarray) -> torch.Tensor:
    """Return a NumPy array as a CPU tensor over the same memory."""
    if not a.flags.writeable:
        a = a.copy()
    if a.dtype.type.__module__ == ml_dtypes.__name__ or a.dtype.kind == "V":
        carrier = {1: np.uint8, 2: np.int16}[a.dtype.itemsize]
        return torch.from_numpy(a.view(carrier)).view(FROM_NUMPY[a.dtype])
    return torch.from_numpy(a)


def storages_of(tensors: Sequence[torch.Tensor]) -> list[torch.UntypedStorage]:
    """Return PyTorch's storage objects of tensors. Each is one object as long as it has a reference, so lists of them
    are equal if all storages are the same."""
    return list(map(_storage_of, tensors))


_storage_of = torch.Tensor.untyped_storage
