"""`torch.graft` until the front end is loaded, and other interfaces that PyTorch's C++ requires of a Python device.

The module answers by itself what PyTorch asks in any program, also one that never uses the device (`torch.manual_seed`
seeds all there are). Any other attribute loads the front end, whose `module` then fills it.
"""

from __future__ import annotations

import ctypes
import threading
import types
from typing import Any

import torch
from torch.utils.backend_registration import (
    _setup_privateuseone_for_python_backend,
    generate_methods_for_privateuse1_backend,
)

from tensorgraft.frontends.torch_entry import loading
from tensorgraft.frontends.torch_entry.loading import TYPE

_raise_error_of_c = (
    ctypes.pythonapi.PyErr_Occurred
)  # ctypes raises the pending exception after a call of a Python function


class _Thread(threading.local):
    error: BaseException | None = None  # an error that autograd's engine would lose


raised = _Thread()


class Guard(torch._C._acc.DeviceGuard):
    """The device guard, which PyTorch's C++ asks for its type also while a Python exception (of a hook for saved
    tensors: a checkpointed function that raises) is on its way out, where a call that returns ends the process. The
    exception is kept, and raised where the engine returns without one."""

    def type_(self) -> Any:
        try:
            _raise_error_of_c()
        except BaseException as error:
            raised.error = error
        return torch.autograd.DeviceType.PrivateUse1


class DeviceModule(types.ModuleType):
    """`torch.graft`."""

    _seed_of_all: int | None = None  # the last argument of `torch.manual_seed` before the front end was loaded

    def __init__(self) -> None:
        super().__init__(f"torch.{TYPE}", "The device module of tensorgraft.")
        vars(self).update(
            {f.__name__: f for f in (_lazy_init, _is_in_bad_fork, is_available, is_initialized, manual_seed_all)}
        )

    def __getattr__(self, name: str) -> Any:
        # Python's own tools look at every module for names such as `__warningregistry__`
        if not (name.startswith("__") and name != "__all__"):
            loading.load()
            if name in vars(self):
                return vars(self)[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        loading.load()
        return [*vars(self)]

    def fill(self, module: types.ModuleType) -> None:
        """Become the front end's module."""
        module_names = ("__all__", "__doc__", "__file__")
        vars(self).update({k: v for k, v in vars(module).items() if k in module_names or not k.startswith("__")})
        if self._seed_of_all is not None:
            vars(module)["manual_seed_all"](self._seed_of_all)


def _lazy_init() -> None:
    """Load the front end; PyTorch calls this when its Python functions meet the device for the first time."""
    loading.load()


def _is_in_bad_fork() -> bool:
    return loading.loaded() and loading.part("device.fork_guard").in_bad_fork()


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return loading.loaded() and loading.part("device.module").is_initialized()


def manual_seed_all(seed: int) -> None:
    """Seed every device, those included that have no index yet."""
    if loading.loaded():
        loading.part("device.module").manual_seed_all(seed)
    else:
        DeviceModule._seed_of_all = int(seed)


module = DeviceModule()


class _Operators(type(torch.ops.aten)):  # type: ignore[misc]
    """`torch.ops.graft`: programs in files name operators of ours."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            loading.load()
        return super().__getattr__(name)


def register() -> None:
    """Make the module `torch.graft`, and `.graft()`, `.is_graft` methods of tensors, modules and storages."""
    _setup_privateuseone_for_python_backend(TYPE, backend_module=module, device_guard=Guard())
    generate_methods_for_privateuse1_backend(
        for_tensor=False, for_module=False, for_packed_sequence=False, for_storage=True
    )
    setattr(torch.ops, TYPE, _Operators(TYPE))


def allow_for_uninitialized() -> None:
    torch.nn.parameter.UninitializedTensorMixin._allowed_methods.append(torch.Tensor.graft)  # type: ignore[attr-defined]
