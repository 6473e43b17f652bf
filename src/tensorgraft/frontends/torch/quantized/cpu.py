"""Quantised tensors among ordinary CPU tensors: `QuantizedTensor`, whose storage is codes and scales.

As on the device (`tensors.py`), the C++ storage has a size and no memory, and its Python object carries the `Storage`
with the array, of PyTorch's own backend. So views share it, and `p.data = q`, `detach()` and autograd's saved tensors
keep it. Every operator comes to `__torch_dispatch__` (`quantized_operators.py`).
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from tensorgraft.frontends.torch.core.tensors import FROM_NUMPY, numpy_dtype, set_storage
from tensorgraft.hub import registry
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization import policy
from tensorgraft.quantization.backend import QuantizingBackend, quantizing
from tensorgraft.quantization.quantized import Quantized, with_own_codes
from tensorgraft.storage import Geometry, Storage, contiguous_geometry, contiguous_strides

Tensor = torch.Tensor
CPU = torch.device("cpu")
_new_storage = torch._C._construct_storage_from_data_pointer


@functools.cache
def backend() -> QuantizingBackend:
    """Return the backend on PyTorch's CPU tensors that supports quantised arrays."""
    xp = registry.get("torch")
    on_cpu: Any = xp
    return quantizing(xp if on_cpu.device == CPU else registry.get("torch:cpu:0"))


@functools.cache
def recording() -> QuantizingBackend:
    """Return the quantising backend without writes in place, for programs; another object than `backend()`, since it is
    changed while it records."""
    inner: Any = backend().inner
    return quantizing(inner.immutable)


def _of_numbers(name: str) -> Callable[..., Any]:
    """Return a method for which C++ wants memory with numbers: a copy of them."""
    original = getattr(Tensor, name)

    def method(self: QuantizedTensor, *args: Any, **kwargs: Any) -> Any:
        return original(numbers(self), *args, **kwargs)

    return functools.wraps(original)(method)


class QuantizedTensor(Tensor):
    """A quantised tensor on the CPU, as `tg.quantize` makes it."""

    __torch_function__ = torch.nn.Parameter.__torch_function__
    __slots__ = ()

    _run: Callable[[Any, Any, dict[str, Any]], Any]  # an operator, as `operators` says

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return cls._run(func, args, kwargs or {})

    # ---- what C++ would read from memory -----------------------------------------------------------------------------

    numpy = _of_numbers("numpy")
    tolist = _of_numbers("tolist")
    __array__ = _of_numbers("__array__")
    __format__ = _of_numbers("__format__")
    __dlpack__ = _of_numbers("__dlpack__")

    def data_ptr(self) -> int:
        raise RuntimeError(
            f"a quantised tensor of shape {tuple(self.shape)} has no memory with its dense numbers: use"
            " tg.dequantize(t), or, for safetensors, tg.quantization.flatten_tensor_state_dict"
        )

    def share_memory_(self) -> QuantizedTensor:
        for part in _cell(self).array.parts:
            part.share_memory_()
        return self

    def is_shared(self) -> bool:
        return all(part.is_shared() for part in _cell(self).array.parts)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        text = repr(numbers(self))
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"{text[:-1]}, scheme={array_of(self).scheme}{grad})"

    def __copy__(self) -> Any:  # in the words of a graph: `__reduce_ex__` looks at values
        copied = self.data.requires_grad_(self.requires_grad)
        if not torch.compiler.is_compiling():  # Dynamo knows no attributes of what a graph computes
            copied.__dict__.update(self.__dict__)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment"
            )
        if id(self) in memo:
            return memo[id(self)]
        with torch.no_grad():
            memo[id(self)] = copied = self.clone()
        copied.requires_grad_(self.requires_grad)
        if self.grad is not None:
            copied.grad = copy.deepcopy(self.grad, memo)
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    # ---- codes and scales as tensors of their own: torch.compile and torch.export see these --------------------------

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        q = _cell(self).array
        geometry = (self.storage_offset(), str(FROM_NUMPY[q.dtype]), str(self.dtype), self.requires_grad)
        return list(q.scheme.parts), (q.base, q.scheme, geometry)

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, Tensor], context: Any, size: Any, stride: Any) -> QuantizedTensor:
        base, scheme, (offset, logical, dtype, requires_grad) = context
        logical_dtype = numpy_dtype(getattr(torch, logical.removeprefix("torch.")))
        q = Quantized.of([parts[name] for name in scheme.parts], base, contiguous_geometry(base, logical_dtype), scheme)
        torch_dtype = getattr(torch, dtype.removeprefix("torch."))
        size, stride = tuple(map(int, size)), tuple(map(int, stride))
        return new_tensor(q, torch_dtype, size, stride, offset).requires_grad_(requires_grad)


