"""Settings of PyTorch that are a part of every key under which something made of an operator, or a function, is kept.

Asking costs 30 ns each, where an operator takes microseconds.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributions import Distribution as _Distribution
from torch.utils import _device

from tensorgraft.hub.settings import register
from tensorgraft.hub.straight_line import StraightLine

FLOAT32 = torch.float32
default_dtype = torch.get_default_dtype
deterministic = torch.are_deterministic_algorithms_enabled
_mha = torch.backends.mha  # its flag is as set by the user: autocast changes what PyTorch's layers see while it is on
_anomaly, _checks_nan = torch.is_anomaly_enabled, torch.is_anomaly_check_nan_enabled
_only_warns = torch.is_deterministic_algorithms_warn_only_enabled


def settings() -> tuple[Any, ...]:
    """Return the global settings that operators read."""
    return default_dtype(), deterministic() and (_only_warns(), fills())


def fills() -> bool:
    """Return True if new memory is to be filled (`torch.utils.deterministic`)."""
    return deterministic() and bool(torch.utils.deterministic.fill_uninitialized_memory)  # type: ignore[attr-defined]


def _of_functions() -> tuple[Any, ...]:
    """Return the settings that PyTorch's Python functions read before they call operators."""
    return (
        default_dtype(),
        deterministic() and (_only_warns(), fills()),
        _device.CURRENT_DEVICE,
        _mha._is_fastpath_enabled,
        _Distribution._validate_args,
        _anomaly() and _checks_nan(),
    )


Flagged: Any = torch.backends.PropModule
Flag: Any = torch.backends.ContextProp


def flags() -> dict[tuple[int, str], Any]:
    """Return the flags of `torch.backends` by their module's identity and their name: programs read them, operators of
    the device do not."""
    return {(id(module), name): getattr(module, name, None) for module, name in _flags()}


@functools.cache
def _flags() -> list[tuple[Any, str]]:
    modules = [module for module in vars(torch.backends).values() if isinstance(module, Flagged)]
    return [(m, name) for m in modules for name, member in vars(type(m)).items() if isinstance(member, Flag)]


@contextlib.contextmanager
def restored_on_error() -> Iterator[None]:
    """A context that restores settings if it ends in an exception, because its body is then run again."""
    before, flags_before = _of_functions(), flags()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    strict = deterministic(), _only_warns()
    anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    try:
        yield
    except BaseException:
        if _of_functions() != before:
            dtype, _, device, fast, validates, _ = before
            torch.set_default_dtype(dtype)
            torch.use_deterministic_algorithms(strict[0], warn_only=strict[1])
            torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
            if device != _device.CURRENT_DEVICE:
                torch.set_default_device(device)
            torch.backends.mha.set_fastpath_enabled(fast)
            torch.distributions.Distribution.set_default_validate_args(validates)
            torch.autograd.set_detect_anomaly(*anomaly)
        for (module, name), now in zip(_flags(), flags().items(), strict=True):
            if now[1] != flags_before[now[0]]:
                setattr(module, name, flags_before[now[0]])
        raise


_NAMES = (
    "default dtype",
    "deterministic algorithms",
    "default device",
    "fast path of attention",
    "validate_args",
    "detect_anomaly",
)
_DEFAULTS = (FLOAT32, False, None, True, __debug__, False)


def _write_defaults(code: StraightLine) -> None:
    of_torch = (default_dtype, deterministic, _device, _mha, _Distribution, _anomaly)
    dtype, strict, device, mha, distribution, anomaly = map(code.name, of_torch)
    code.require(f"{dtype}() is {code.name(FLOAT32)} and not {strict}() and {device}.CURRENT_DEVICE is None")
    code.require(
        f"{mha}._is_fastpath_enabled is True and {distribution}._validate_args is {__debug__} and not {anomaly}()"
    )


register(_of_functions, _DEFAULTS, lambda: dict(zip(_NAMES, _of_functions(), strict=True)), _write_defaults)
