"""Kernels: functions `(xp, *arguments) -> arrays` in hub operations, registered under the name of an ATen overload.

A kernel sees arrays where the operator has tensors, `numpy.dtype` where it has dtypes, and none of the arguments that
only say where and how the result is laid out (`schema.PLACEMENT`). A kernel of an operator that writes arguments
returns first their new values (None: unchanged), in the order of the schema, then the results.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.promotion import PROMOTION
from tensorgraft.hub.backend import Backend

Kernel = Callable[..., Any]


@dataclass(frozen=True)
class Spec:
    """A kernel and its properties for the dispatch."""

    fn: Kernel
    # numbers that are inputs of the compiled program: another value does not compile again
    dynamic: frozenset[str] = frozenset()
    # integers (and exponents) that say where or how far: inputs, too, but for traces, at those calls for which `moves`
    # gives the options that the kernel is to know instead of their values; None: the values themselves
    positions: tuple[str, ...] = ()
    moves: Callable[..., dict[str, Any] | None] = lambda *args, **kwargs: {}
    # operands are converted to PyTorch's computation dtype before the kernel; a function of the arguments says which
    promotion: PROMOTION | Callable[[Mapping[str, Any]], PROMOTION] | None = None
    promote: tuple[str, ...] = ()  # the operands that take part; () means every tensor, and the number `other`
    # the operand that CPU kernels read as a scalar where it has one element, without rounding it to 16 bits first
    # (`original_scalar_value` in aten/src/ATen/native/cpu/BinaryOpsKernel.cpp)
    scalar_operand: str = ""
    random: bool = False  # the kernel takes `key`, a Threefry key of its own
    # the result's shape or type depends on values: never compiled. A function of the arguments says it call by call
    concrete: bool | Callable[..., bool] = False
    # the source of the result's metadata: PyTorch's meta function (True), the kernel's arrays (False), a function of
    # meta tensors
    meta: bool | Callable[..., Any] = True
    # raises for what the operator refuses: before every call where numbers are inputs, else once a plan
    check: Callable[..., None] | None = None
    writes: tuple[str, ...] = ()  # arguments that are written though the schema does not say so
    host: tuple[str, ...] = ()  # tensors that may be on the CPU whatever their shape (indices)
    decomposed: bool = False  # made of a PyTorch decomposition
    contiguous: bool = False  # the kernel takes `contiguous`: whether its first tensor is row-major
    narrow: bool = False  # the kernel takes `narrow`: whether its complex64 operands are complex32
    uncompiled: bool = False  # run uncompiled, operation by operation
    operation: str = ""  # the one operation of the hub that the kernel is

    def moved(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Return the options that replace the values of positions where these are inputs of the program, else None.
        What moves quantised codes moves their geometry, which is static: its positions are no inputs."""
        if not self.positions or state.now.capture is not None:
            return None
        cell = getattr(args[0].untyped_storage(), "cell", None) if isinstance(args[0], torch.Tensor) else None
        if cell is not None and cell.backend.compound:
            return None
        return self.moves(*args, **kwargs)

    @property
    def has_inputs(self) -> bool:
        """Return True if numbers may be inputs of the program."""
        return bool(self.dynamic or self.positions)


SPECS: dict[str, Spec] = {}
# Kernels of a backend that has more than the hub's operations (readable source), by the names of `SPECS`.
OWN: weakref.WeakKeyDictionary[Backend, Mapping[str, Kernel]] = weakref.WeakKeyDictionary()


def kernel(*names: str, **options: Any) -> Callable[[Kernel], Kernel]:
    """Register a kernel for overloads of `torch.ops.aten` ("add.Tensor")."""
    options["dynamic"] = frozenset(options.get("dynamic", ()))

    def register(fn: Kernel) -> Kernel:
        for name in names:
            if name in SPECS:
                raise ValueError(f"two kernels for {name}")
            SPECS[name] = Spec(fn, **options)
        return fn

    return register