def _part(name: str) -> property:
    return property(lambda t: getattr(_cell(t).array, name))


for _name in ("codes", "scale", "zero", "input_scale", "input_zero"):
    setattr(QuantizedTensor, _name, _part(_name))


def _cell(t: Tensor) -> Storage:
    return t.untyped_storage().cell  # type: ignore[attr-defined]


def array_of(t: Tensor) -> Quantized:
    """Return the quantised array that a quantised CPU tensor sees."""
    cell = _cell(t)
    geometry: Any = Geometry(tuple(t.size()), t.stride(), int(t.storage_offset()), numpy_dtype(t.dtype))
    return backend().read_view(cell.array, geometry)


def numbers(t: Tensor) -> Tensor:
    """Return the dense values of a quantised CPU tensor; they are asked for, so this is not counted."""
    with policy.allowed(), torch.no_grad():
        return backend().dense(array_of(t))


def new_tensor(
    q: Quantized,
    dtype: torch.dtype | None = None,
    size: tuple[int, ...] | None = None,
    stride: tuple[int, ...] | None = None,
    offset: int = 0,
) -> Any:
    """Return a tensor on a new storage."""
    q = with_own_codes(backend().inner, q)
    dtype = dtype or FROM_NUMPY[q.dtype]
    storage: Any = _new_storage(0, CPU, math.prod(q.base) * dtype.itemsize)
    storage.cell = Storage(q, backend())
    size = q.base if size is None else size
    stride = contiguous_strides(size) if stride is None else stride
    out = set_storage(_wrapper(dtype, size, stride, offset), storage, offset, size, stride)
    torch._C._set_throw_on_mutable_data_ptr(out)
    return out


def _wrapper(dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Any:
    return Tensor._make_wrapper_subclass(
        QuantizedTensor, size, strides=stride, storage_offset=offset, dtype=dtype, device=CPU
    )


def view_of(
    base: Tensor, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> QuantizedTensor:
    """Return a tensor on the storage of another one."""
    out = _wrapper(dtype, size, stride, offset)
    torch._functionalize_unsafe_set(out, base)
    return out


class Host:
    """The place of ordinary CPU tensors, as a `Slot` is that of tensors on a device."""

    device = CPU

    @property
    def backend(self) -> Backend:
        return backend().inner


HOST = Host()
ELSEWHERE = "there are quantised tensors on the CPU and on tg.device(...): move it there first"


def from_array(array: Any) -> Tensor:
    return new_tensor(array) if isinstance(array, Quantized) else array


def dense_of(t: Tensor, name: str) -> Tensor:
    """Return the numbers of any CPU tensor. Raises TypeError for classes whose memory holds something else."""
    if isinstance(t, QuantizedTensor):
        return numbers(t.detach())
    if t.layout is not torch.strided or t.is_quantized or hasattr(t, "__tensor_flatten__"):
        raise TypeError(
            f"{name}: expected a dense tensor, got a {type(t).__module__}.{type(t).__qualname__} of the layout"
            f" {t.layout}: convert tensors of torchao with tg.quantization.from_torchao, others with .to_dense()"
            " or .dequantize()"
        )
    return t.detach().resolve_conj().resolve_neg()


__all__ = [
    "ELSEWHERE",
    "HOST",
    "Host",
    "QuantizedTensor",
    "array_of",
    "backend",
    "dense_of",
    "from_array",
    "new_tensor",
    "numbers",
    "view_of",
]
