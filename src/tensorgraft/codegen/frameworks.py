"""Detection of a function's framework from its class, its arguments and the names in its code."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

from tensorgraft.codegen.captured_values import captured_values, names_in

# package -> framework
_PACKAGES = {
    "jax": "jax", "jaxlib": "jax", "equinox": "jax", "flax": "jax", "haiku": "jax", "optax": "jax", "lineax": "jax",
    "tensorflow": "tensorflow", "keras": "tensorflow", "tf_keras": "tensorflow",
    "tensorgraft": "array_api", "array_api_compat": "array_api", "array_api_strict": "array_api",
    "array_api_extra": "array_api",
}  # fmt: skip
# arrays of NumPy determine no framework: every framework accepts them
_MODULES = {**_PACKAGES, "numpy": "array_api"}
_NAMES = {"__array_namespace__": "array_api", "array_namespace": "array_api"}


def framework_of(program: Any, examples: Any) -> str | None:
    """Return the framework of a program: "jax", "tensorflow" or "array_api"; None if it is not callable."""
    if not callable(program):
        return None
    for x in (program, getattr(program, "__self__", None), inspect.unwrap(program)):  # `jax.vmap(model)` is around one
        of_class = _of_class(type(x))
        if of_class not in (None, "array_api"):
            return of_class
    of_examples = {f for x in _leaves(examples) for f in [_of_class(type(x))] if f}
    mentioned = set(_mentioned(program))
    for candidates in (of_examples, mentioned):
        # the Array API is last, since its classes mention no other framework
        for framework in ("tensorflow", "jax", "array_api"):
            if framework in candidates:
                return framework
    plain = all(type(x).__module__ == "numpy" for x in _leaves(examples) if hasattr(x, "dtype"))
    return "array_api" if (plain and isinstance(program, types.FunctionType)) or "jax" not in sys.modules else "jax"


def _of_class(cls: type) -> str | None:
    for base in cls.__mro__:
        framework = _PACKAGES.get(base.__module__.partition(".")[0])
        if framework is not None:
            return framework
    return None


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, list | tuple):
        for x in tree:
            yield from _leaves(x)
    elif isinstance(tree, dict):
        yield from _leaves(list(tree.values()))
    else:
        yield tree


def _mentioned(fn: Any, depth: int = 3) -> Iterator[str]:
    """Yield the frameworks of which a function's code names modules, functions and objects."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is not None:
        yield from (_NAMES[name] for name in names_in(code) if name in _NAMES)
    for _, x in captured_values(fn):
        module = x.__name__ if isinstance(x, types.ModuleType) else getattr(x, "__module__", "") or ""
        package = module.partition(".")[0]
        framework = _MODULES.get(package) or _of_class(type(x))
        if framework is not None:
            yield framework
        elif depth and isinstance(x, types.FunctionType) and package == _package(fn):
            yield from _mentioned(x, depth - 1)


def _package(fn: Any) -> str:
    fn = fn.func if isinstance(fn, functools.partial) else fn
    return (getattr(fn, "__module__", "") or "").partition(".")[0]
