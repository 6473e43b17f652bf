"""Quantised tensors in files: `torch.save` and pickle keep the codes and scales, `torch.load` gives them back.

What is written is made of CPU tensors, numbers and strings, so that `weights_only=True` loads it.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing.reductions as reductions

from tensorgraft.frontends.torch.core import pickled
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.tensors import FROM_NUMPY, cell_of, cpu_to_numpy, numpy_dtype, numpy_to_cpu
from tensorgraft.frontends.torch.quantized import cpu as quantized_cpu
from tensorgraft.frontends.torch.quantized.tensors import attached, is_quantized, place_of
from tensorgraft.quantization.quantized import Quantized, check_fit, check_numbers
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.storage import Geometry, contiguous_geometry


def register_safe() -> None:
    old_name = "tensorgraft.frontends.torch.quantized_files.rebuild"
    torch.serialization.add_safe_globals([rebuild, rebuild_with_state, (rebuild, old_name)])


def register_sending() -> None:
    for cls in (torch.Tensor, torch.nn.Parameter, quantized_cpu.QuantizedTensor):
        ForkingPickler.register(cls, _sent)


def _sent(t: torch.Tensor) -> Any:
    """Reduce a tensor for another process: codes and scales, those of the CPU in shared memory as PyTorch does it,
    others as copies."""
    if t.device.type not in (TYPE, "cpu") or not torch._C._has_storage(t) or not is_quantized(t):
        return reductions.reduce_tensor(t)
    if isinstance(t, torch.nn.Parameter):
        return pickled.parameter(), (t.detach(), t.requires_grad, OrderedDict())
    parts, *scheme_fields, geometry = described(t)
    if t.device.type == "cpu":
        return rebuild, ("cpu", list(cell_of(t).array.parts), *scheme_fields, *geometry, t.requires_grad)
    by_value = [(p.dtype, tuple(p.shape), p.reshape(-1).view(torch.uint8).numpy().tobytes()) for p in parts]
    return _received, (str(t.device), by_value, *scheme_fields, *geometry, t.requires_grad)


def _received(device: str, parts: list[Any], *rest: Any) -> torch.Tensor:
    arrays = [
        torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape)
        if content
        else torch.empty(shape, dtype=dtype, device="cpu")
        for dtype, shape, content in parts
    ]
    return rebuild(device, arrays, *rest)


def reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    def __reduce_ex__(self: torch.Tensor, protocol: Any) -> Any:
        if self.device.type not in ("graft", "cpu") or not is_quantized(self):
            return original(self, protocol)
        state = {name: value for name, value in self.__dict__.items() if name != "_is_param"}
        if getattr(self, "_is_param", False):  # on the CPU a parameter is of the tensor's own class
            rebuilt: Any = (self.detach(), self.requires_grad, OrderedDict())
            if state:
                return pickled.parameter_with_state(), (*rebuilt, state)
            return pickled.parameter(), rebuilt
        parts, *scheme_fields, geometry = described(self)
        for part in parts:  # so that `map_location` says where it is to be
            part.untyped_storage().saved_from = self.device  # type: ignore[attr-defined]
        parts[0].untyped_storage().copied_from = self.data  # type: ignore[attr-defined]
        arguments = ("", parts, *scheme_fields, *geometry, self.requires_grad)
        if state:
            return rebuild_with_state, (arguments, state)
        return rebuild, arguments

    return functools.wraps(original)(__reduce_ex__)


def described(t: torch.Tensor) -> tuple[list[torch.Tensor], tuple[int, ...], tuple[Any, ...], list[str], Any]:
    """Return (codes and scales on the CPU, the shape of the codes, the scheme's fields, the logical dtype and the
    tensor's, its size, strides and offset) of a quantised tensor."""
    cell = cell_of(t)
    q: Quantized = cell.array
    xp: Any = cell.backend
    with xp.scope():
        parts = [numpy_to_cpu(xp.inner.to_numpy(a).copy()) for a in q.parts]
    s = q.scheme
    scheme = (s.encoding, s.granularity, s.group, s.block, s.axis, s.symmetric, s.activation, s.offset, s.table)
    geometry = (tuple(t.size()), t.stride(), t.storage_offset())
    return parts, q.base, scheme, [str(FROM_NUMPY[q.dtype]), str(t.dtype)], geometry


def rebuild(
    device: str,
    parts: list[torch.Tensor],
    base: tuple[int, ...],
    scheme: tuple[Any, ...],
    names: list[str],
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    requires_grad: bool,
) -> torch.Tensor:
    """Return the quantised tensor of its parts in a file; without a `device`, on that of its parts. Raises ValueError
    for any invalid parts, as files cannot be trusted."""
    try:
        original = getattr(parts[0].untyped_storage(), "copied_from", None)
        if original is not None:  # the result of `copy.copy` shares memory, as for any tensor
            return original.requires_grad_(requires_grad)
        parts_device = parts[0].device
        slot = place_of(torch.device(device) if device else parts_device)
        parts = [p.cpu() for p in parts]
        logical, dtype = (_DTYPES[name.removeprefix("torch.")] for name in names)
        encoding, granularity, group, block, *rest = scheme  # files of earlier versions have fewer
        full_scheme = Scheme(encoding, granularity, group, tuple(block), *rest)
        base, size, stride = tuple(base), tuple(size), tuple(stride)
        known = dict(zip(full_scheme.parts, map(cpu_to_numpy, parts), strict=True))
        check_fit(known, base, Geometry(size, stride, offset, numpy_dtype(logical)), full_scheme, _WHAT)
        check_numbers(known, _WHAT)
    except (ValueError, TypeError, AttributeError, IndexError, KeyError, OverflowError, NotImplementedError) as error:
        raise ValueError(f"{_WHAT} is broken: {str(error).removeprefix(f'{_WHAT}: ')}") from error
    xp = slot.backend
    with xp.scope():
        arrays = [xp.asarray(cpu_to_numpy(p)) for p in parts]
    q = Quantized.of(arrays, base, contiguous_geometry(base, numpy_dtype(logical)), full_scheme)
    return attached(slot, q, dtype, size, stride, offset).requires_grad_(bool(requires_grad))


def rebuild_with_state(arguments: tuple[Any, ...], state: dict[str, Any]) -> torch.Tensor:
    """Rebuild a quantised tensor with additional attributes. Raises ValueError as `rebuild`."""
    if not isinstance(arguments, tuple) or not isinstance(state, dict) or len(arguments) != 9:
        raise ValueError(f"{_WHAT} is broken: it has no attributes, or is not a tensor")
    tensor = rebuild(*arguments)
    tensor.__dict__.update(state)
    return tensor


_WHAT = "a quantised tensor of a file"
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in FROM_NUMPY.values() if dtype.is_floating_point}
