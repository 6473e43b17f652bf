"""`TorchBackend`: native tensors, programs and devices of PyTorch."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from tensorgraft.backends.torch import arrays, native
from tensorgraft.backends.torch.attention import TorchAttention
from tensorgraft.backends.torch.coded import TorchCoded
from tensorgraft.backends.torch.control_flow import TorchControlFlow
from tensorgraft.backends.torch.elementwise import TorchElementwise
from tensorgraft.backends.torch.fft import TorchFFT
from tensorgraft.backends.torch.indexing import TorchIndexing
from tensorgraft.backends.torch.linalg import TorchLinearAlgebra
from tensorgraft.backends.torch.precision import NUMPY, torch_dtype
from tensorgraft.backends.torch.program import TorchProgram, compiler
from tensorgraft.backends.torch.random import TorchRandom
from tensorgraft.backends.torch.recorder import StandIn, suspended
from tensorgraft.backends.torch.reduction import TorchReduction
from tensorgraft.backends.torch.scope import PLAIN, is_followed, native_scope, scope
from tensorgraft.backends.torch.shape import TorchShape
from tensorgraft.backends.torch.sorting import TorchSorting
from tensorgraft.backends.torch.sparse import TorchSparse
from tensorgraft.backends.torch.transforms import TorchTransforms
from tensorgraft.backends.torch.windowed import TorchWindowed
from tensorgraft.errors import TracedValueError
from tensorgraft.hub import registry
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.interchange import Differentiable
from tensorgraft.hub.recorded.native import Dialect

Tensor = torch.Tensor
_GRAFT = "graft"  # the device of the front end, whose tensors are `torch.Tensor`s too


class TorchBackend(
    TorchElementwise,
    TorchReduction,
    TorchShape,
    TorchIndexing,
    TorchSorting,
    TorchSparse,
    TorchLinearAlgebra,
    TorchCoded,
    TorchAttention,
    TorchWindowed,
    TorchFFT,
    TorchRandom,
    TorchControlFlow,
    TorchTransforms,
    Backend,
):
    """Arrays are `torch.Tensor`s on one of PyTorch's own devices; gradients and `torch.func` go through operations."""

    name = "torch"
    modules_have_modes = True
    mutable = True
    compiles = False  # single operations are faster uncompiled; programs (`trace`) are compiled
    traces = True

    def __init__(self, index: int = 0, platform: str | None = None) -> None:
        super().__init__(index, platform)
        self.device = arrays.find_device(index, platform)
        self.dynamo = "inductor" if compiler() == "inductor" else "eager"

    # ---- arrays ----------------------------------------------------------------------------------------------------

    def is_array(self, x: Any, /) -> bool:
        return isinstance(x, Tensor) and x.device.type != _GRAFT

    def is_traced(self, x: Array, /) -> bool:
        return (type(x) is not Tensor and arrays.is_traced(x)) or arrays.in_transform(x)

    def is_differentiated(self, x: Array, /) -> bool:
        return arrays.is_differentiated(x)

    def shape(self, x: Array, /) -> tuple[int, ...]:
        return tuple(x.shape)

    def dtype_of(self, *operands: Any) -> np.dtype:
        for x in operands:
            if isinstance(x, Tensor):
                return NUMPY[x.dtype]
        return super().dtype_of(*operands)

    def signature(self, x: Array, /) -> Hashable:
        return x.shape, x.dtype

    def asarray(self, x: np.ndarray, /) -> Array:
        return arrays.from_numpy(x, self.device)

    def to_numpy(self, x: Array, /) -> np.ndarray:
        if self.is_traced(x):
            raise TracedValueError(
                f"the values of a {x.dtype} tensor of shape {tuple(x.shape)} are needed while a program is being"
                " traced, and are known only when it runs.\nUse the tensor itself (where, cond, while_loop"
                " instead of Python's if and while), or take this step out of the compiled function."
            )
        return arrays.to_numpy(x)

    def copy(self, x: Array, /) -> Array:
        return x.clone(memory_format=torch.contiguous_format)

    def from_dlpack(self, x: Any, /) -> Array:
        return arrays.from_dlpack(x, self.device)

    def strided_view(
        self, x: Array, /, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: np.dtype
    ) -> Array:
        return arrays.strided_view(x, shape, strides, offset, torch_dtype(dtype))

    def memory(self, x: Array, /) -> tuple[Array, tuple[int, ...], int] | None:
        return arrays.memory(x)

    def ensure_owned(self, x: Array, /) -> Array:
        return arrays.own(x)

    def assign(self, view: Array, value: Array, /) -> None:
        arrays.assign(view, value)

    @functools.cached_property
    def small_host(self) -> Backend | None:
        return registry.get("numpy") if self.device.type == "cpu" else None

    def lend(self, x: Array, /) -> np.ndarray | None:
        return arrays.lent(x)

    # ---- programs and devices --------------------------------------------------------------------------------------

    def scope(self) -> contextlib.AbstractContextManager[None]:
        return scope()

    def native_scope(self) -> contextlib.AbstractContextManager[None]:
        return native_scope()

    def in_trace(self) -> bool:
        return is_followed()

    def is_watched(self, arrays: Sequence[Array], /) -> bool:
        return True  # derivatives are requested by `requires_grad`, dual numbers, or levels of `torch.func`

    def dialect(self) -> Dialect:
        return Dialect()

    def compile(self, fn: Callable[..., Any], /, donate: Sequence[int] = ()) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            scope_context = scope()
            if scope_context is PLAIN:
                return fn(*args)
            with scope_context:
                return fn(*args)

        return run

    def trace(self, fn: Callable[[], Sequence[Array]], /) -> TorchProgram:
        return TorchProgram(self, fn)

    def eagerly(self) -> contextlib.AbstractContextManager[None]:
        return suspended()

    def stand_in(self, x: Array, /) -> Array:
        return StandIn(x, x)

    @contextlib.contextmanager
    def pure(self) -> Iterator[None]:
        """Context in which arrays are not written while a program is recorded: updates make new arrays, so that the
        record shows them."""
        before = self.mutable
        self.mutable = False
        try:
            yield
        finally:
            self.mutable = before

    def differentiable(self, function: Differentiable, /) -> Callable[..., tuple[Array, ...]]:
        return native.differentiable(self, function)

    def module(
        self,
        call: Callable[..., Any],
        parameters: dict[str, Array],
        constants: dict[str, Array],
        /,
        stateful: bool = False,
        name: str | None = None,
        described: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    ) -> torch.nn.Module:
        return native.Module(call, parameters, constants, stateful, name, described)

    def detached(self, x: Array, /) -> Array:
        return x.detach()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def memory_stats(self) -> dict[str, int]:
        if self.device.type != "cuda":
            return {}
        return {
            "allocated": torch.cuda.memory_allocated(self.device),
            "peak": torch.cuda.max_memory_allocated(self.device),
        }

    def device_name(self) -> str:
        if self.device.type == "cpu":
            return "CPU"
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type.upper()

    @classmethod
    def device_count(cls) -> int:
        return arrays.device_count(arrays.default_platform())
