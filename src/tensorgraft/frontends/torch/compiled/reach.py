"""What a function of a program reaches, under the names that the program has for it: `model.head.weight`,
`self.optimizer`, `batch['ids']`."""

from __future__ import annotations

import functools
import inspect
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.core.places import in_library

Named = tuple[str, Any]
_MOST = 100_000  # objects: beyond, names are not worth the time
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.Size)
_FOREIGN = ("tensorgraft", "jax", "jaxlib", "numpy")
_CLOSED = (types.ModuleType, type, types.BuiltinFunctionType, types.GenericAlias, torch.Generator)


def reached(roots: Sequence[Named]) -> Iterator[Named]:
    """The objects behind `roots`, each once, the nearest first; no numbers and strings."""
    seen: set[int] = set()
    queue = deque(roots)
    while queue and len(seen) < _MOST:
        name, value = queue.popleft()
        if isinstance(value, (*_PLAIN, *_CLOSED)) or id(value) in seen:
            continue
        if type(value).__module__.partition(".")[0] in _FOREIGN and not isinstance(value, torch.nn.Module):
            if hasattr(value, "__wrapped__"):  # a compiled function
                queue.append((name, value.__wrapped__))
            continue
        seen.add(id(value))
        yield name, value
        if not isinstance(value, torch.Tensor):
            queue.extend(children(name, value))


def children(name: str, value: Any) -> Iterator[Named]:
    if isinstance(value, torch.nn.Module):
        dot = f"{name}." if name else ""
        for table in (value._parameters, value._buffers, value._modules):
            yield from ((f"{dot}{key}", v) for key, v in table.items())
        yield from ((f"{dot}{key}", v) for key, v in vars(value).items() if not key.startswith("_"))
        yield from ((f"{dot}{key}", v) for key, v in vars(value).items() if key.startswith("_"))
    elif isinstance(value, types.MethodType):
        yield "self", value.__self__
        yield name, value.__func__
    elif isinstance(value, functools.partial):
        yield name, value.func
        yield from ((f"{name}.args[{i}]", v) for i, v in enumerate(value.args))
        yield from value.keywords.items()
    elif isinstance(value, types.FunctionType):
        if not in_library(value.__code__.co_filename):
            yield from variables(value)
    elif isinstance(value, Mapping):
        yield from ((f"{name}[{_key(key)}]", v) for key, v in list(value.items()))
    elif isinstance(value, list | tuple | deque):
        yield from ((f"{name}[{i}]", v) for i, v in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((name, v) for v in list(value))
    elif (held := getattr(value, "__dict__", None)) is not None:
        yield from ((f"{name}.{key}", v) for key, v in list(held.items()))


def variables(fn: types.FunctionType) -> Iterator[Named]:
    """The variables of a function that are not its own: of its closure, and global ones."""
    yield from _closure(fn)
    code = deque([fn.__code__])
    while code:
        one = code.popleft()
        yield from ((n, fn.__globals__[n]) for n in one.co_names if n in fn.__globals__)
        code.extend(c for c in one.co_consts if isinstance(c, types.CodeType))


def _closure(fn: types.FunctionType) -> Iterator[Named]:
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # a variable that is not bound yet
            continue


def arguments(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Named]:
    """The arguments of a call under the names that the function has for them."""
    call = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        bound = inspect.signature(call).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # the call itself says what is wrong; some built-in functions have no signature
        return [*((f"args[{i}]", a) for i, a in enumerate(args)), *kwargs.items()]
    flat: list[Named] = []
    for name, value in bound.items():
        kind = inspect.signature(call).parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            flat.extend(value.items())
        else:
            flat.append((name, value))
    return flat


def _key(key: Any) -> str:
    return repr(key) if isinstance(key, str | int | float | bool | tuple) else "..."
