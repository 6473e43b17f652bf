"""Observation of a program while a front end traces it: the functions that are called, and their variables."""

from __future__ import annotations

import contextlib
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tensorgraft.codegen.recorders.frames import Called


@dataclass
class ProgramWatch(ABC):
    """The recorded calls and variables. Subclasses decide which files are the user's, and return keys of values."""

    program_calls: list[Called] = field(default_factory=list)
    names: dict[Any, dict[int, str]] = field(default_factory=dict)  # {key: {number of the call, or -1: variable}}
    _call_stack: list[int] = field(default_factory=list)

    @abstractmethod
    def is_users(self, path: str) -> bool:
        """Return True for a file of the program, or of a library's layers."""

    @abstractmethod
    def key_of(self, name: str, x: Any) -> Any:
        """Return the key of a variable's value if it is traced, else None."""

    def around(self) -> Called | None:
        """Return the call in progress, or None."""
        return self.program_calls[self._call_stack[-1]] if self._call_stack else None

    @contextlib.contextmanager
    def of_variables(self) -> Iterator[None]:
        """A context in which the variables of the user's functions are recorded."""
        with watched_functions(self._trace_call):
            yield

    def _trace_call(self, frame: Any, event: str, arg: Any) -> Any:
        if not self.is_users(frame.f_code.co_filename):
            return None
        last_ids = {name: id(x) for name, x in frame.f_locals.items()}

        def line(frame: Any, event: str, arg: Any) -> Any:
            for name, x in frame.f_locals.items():
                if last_ids.get(name) != id(x):
                    last_ids[name] = id(x)
                    key = None if name.startswith((".", "__")) else self.key_of(name, x)
                    if key is not None:
                        caller = self._call_stack[-1] if self._call_stack else -1
                        self.names.setdefault(key, {}).setdefault(caller, name)
            return line

        return line


def named_arguments(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the arguments of a call by name, those of `**kwargs` separately; none if the signature is not known."""
    try:
        named = inspect.signature(fn).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return []
    flat: list[tuple[str, Any]] = []
    for name, value in named.items():
        flat.extend(value.items() if name == "kwargs" and isinstance(value, dict) else [(name, value)])
    return flat


def single_arguments(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the arguments of a call by name, those of `*args` (`x0`, `x1`) and `**kwargs` separately. Raises TypeError
    or ValueError if the signature is not known, or does not fit."""
    signature = inspect.signature(fn)
    flat: list[tuple[str, Any]] = []
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            flat.extend(value.items())
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            flat.extend((name if len(value) == 1 else f"{name}{i}", x) for i, x in enumerate(value))
        else:
            flat.append((name, value))
    return flat


@contextlib.contextmanager
def watched_functions(tracer: Callable[[Any, str, Any], Any]) -> Iterator[None]:
    """Inside, Python's tracing calls `tracer` where a function begins."""
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        yield
    finally:
        sys.settrace(before)


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves of tuples, lists and dictionaries, in their order."""
    if isinstance(tree, dict):
        for x in tree.values():
            yield from leaves(x)
    elif isinstance(tree, list | tuple):
        for x in tree:
            yield from leaves(x)
    else:
        yield tree


def mapped(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree with `fn` of its leaves; named tuples are tuples."""
    if isinstance(tree, dict):
        return {k: mapped(fn, x) for k, x in tree.items()}
    if isinstance(tree, tuple):
        return tuple([mapped(fn, x) for x in tree])
    return [mapped(fn, x) for x in tree] if isinstance(tree, list) else fn(tree)


def first_sentence(doc: str | None, name: str = "") -> str:
    """Return the first sentence of a docstring; "" for one that a dataclass, `name`, made."""
    if not doc or doc.startswith(f"{name}("):
        return ""
    sentence = " ".join(inspect.cleandoc(doc).split("\n\n")[0].split())
    return sentence.partition(". ")[0].rstrip(".") + "." if sentence else ""
