"""Arrays of PyTorch: to and from the host, views of memory and writes into them, and the devices they are on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad

from tensorgraft.backends.torch.precision import NUMPY, SIGNED, torch_dtype
from tensorgraft.backends.torch.recorder import StandIn, known, now
from tensorgraft.hub.runtime import cpu_devices

Tensor = torch.Tensor
_NUMPY_KINDS = "biufc"  # kinds of dtypes that PyTorch and NumPy share


# ---- devices ---------------------------------------------------------------------------------------------------------


def default_platform() -> str:
    """Return the platform of arrays if none is named: CUDA if it has a device, else the CPU. (MPS lacks float64, and is
    used only if it is named.)"""
    return "cuda" if device_count("cuda") else "cpu"


def device_count(platform: str) -> int:
    if platform == "cpu":
        return cpu_devices()
    if platform == "cuda":  # not by `torch.cuda`, which counts a backend's devices while `tensorgraft run` runs
        count_devices = getattr(torch._C, "_cuda_getDeviceCount", None)
        return count_devices() if count_devices is not None else 0
    module: Any = getattr(torch, platform, None)
    count = getattr(module, "device_count", None)
    return count() if count is not None and module.is_available() else 0


def find_device(index: int, platform: str | None) -> torch.device:
    """Return a device by its number and platform. Raises ValueError, which lists the available devices, if it does not
    exist."""
    kind = {"gpu": "cuda"}.get(platform, platform) if platform else default_platform()
    count = device_count(kind)
    if not 0 <= index < count:
        device_name = ":".join(filter(None, ("torch", platform, str(index))))
        devices = ", ".join(f"torch:{p}:{i}" for p in ("cpu", "cuda", "mps", "xpu") for i in range(device_count(p)))
        raise ValueError(f"{device_name!r} is not a device: PyTorch has {devices} here")
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, index)


# ---- the host --------------------------------------------------------------------------------------------------------


def from_numpy(x: np.ndarray, device: torch.device) -> Tensor:
    """Return a copy of an array of NumPy; not a view, since tensors of this backend are written in place."""
    dtype = torch_dtype(x.dtype)
    x = np.array(x, order="C")
    if x.dtype.kind in _NUMPY_KINDS and x.dtype.type.__module__ == "numpy":
        return torch.from_numpy(x).to(device)
    return torch.from_numpy(x.view(f"i{dtype.itemsize}")).view(dtype).to(device)


def to_numpy(x: Tensor) -> np.ndarray:
    x = known(x)
    if torch._C._functorch.is_gradtrackingtensor(x):  # a tensor in a derivative by `torch.func` also has values
        with temporarily_clear_interpreter_stack():
            while torch._C._functorch.is_gradtrackingtensor(x):
                x = torch.func.debug_unwrap(x, recurse=False)
            return to_numpy(x)
    x = x.detach().resolve_conj().resolve_neg().cpu()
    dtype = NUMPY[x.dtype]
    if dtype.kind in _NUMPY_KINDS and dtype.type.__module__ == "numpy":
        return x.numpy()
    return x.contiguous().view({1: torch.int8, 2: torch.int16}[dtype.itemsize]).numpy().view(dtype)


def from_dlpack(x: Any, device: torch.device) -> Tensor:
    if isinstance(x, np.ndarray | np.generic) and (
        not x.flags.writeable or x.dtype.kind not in _NUMPY_KINDS or min(x.strides, default=0) < 0
    ):  # NumPy does not export read-only memory, and PyTorch aborts the process if strides are negative
        return from_numpy(np.asarray(x), device)
    if isinstance(x, Tensor):
        return x.to(device)
    return torch.from_dlpack(x).to(device)


# ---- memory ----------------------------------------------------------------------------------------------------------


def strided_view(
    x: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: torch.dtype
) -> Tensor:
    """See `Backend.strided_view`."""
    if 0 in shape:  # the offset may be after the end of the memory
        return x.new_empty(shape, dtype=dtype)
    x = x.contiguous()  # `x` may be a view that no storage has yet
    if x.dtype == dtype:
        return torch.as_strided(x, shape, strides, x.storage_offset() + offset)
    flat = x.reshape(-1)
    if dtype.itemsize > x.dtype.itemsize:  # the memory may end within an element of the view
        used = flat.numel() * x.dtype.itemsize // dtype.itemsize * dtype.itemsize
        flat = flat[: used // x.dtype.itemsize]
    flat = flat.view(dtype)
    return torch.as_strided(flat, shape, strides, flat.storage_offset() + offset)


def memory(x: Tensor) -> tuple[Tensor, tuple[int, ...], int] | None:
    """See `Backend.memory`."""
    if x.is_conj() or x.is_neg():  # the memory holds other values
        return None
    size = x.untyped_storage().nbytes() // x.dtype.itemsize
    return torch.as_strided(x, (size,), (1,), 0), x.stride(), int(x.storage_offset())


_uses = torch._C._storage_Use_Count
_share_memory = torch._C._is_alias_of  # type: ignore[attr-defined]


def _count(x: Tensor) -> int:
    return _uses(x.untyped_storage()._cdata)


_OF_A_SOLE_TENSOR = _count(torch.empty(1, device="cpu"))


def own(x: Tensor) -> Tensor:
    """See `Backend.ensure_owned`."""
    if (
        type(x) is Tensor
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
        and x.is_contiguous()
        and not x.is_conj()
        and not x.is_neg()
    ):
        storage = x.untyped_storage()
        is_whole = storage.nbytes() == x.numel() * x.dtype.itemsize
        if is_whole and _uses(storage._cdata) == _OF_A_SOLE_TENSOR:
            return x
    return x.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def assign(view: Tensor, value: Tensor) -> None:
    """See `Backend.assign`. If elements of the view share memory, the value of the last one is kept."""
    if _share_memory(view, value):
        value = value.clone()
    if _overlaps(view.shape, view.stride()):
        _assign_in_order(view, value)
    else:
        view.copy_(value)


def _overlaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return True if elements of the view may share memory (conservative: some views that do not overlap count,
    too)."""
    extent = 0
    for stride, n in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride <= extent:
            return True
        extent += stride * (n - 1)
    return False


