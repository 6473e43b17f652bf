"""Kernels in C++ of the operators that the cold tier computes (`native.cpp`), in front of those in Python.

Most calls of a small operator take their time on the way from PyTorch's dispatcher to Python and back. The native
kernels do what `ColdOperator.direct` does, and give every call that it would not compute to the kernel in Python. They
are used where their library has been built (`tensorgraft doctor --build`).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable
from pathlib import Path

import torch

from tensorgraft import warning_filters
from tensorgraft.frontends.torch.core import schema, state
from tensorgraft.frontends.torch.core.devices import TYPE, slot_of, slot_of_backend
from tensorgraft.frontends.torch.dispatch import cold, lists
from tensorgraft.frontends.torch.dispatch.memory import memory
from tensorgraft.frontends.torch_entry import native_build
from tensorgraft.hub import tiers
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import ColdStorage

_MAKES, _WRITES, _WRITES_LIST, _COPIES, _CREATES, _EMPTIES, _MOVES, _READS = range(8)  # `Kind` in C++
# (operator that never has a plan, what its kernel does, the operator that its kernel in Python calls)
_WITHOUT_PLANS = (
    ("copy_", _COPIES, "assign"),
    ("_to_copy", _MOVES, "convert"),
    ("_local_scalar_dense", _READS, None),
    ("equal", _READS, None),
    ("empty.memory_format", _EMPTIES, None),
    ("empty_strided", _EMPTIES, None),
    ("arange", _CREATES, "arange.start_step"),
    ("arange.start", _CREATES, "arange.start_step"),
    ("zeros", _EMPTIES, None),
    ("new_zeros", _EMPTIES, None),
    ("zeros_like", _EMPTIES, None),
)


def install(views: Iterable[str]) -> None:
    """Register native kernels of the operators that have one in Python, and of `views`, operators whose CPU kernels
    serve any device. Does nothing without the library; warns if it cannot be used."""
    path = native_build.place() if native_build.is_wanted() else None
    if path is None or not path.exists():
        return
    try:
        library = _loaded(path)
    except (OSError, AttributeError) as error:
        text = (
            f"the native kernels in {path} cannot be loaded, and those in Python serve (TENSORGRAFT_NATIVE=0): {error}"
        )
        warning_filters.warn(text, RuntimeWarning)
        return
    library.tg_setup((state.now, ColdStorage, tiers.tiered, cold.lends, memory, cold.results, _index, _backend_at))
    by_name: dict[str | None, cold.ColdOperator] = {operator.name: operator for operator in cold.operators}
    served: list[tuple[str, int, cold.ColdOperator | None]] = [
        (operator.name, kind, operator) for operator in cold.operators if (kind := _kind(operator)) is not None
    ]
    served += [(name, kind, by_name.get(leads_to)) for name, kind, leads_to in _WITHOUT_PLANS]
    for name, kind, leading in served:
        number = library.tg_kernel(*_name(name), leading.of.calls if leading else {}, kind)
        if leading is not None:
            leading.native_calls.append(functools.partial(library.tg_count, number))
    for name in views:
        library.tg_view(*_name(name))


def _loaded(path: Path) -> ctypes.PyDLL:
    library = ctypes.PyDLL(str(path))
    text = ctypes.c_char_p
    library.tg_setup.argtypes, library.tg_setup.restype = (ctypes.py_object,), None
    library.tg_kernel.argtypes, library.tg_kernel.restype = (text, text, ctypes.py_object, ctypes.c_int), ctypes.c_int64
    library.tg_view.argtypes, library.tg_view.restype = (text, text), None
    library.tg_count.argtypes, library.tg_count.restype = (ctypes.c_int64,), ctypes.c_int64
    return library


def _name(name: str) -> tuple[bytes, bytes]:
    packet, _, overload = name.partition(".")
    return packet.encode(), overload.encode()


def _index(backend: Backend) -> int:
    return slot_of_backend(backend).index


def _backend_at(index: int, empty: bool) -> Backend | None:
    """Return the backend of a device index, where new tensors may start in the cold tier. `empty`: without values,
    which would be constants of a program that is being traced."""
    backend = slot_of(torch.device(TYPE, index) if index >= 0 else None).backend
    return None if empty and backend.is_tracing() else backend


def _kind(operator: cold.ColdOperator) -> int | None:
    """Return what the native kernel of an operator does; None for an operator without one."""
    of = operator.of
    if of.op.namespace != "aten" or not operator.is_direct or operator.written_positions not in ((), (0,)):
        return None
    if of.spec.concrete is True or not schema.runs_on_cpu(of.op):
        return None
    # some are checked before anything is written, some get numbers for tensors, and one may resize what it writes
    if (
        (of.writes and of.spec.check is not None and operator.name != "fill_.Scalar")
        or "xlog1py" in operator.name
        or operator.name == "addbmm_"
    ):
        return None
    if not operator.has_cpu_kernel():
        return None
    if operator.written_positions:
        return _WRITES_LIST if lists.written_in_turn(of) else _WRITES
    if "device" in of.signature.names:
        return _CREATES if operator.creates else None
    return _MAKES
