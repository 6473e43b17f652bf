"""An observer of a program while JAX traces it: the modules that it calls, and the names of its variables.

JAX's equations have little information on the program that made them. A call of a module is therefore a name scope
(`jax.named_scope`) with a number, which JAX keeps through `vmap` and derivatives, and the variables of the user's
functions are searched for tracers, line by line.
"""

from __future__ import annotations

import contextlib
import functools
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.extend import core

from tensorgraft.codegen.recorders.call_recorder import ProgramWatch, named_arguments
from tensorgraft.codegen.recorders.frames import Called

_TAG = "tensorgraft:"
_OURS = f"{Path(__file__).parents[3]}/"
_STANDARD = (sysconfig.get_path("stdlib"), "<frozen")
# Packages whose functions have nothing to say of a user's program; layers of libraries do.
_MACHINERY = ("jax", "jaxlib", "numpy", "jaxtyping", "beartype", "tensorgraft", "optree", "wadler_lindig", "ml_dtypes")
_LAYERS = ("/equinox/nn/", "/flax/linen/", "/flax/nnx/nn/", "/haiku/_src/")
_HALF = ("equinox", "flax", "haiku")


@dataclass
class CallWatch(ProgramWatch):
    """The calls of modules and the names of variables that were seen while JAX traced a program."""

    # ---- calls -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def call(self, user_call: Called) -> Iterator[None]:
        number = len(self.program_calls)
        self.program_calls.append(user_call)
        self._call_stack.append(number)
        try:
            with jax.named_scope(f"{_TAG}{number}"):
                yield
        finally:
            self._call_stack.pop()
            user_call.model = None

    def saw(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        """Return the arguments of a call by name, tracers as the variables that they are."""
        flat = named_arguments(fn, args, kwargs)
        return [(name, jax.tree.map(lambda x: variable_of(x) or x, value)) for name, value in flat]

    # ---- names -----------------------------------------------------------------------------------------------------

    def is_users(self, path: str) -> bool:
        return is_users(path)

    def key_of(self, name: str, x: Any) -> Any:
        return variable_of(x) if isinstance(x, jax.core.Tracer) else None


@functools.cache
def is_users(path: str) -> bool:
    """Return whether a file is a program's, or has layers of a library, rather than machinery."""
    if path.startswith(_STANDARD[1]) or path == "<string>":
        return False
    _, of_packages, rest = path.rpartition("/site-packages/")
    if of_packages:
        package = rest.partition("/")[0]
        if package in _MACHINERY:
            return False
        return package not in _HALF or any(layers in path for layers in _LAYERS)
    return not path.startswith((_STANDARD[0], _OURS))


def variable_of(x: Any) -> core.Var | None:
    """Return the variable of the jaxpr in progress that a tracer (also of a batch or a derivative) represents."""
    for _ in range(20):
        if not isinstance(x, jax.core.Tracer):
            return None
        value = getattr(x, "val", None)
        if isinstance(value, core.Var):
            return value
        x = value if value is not None else getattr(x, "primal", None)
    return None


def scopes(stack: Any) -> tuple[tuple[int, ...], bool]:
    """Return (the numbers of the calls around an equation, whether it is of their derivative)."""
    numbers, derived = [], False
    for part in stack.stack:
        name = part.name
        if type(part).__name__ == "Transform":
            derived = derived or name not in ("vmap",)
        elif name.startswith(_TAG):
            numbers.append(int(name[len(_TAG) :]))
    return tuple(numbers), derived
