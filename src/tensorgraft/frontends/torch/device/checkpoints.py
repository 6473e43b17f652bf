"""`module.load_state_dict` on the device: all of a checkpoint, or nothing.

PyTorch copies the entries that fit, and then raises an error for the others. Here a module is unchanged if it raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.frontends.torch.device.scripted import put_back

Undo = Callable[[], object]


def load_state_dict(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(self: torch.nn.Module, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        if state.now.capture is not None or not _on_the_device(self):
            return original(self, state_dict, *args, **kwargs)
        undo = _snapshot(self, state_dict)
        try:
            return original(self, state_dict, *args, **kwargs)
        except BaseException:
            for step in undo:
                step()
            raise

    return load


def _on_the_device(module: torch.nn.Module) -> bool:
    return any(t.device.type == TYPE for tensors in (module.parameters(), module.buffers()) for t in tensors)


def _snapshot(module: torch.nn.Module, state_dict: Any) -> list[Undo]:
    """Return functions that restore the module as it is now. Arrays that are written in place are copied, unless the
    checkpoint clearly fits."""
    undo: list[Undo] = []
    clearly_fits: bool | None = None
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            undo.append(functools.partial(put_back, table, dict(table)))  # `assign=True` replaces the tensors
            for t in table.values():
                if t is None or t.device.type != TYPE or type(t) not in (torch.Tensor, torch.nn.Parameter):
                    continue
                cell = cell_of(t)
                if cell.cold is None and not cell.backend.mutable:
                    undo.append(functools.partial(setattr, cell, "array", cell.array))
                    continue
                if clearly_fits is None:
                    clearly_fits = _matches_keys(module, state_dict)
                if not clearly_fits:
                    undo.append(functools.partial(t.data.copy_, t.detach().clone()))
    return undo


def _matches_keys(module: torch.nn.Module, state_dict: Any) -> bool:
    """Return True if keys and shapes agree with those of the module. Modules whose hooks change their state, and
    sharded ones, whose state requires collectives, are not checked."""
    if any(part._state_dict_hooks or part._state_dict_pre_hooks for part in module.modules()):
        return False
    expected = module.state_dict(keep_vars=True)
    return (
        isinstance(state_dict, Mapping)
        and expected.keys() == state_dict.keys()
        and all(getattr(t, "shape", None) == getattr(state_dict[name], "shape", None) for name, t in expected.items())
    )
