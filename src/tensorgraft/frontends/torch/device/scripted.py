"""TorchScript modules on the device.

A `ScriptModule` holds its parameters in C++. A parameter that is moved to the device keeps its identity in Python, but
is another tensor to C++ (`conversion.exchange`). So every `ScriptModule` that has the former tensor gets the new one.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import torch

from tensorgraft.compiled.values import is_plain
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.nested import map_nested, tensors_in
from tensorgraft.frontends.torch.device import conversion
from tensorgraft.frontends.torch_entry.late_loading import scripts

ScriptModule = torch.jit.RecursiveScriptModule


class _Thread(threading.local):
    moved: set[int] | None = None  # ids of the parameters moved so far, while a module is being moved


_now = _Thread()


def install() -> None:
    conversion.on_exchange.append(_update_reference)


def with_kernel_errors(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `__call__` of a TorchScript function or method, which replaces errors of kernels by its own, some of them
    without the text: the error then has the text of the kernel's error."""

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        local_state = state.now
        outer, local_state.scripted = local_state.scripted, True
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            cause, local_state.raised = local_state.raised, None
            if cause is None:
                raise
            full_error = _with_text(str(error), cause)
        finally:
            local_state.scripted = outer
        raise full_error from None

    return __call__


def _with_text(text: str, cause: BaseException) -> BaseException:
    """Return TorchScript's error with the text of its cause, as if the cause had been raised in C++."""
    if isinstance(cause, TracedValueError):  # its text already names the line and the remedy
        return cause.with_traceback(None)
    location = text[: text.find("\nRuntimeError: ", text.rfind("<--- HERE"))]
    kind = NotImplementedError if isinstance(cause, NotImplementedError) else RuntimeError
    return kind(f"{location}\nRuntimeError: {cause}\n")


def stand_for(replacement: Any, original: Any) -> Callable[[], Any]:
    """Let TorchScript treat a replacement of one of PyTorch's functions like the original, which it compiles to an
    operator. Returns a function that ends this."""
    table = torch.jit._builtins._get_builtin_table()
    if id(original) in table:
        table[id(replacement)] = table[id(original)]
    return lambda: table.pop(id(replacement), None)


def apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `Module._apply`, used by `to` and `half`: a parameter shared by several modules stays shared."""

    @functools.wraps(original)
    def _apply(self: Any, fn: Callable[..., Any], recurse: bool = True) -> Any:
        if _now.moved is not None:
            return original(self, fn, recurse)
        parts = [part for part in (self.modules() if recurse else (self,)) if isinstance(part, ScriptModule)]
        attributes = [(part, name, attribute) for part in parts for name, attribute in _with_tensors(part)]
        _now.moved = set()
        try:
            return original(self, fn, recurse)
        finally:
            moved, _now.moved = _now.moved, None
            for part, name, attribute in attributes:
                if any(id(t) in moved for t in tensors_in((attribute,), {})):
                    part._c.setattr(name, attribute)

    return _apply


def _attributes(module: Any) -> dict[str, Any]:
    """Return the attributes that a `ScriptModule` has in C++, submodules excluded."""
    names: Any = torch.ConcreteModuleType.from_jit_type(module._c._type())
    return {name: module._c.getattr(name) for name in names.get_attributes()}


def _with_tensors(module: Any) -> list[tuple[str, Any]]:
    """Parameters, buffers, and lists of them (weights of recurrent layers)."""
    return [(name, attribute) for name, attribute in _attributes(module).items() if tensors_in((attribute,), {})]


def _update_reference(x: torch.Tensor, before: torch.Tensor) -> None:
    """Update C++'s reference to a tensor that was moved; its former object is now `before`."""
    if _now.moved is not None:
        _now.moved.add(id(x))
    elif before._use_count() > 1:  # type: ignore[attr-defined]
        for module in [*scripts]:
            for name, attribute in _with_tensors(module):
                if any(t is before for t in tensors_in((attribute,), {})):
                    module._c.setattr(name, map_nested(lambda t: x if t is before else t, attribute))


# ---- modules in traces of `tg.jit` -----------------------------------------------------------------------------------


def with_parts(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return `modules` and their submodules in TorchScript, which Python hooks do not see."""
    parts = (m.modules() if isinstance(m, ScriptModule) else (m,) for m in modules)
    return list({id(m): m for m in chain.from_iterable(parts)}.values())


def put_back(table: Any, before: dict[str, Any]) -> None:
    """Restore the content of a dictionary of a module, or of the equivalent of a `ScriptModule`."""
    if isinstance(table, dict):
        table.clear()
        table.update(before)
        return
    for name, value in before.items():
        if table[name] is not value:
            table[name] = value


class _Values:
    """A live view of the values in a dictionary of a `ScriptModule`, which itself only returns lists of them."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._table.values())


def values_of(table: Any) -> Any:
    return table.values() if isinstance(table, dict) else _Values(table)


def _plain(value: Any) -> bool:
    return all(map(is_plain, value)) if isinstance(value, list) else is_plain(value)


class ScriptAttributes:
    """The plain attributes of a `ScriptModule`. Its code reads them in C++, where a trace cannot record the reads."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._expected = {name: value for name, value in _attributes(module).items() if _plain(value)}

    def get(self, name: str) -> Any:
        return self._module._c.getattr(name) if self._module._c.hasattr(name) else None

    def hold(self) -> bool:
        return all(self.get(name) == value for name, value in self._expected.items())

    def failure(self) -> str:
        """Describe the first attribute whose value has changed."""
        name, value = next(item for item in self._expected.items() if self.get(item[0]) != item[1])
        return f"{self._module.original_name}.{name} was {value!r} and is {self.get(name)!r}"


def attributes_of(module: torch.nn.Module) -> Any:
    return ScriptAttributes(module) if isinstance(module, ScriptModule) else module.__dict__
