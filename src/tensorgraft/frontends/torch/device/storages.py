"""`torch.UntypedStorage` on the device: methods that would access memory, in terms of tensors.

The C++ storage has a null pointer, which PyTorch's storage methods dereference or refuse. Each of these methods is
replaced on the Python class by one that handles storages of the device, and calls the original for all others.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE, slot_at, slot_of
from tensorgraft.frontends.torch.core.tensors import attach, cell_of, empty_cell, set_storage, stored_as
from tensorgraft.hub import dtypes
from tensorgraft.storage import Storage

UntypedStorage = torch.UntypedStorage
METHODS: dict[str, Callable[[Any], Any]] = {}  # name -> (PyTorch's method -> it, with ours for storages of ours)

# Addresses are invented: they are unique, and as far apart as the storages are large, so that tools which compare
# them or search for overlaps get the same results as on other devices. They are outside of a processor's address
# space, so that reading there by mistake is an error.
_next_address = 1 << 60
_ALIGNMENT = 512
_address_lock = threading.Lock()


def method(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        METHODS.update(dict.fromkeys(names, functools.partial(_in_front, fn)))
        return fn

    return register


def _in_front(replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        return (replacement if self.device.type == TYPE else original)(self, *args, **kwargs)

    return call


def create(content: Any = 0, *, device: Any, allocator: Any = None) -> UntypedStorage:
    """Implement `UntypedStorage(size)` and `UntypedStorage(sequence of bytes)`."""
    if allocator is not None:
        raise RuntimeError(
            "UntypedStorage(): only one or neither of 'allocator' or 'device' can be given, but not both"
        )
    if not isinstance(content, int):
        return UntypedStorage(content).to(device=device)
    if content < 0:
        raise RuntimeError(f"UntypedStorage(): the size must not be negative; got {content}")
    slot = slot_of(device)
    cell = empty_cell(slot, content)
    state.created(cell)
    return attach(cell, slot, torch.uint8, (content,), (1,), content).untyped_storage()


def as_bytes(storage: UntypedStorage) -> torch.Tensor:
    """Return uint8 (nbytes,): a tensor over all of a storage."""
    if storage.device.type != TYPE:
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    slot = slot_at(storage.device.index)
    cell = empty_cell(slot, 0)
    state.created(cell)
    return set_storage(attach(cell, slot, torch.uint8, (0,), (1,), 0), storage, 0, (storage.nbytes(),), (1,))


def reinterpret(storage: UntypedStorage, dtype: torch.dtype) -> None:
    """Keep the bytes of a storage as an array of `dtype`, so that reading tensors of that dtype converts nothing."""
    cell = cell_of(as_bytes(storage))
    xp, (_, new_dtype) = cell.backend, stored_as((), dtype)
    if xp.mutable or state.now.capture is not None or xp.dtype_of(cell.array) == new_dtype:
        return
    if storage.nbytes() % new_dtype.itemsize == 0:
        with xp.scope():
            cell.array = xp.bitcast(cell.array, new_dtype)


# ---- identity --------------------------------------------------------------------------------------------------------


@method("data_ptr")
def address(self: UntypedStorage) -> int:
    """Return a number for the storage's place, as `data_ptr` gives; 0 where the storage is empty."""
    global _next_address
    at = getattr(self, "address", None)
    if at is None:
        size = self.nbytes()
        with _address_lock:
            at = _next_address if size else 0
            _next_address += -(-size // _ALIGNMENT) * _ALIGNMENT
        self.address = at  # type: ignore[attr-defined]
    return at


def tensor_data_ptr(original: Callable[..., int]) -> Callable[..., int]:
    def data_ptr(self: torch.Tensor) -> int:
        if self.device.type != TYPE or not torch._C._has_storage(self):
            return original(self)
        storage = self.untyped_storage()
        if not hasattr(storage, "cell") or self.numel() == 0:  # a subclass without memory of its own; an empty tensor
            return original(self)
        return address(storage) + self.storage_offset() * self.element_size()

    return functools.wraps(original)(data_ptr)


# ---- content ---------------------------------------------------------------------------------------------------------


@method("new")
def new(self: UntypedStorage) -> UntypedStorage:
    return UntypedStorage(0, device=self.device)


def tensor_new(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Implement `x.new(...)`, for which C++ always uses device index 0."""

    def new(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.device.type != TYPE or kwargs.get("device", self.device) != self.device:
            return original(self, *args, **kwargs)
        content = args[0] if args else 0
        if isinstance(content, UntypedStorage | torch.TypedStorage):
            return self.new_empty(0).set_(content)
        if isinstance(content, torch.Tensor):
            return content.detach()
        if isinstance(content, int | torch.Size):
            return self.new_empty(content if isinstance(content, torch.Size) else args or (0,))
        return self.new_tensor(content)

    return functools.wraps(original)(new)


def tensor_new_tensor(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Implement `x.new_tensor(...)`, for the same reason."""

    def new_tensor(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.device.type == TYPE and kwargs.get("device") is None:
            kwargs["device"] = self.device
        return original(self, *args, **kwargs)

    return functools.wraps(original)(new_tensor)


@method("clone", "__copy__")
def clone(self: UntypedStorage) -> UntypedStorage:
    source = as_bytes(self)
    cell = cell_of(source)
    state.touch(cell)
    xp = cell.backend
    with xp.scope():
        copy = state.created(Storage(xp.copy(cell.array), xp))
    n = self.nbytes()
    return attach(copy, slot_at(self.device.index), torch.uint8, (n,), (1,), n).untyped_storage()


@method("__deepcopy__")
def deepcopy(self: UntypedStorage, memo: dict[Any, Any]) -> UntypedStorage:
    torch_memo = memo.setdefault("torch", {})
    if self._cdata not in torch_memo:
        torch_memo[self._cdata] = clone(self)
    return torch_memo[self._cdata]


def copying(original: Callable[..., Any]) -> Callable[..., Any]:
    """`copy_`: either side may be on the device."""

    def copy_(self: UntypedStorage, source: Any, non_blocking: bool | None = None) -> UntypedStorage:
        inner = source._untyped_storage if isinstance(source, torch.TypedStorage) else source
        if not isinstance(inner, UntypedStorage) or TYPE not in (self.device.type, inner.device.type):
            return original(self, source, non_blocking)
        if self.nbytes() != inner.nbytes():
            raise RuntimeError(
                f"size does not match, self was {self.nbytes()} bytes but src was {inner.nbytes()} bytes"
            )
        with torch.no_grad():
            as_bytes(self).copy_(as_bytes(inner))
        return self

    return functools.wraps(original)(copy_)


@method("cpu")
def cpu(self: UntypedStorage) -> UntypedStorage:
    return as_bytes(self).cpu().untyped_storage()


@method("fill_")
def fill_(self: UntypedStorage, value: int) -> UntypedStorage:
    as_bytes(self).fill_(_byte(value))
    return self


def _byte(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RuntimeError(f"fill_ expects int, but got {type(value).__name__}")
    return value & 0xFF


@method("__getitem__")
def getitem(self: UntypedStorage, index: Any) -> int:
    """Return a byte. A slice would be a storage of a part of this one's memory, which storages here cannot share."""
    if isinstance(index, slice):
        raise NotImplementedError(
            f"storages on the device {TYPE!r} cannot be sliced, since a slice shares memory: slice a tensor, or"
            " the copy returned by storage.cpu()"
        )
    if not isinstance(index, int):
        raise TypeError(f"can't index a UntypedStorage with {type(index).__name__}")
    return int(as_bytes(self)[_position(self, index)].item())


def _position(self: UntypedStorage, index: int) -> int:
    size = self.nbytes()
    at = index + size if index < 0 else index
    if not 0 <= at < size:
        raise IndexError(f"index {index} out of range for storage of size {size}")
    return at


@method("__setitem__")
def setitem(self: UntypedStorage, index: Any, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RuntimeError(f"can only set storage content with a int types, but got {type(value).__name__} instead")
    if isinstance(index, slice):
        if index.step not in (None, 1):
            raise RuntimeError(f"Trying to slice with a step of {index.step}, but only a step of 1 is supported")
        as_bytes(self)[index].fill_(value & 0xFF)
    elif isinstance(index, int):
        as_bytes(self)[_position(self, index)].fill_(value & 0xFF)
    else:
        raise RuntimeError(f"can't index a UntypedStorage with {type(index).__name__}")


@method("__delitem__")
def delitem(self: UntypedStorage, index: Any) -> None:
    raise TypeError("'UntypedStorage' object doesn't support item deletion")


@method("tolist")
def tolist(self: UntypedStorage) -> list[int]:
    return as_bytes(self).tolist()


@method("__iter__")
def iterate(self: UntypedStorage) -> Any:
    return iter(tolist(self))


@method("__repr__")
def represent(self: UntypedStorage) -> str:
    content = "\n ".join(map(str, tolist(self)))
    return f" {content}\n[{torch.typename(self)}(device={self.device}) of size {len(self)}]"


@method("_byteswap")
def byteswap(self: UntypedStorage, elem_size: int) -> None:
    host = cpu(self)
    host.byteswap({1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(elem_size, torch.int64))
    self.copy_(host)


# ---- size and sharing ------------------------------------------------------------------------------------------------


class Released(UntypedStorage):
    """The class of a storage whose memory was freed by `resize_(0)`, until it is resized again (as FSDP does with
    gathered parameters): tensors still refer to it, and C++ still knows their sizes."""

    def nbytes(self) -> int:
        return 0

    size = __len__ = nbytes

    @property
    def cell(self) -> Storage:
        raise RuntimeError(
            f"the storage has been released (resize_(0)): resize_({UntypedStorage.nbytes(self)}) allocates it"
            " again, before its tensors are used"
        )


@method("resize_")
def resize_(self: UntypedStorage, size: int) -> UntypedStorage:
    """Free the memory of a storage (size 0), or allocate it again at its former size, filled with zeros."""
    nbytes = UntypedStorage.nbytes(self)
    if size not in (0, nbytes):
        raise RuntimeError(
            f"Trying to resize storage that is not resizable, of {nbytes} bytes to {size}: on the device {TYPE!r} a"
            " storage can only be released (resize_(0)) and allocated again at the same size; resize_ a tensor,"
            " which gets a new storage"
        )
    if size != self.nbytes():
        if (capture := state.now.capture) is not None and capture.world is not None:
            raise RunsUncompiled("releases or allocates the memory of a storage (resize_)")
        cell = vars(self)["cell"] if size else cell_of(as_bytes(self))
        state.touch(cell)
        with cell.backend.scope():
            cell.array = cell.backend.zeros((size,), dtypes.uint8)
        self.__class__ = UntypedStorage if size else Released
    return self


@method("resizable")
def resizable(self: UntypedStorage) -> bool:
    return False


@method("is_shared")
def is_shared(self: UntypedStorage) -> bool:
    return False


@method("is_pinned")
def is_pinned(self: UntypedStorage, device: Any = None) -> bool:
    return False


@method("_get_filename")
def get_filename(self: UntypedStorage) -> None:
    return None


@method(
    "_share_filename_cpu_", "_share_fd_cpu_", "_share_cuda_", "_shared_incref", "_shared_decref", "_resize_with_addr_"
)
def refuse(self: UntypedStorage, *args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        f"a storage on the device {TYPE!r} has no memory to share with another process: send the copy returned by"
        " .cpu()"
    )


# ---- files (legacy format of torch.save, pickle) ---------------------------------------------------------------------


@method("_write_file")
def write_file(self: UntypedStorage, file: Any, is_real_file: bool, save_size: bool, element_size: int) -> None:
    cpu(self)._write_file(file, is_real_file, save_size, element_size)


@method("_set_from_file")
def set_from_file(
    self: UntypedStorage, file: Any, offset: int | None, is_real_file: bool, element_size: int
) -> UntypedStorage:
    host = UntypedStorage(self.nbytes())
    host._set_from_file(file, offset, is_real_file, element_size)
    self.copy_(host)
    return self
