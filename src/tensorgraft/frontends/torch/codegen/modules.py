"""Calls of modules as frames."""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn import Module

from tensorgraft.codegen.trace import Frame
from tensorgraft.frontends.torch.codegen import multihead
from tensorgraft.frontends.torch.codegen.backend import SourceBackend
from tensorgraft.frontends.torch.codegen.source_expressions import spot_of_call
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.tensors import cell_of, geometry_of, to_array
from tensorgraft.frontends.torch.device.scripted import put_back
from tensorgraft.hub.recorded.block import leaves

Tensor = torch.Tensor
_CONTAINERS = (dict, list, set, collections.OrderedDict)
_STATIC = (bool, int, float, complex, str, type(None))
_transforms = torch._C._functorch.peek_interpreter_stack


class Dropped:
    """The type of DROPPED, which replaces values that a trace leaves out, such as a cache or a configuration."""


DROPPED = Dropped()


def _array(t: Tensor) -> Any:
    return to_array(t) if t.device.type == TYPE else DROPPED


def tree(x: Any, of: Callable[[Tensor], Any] = _array) -> Any:
    """Return arrays (`of` tensors) and static values in tuples, lists and dictionaries, which other mappings become.
    DROPPED for the rest."""
    if isinstance(x, Tensor):
        return of(x)
    if isinstance(x, _STATIC):
        return x
    if isinstance(x, Mapping):
        return {k: v for k, e in x.items() if (v := tree(e, of)) is not DROPPED and (type(x) is dict or e is not None)}
    if isinstance(x, tuple | list):
        parts = [tree(e, of) for e in x]
        if any(p is DROPPED for p in parts):
            return DROPPED
        return parts if isinstance(x, list) else tuple(parts)
    return DROPPED


def pairs(x: Any) -> Iterator[Tensor]:
    """Yield the tensors that `tree` gives arrays of."""
    if isinstance(x, Tensor):
        if x.device.type == TYPE:
            yield x
    elif isinstance(x, Mapping):
        for e in x.values():
            yield from pairs(e)
    elif isinstance(x, tuple | list):
        for e in x:
            yield from pairs(e)


@functools.cache
def _signature(forward: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(forward)
    except (TypeError, ValueError):
        return None


def bound_arguments(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by the names of the module's signature, in its order."""
    signature = _signature(type(module).forward)
    bound: dict[str, Any] = {}
    if signature is not None:
        try:
            named = signature.bind(module, *args, **kwargs)
        except TypeError:
            named = None
        for name, value in (named.arguments if named is not None else {}).items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                bound.update(value)
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                bound.update((f"{name}_{i}", v) for i, v in enumerate(value))
            else:
                bound[name] = value
        bound.pop(next(iter(signature.parameters)), None)  # self
    if not bound:
        bound = {**{f"x{i}": v for i, v in enumerate(args)}, **kwargs}
    return bound


def arguments(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    bound = bound_arguments(module, args, kwargs)
    return [(name, value) for name, v in bound.items() if (value := tree(v)) is not DROPPED]


def doc_of(module: Module) -> str:
    """Return the first sentence of the docstring of the user's class; nothing for PyTorch's classes."""
    if type(module).__module__.startswith("torch."):
        return ""
    doc = (type(module).__dict__.get("__doc__") or "").strip().partition("\n\n")[0]
    return " ".join(doc.split()).partition(". ")[0]


@contextlib.contextmanager
def unchanged_modules(root: Module) -> Iterator[None]:
    """A context after which modules have their previous attributes, and containers among these their previous items: a
    cache would otherwise contain recorded values."""
    before = [(vars(m), dict(vars(m)), [(c, copy.copy(c)) for c in vars(m).values() if type(c) in _CONTAINERS])
              for m in root.modules()]  # fmt: skip
    try:
        yield
    finally:
        for attributes, values, containers in before:
            put_back(attributes, values)
            for container, content in containers:
                if isinstance(container, list):
                    container[:] = content
                elif isinstance(container, dict):
                    put_back(container, content)
                else:
                    container.clear()
                    container.update(content)


class Frames:
    """Makes frames of the calls of a module's parts, on the thread that records."""

    def __init__(self, xp: SourceBackend, root: Module) -> None:
        self.xp, self.root = xp, root
        self.paths: dict[int, str] = {}
        for path, module in root.named_modules(remove_duplicate=False):
            self.paths.setdefault(id(module), path)
        self.thread = threading.get_ident()
        self.stack: list[str] = []

    def call(self, original: Callable[..., Any], module: Module, args: Any, kwargs: Any) -> Any:
        if multihead.can_replace(module, *args, **kwargs):
            original = multihead.forward
        if module is self.root and not self.stack:
            self.stack.append("")
            try:
                return original(module, *args, **kwargs)
            finally:
                self.stack.pop()
        if self.xp.in_body or _transforms() is not None:  # tensors of torch.func hide those that are recorded
            return original(module, *args, **kwargs)
        path = self.paths.get(id(module), "")
        outer_path = self.stack[-1] if self.stack else ""
        name = path[len(outer_path) + 1 :] if outer_path and path.startswith(f"{outer_path}.") else path
        call_spot = spot_of_call()
        frame = Frame(
            type(module).__name__, name, [], arguments(module, args, kwargs), (), call_spot.names, call_spot.place,
            doc_of(module), path, is_module=True,
            attributes={n: v for n, v in vars(module).items() if type(v) in (int, float, bool) and n[0] != "_"},
        )  # fmt: skip
        self.stack.append(path)
        views: list[tuple[Any, Any, Any]] = []
        try:
            with self.xp.frame(frame):
                out = original(module, *args, **kwargs)
                result = tree(out)
                frame.result = result if result is not DROPPED else tuple(to_array(t) for t in pairs(out))
                views = [(cell_of(t).array, geometry_of(t), to_array(t)) for t in pairs(out)]
            result_ids = set(map(id, leaves(frame.result)))
            for array, geometry, view in views:
                if view is not array and id(view) in result_ids:
                    self.xp.remember(array, geometry, view)
            return out
        finally:
            self.stack.pop()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        original = Module.__call__
        frames = self

        @functools.wraps(original)
        def __call__(self: Module, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != frames.thread:
                return original(self, *args, **kwargs)
            return frames.call(original, self, args, kwargs)

        Module.__call__ = __call__  # type: ignore[method-assign]
        try:
            yield
        finally:
            Module.__call__ = original  # type: ignore[method-assign]