def _assign_in_order(view: Tensor, value: Tensor) -> None:
    """Write `value` to a view whose elements may share memory: each place gets the value of its last element."""
    shape, strides = view.shape, view.stride()
    value = value.expand(shape)
    last = tuple(slice(-1, None) if s == 0 else slice(None) for s in strides)
    view, value = view[last], value[last]
    if not _overlaps(view.shape, view.stride()):
        view.copy_(value)
        return
    device = view.device
    offsets = torch.zeros((), dtype=torch.int64, device=device)
    for axis, (n, s) in enumerate(zip(view.shape, view.stride(), strict=True)):
        along = [n if a == axis else 1 for a in range(view.ndim)]
        offsets = offsets + (torch.arange(n, device=device) * s).reshape(along)
    offsets = offsets.reshape(-1)
    distinct, number = torch.unique(offsets, return_inverse=True)
    elements = torch.arange(offsets.numel(), device=device)
    final = torch.zeros_like(distinct).scatter_reduce(0, number, elements, "amax")
    span = int(distinct[-1]) + 1
    line = torch.as_strided(view, (span,), (1,), view.storage_offset())
    bits = SIGNED.get(line.dtype, line.dtype)
    line.view(bits)[distinct] = value.reshape(-1)[final].view(bits)


def lent(x: Tensor) -> np.ndarray | None:
    """Return the memory of a CPU tensor as an array of NumPy, or None if computations with the tensor are observed or
    may be differentiated."""
    followed = (
        type(x) not in (Tensor, torch.nn.Parameter)
        or x.device.type != "cpu"
        or (x.requires_grad and torch.is_grad_enabled())
        or torch._C._functorch.is_functorch_wrapped_tensor(x)
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_function_stack() > 0
    )
    return None if followed else x.detach().resolve_conj().resolve_neg().numpy()


# ---- traces ----------------------------------------------------------------------------------------------------------


def is_traced(x: Tensor) -> bool:
    """Return True if `x` is a placeholder without values in a trace."""
    if isinstance(x, StandIn):
        return x.known is None or now.recorder is not None
    return x.device.type == "meta" or isinstance(x, torch._subclasses.fake_tensor.FakeTensor)


def is_differentiated(x: Tensor) -> bool:
    """See `Backend.is_differentiated`; here, for derivatives by `torch.func`, which the backend computes."""
    functorch = torch._C._functorch
    while functorch.is_gradtrackingtensor(x):
        if x.requires_grad or forward_ad.unpack_dual(x).tangent is not None:
            return True
        x = torch.func.debug_unwrap(x, recurse=False)
    return False


def in_transform(x: Tensor) -> bool:
    """Return True if `x` is a batch of `torch.vmap`, or `torch.compile` is tracing."""
    if torch.compiler.is_compiling():
        return True
    functorch = torch._C._functorch
    while functorch.is_gradtrackingtensor(x):  # a derivative taken inside the batch wraps it
        x = torch.func.debug_unwrap(x, recurse=False)
    return functorch.is_batchedtensor(x)
