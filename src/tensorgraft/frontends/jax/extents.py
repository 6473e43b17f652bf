"""Evaluation of jaxprs with symbolic extents, for which a backend has symbols of its own: `torch.SymInt`s, while
PyTorch traces a program for several sizes."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import operator
from collections.abc import Iterator, Sequence
from types import CodeType, SimpleNamespace
from typing import Any

import jax
from jax import export

Extents = dict[str, Any]  # {name of JAX's dimension variable: extent}

_now: contextvars.ContextVar[Extents] = contextvars.ContextVar("extents")


@contextlib.contextmanager
def known(extents: Extents) -> Iterator[None]:
    """Context in which symbols stand for these extents."""
    token = _now.set(extents)
    try:
        yield
    finally:
        _now.reset(token)


def symbolic(shapes: Sequence[tuple[tuple[int | str, ...], Any]]) -> tuple[list[jax.ShapeDtypeStruct], dict[str, Any]]:
    """Return (specifications with a symbol for each name in the shapes, {symbol: (argument, axis)})."""
    symbols: dict[str, str] = {}
    sources: dict[str, Any] = {}
    scope = export.SymbolicScope()
    specs = []
    for i, (shape, dtype) in enumerate(shapes):
        names = []
        for axis, n in enumerate(shape):
            if isinstance(n, str):
                n = symbols.setdefault(n, f"extent{len(symbols)}")
                sources.setdefault(n, (i, axis))
            names.append(str(n))
        specs.append(jax.ShapeDtypeStruct(export.symbolic_shape(", ".join(names), scope=scope), dtype))
    return specs, sources


def is_symbolic(equation: Any) -> bool:
    """Return True if an equation has symbolic extents; jaxprs inside of it are not searched."""
    avals = [atom.aval for atom in (*equation.invars, *equation.outvars)]
    return any(not _is_fixed(getattr(a, "shape", ())) for a in avals) or not _is_fixed(list(equation.params.values()))


def concrete(equation: Any) -> Any:
    """Return the equation with the current values of its symbols."""
    extents = _now.get()
    return SimpleNamespace(
        primitive=equation.primitive,
        params={name: _with(x, extents) for name, x in equation.params.items()},
        invars=[SimpleNamespace(aval=_Known(a.aval, extents)) for a in equation.invars],
        outvars=[SimpleNamespace(aval=_Known(a.aval, extents)) for a in equation.outvars],
        effects=equation.effects,
    )


class _Known:
    """The attributes of an abstract value that rules ask for, its symbols replaced by extents."""

    def __init__(self, aval: Any, extents: Extents) -> None:
        self.dtype, self.weak_type = aval.dtype, getattr(aval, "weak_type", False)
        self.shape = _with(tuple(aval.shape), extents)
        self.ndim = len(self.shape)

    @property
    def size(self) -> Any:
        size = 1
        for n in self.shape:
            size = size * n
        return size


def _is_fixed(x: Any) -> bool:
    if isinstance(x, list | tuple):
        return all(map(_is_fixed, x))
    return not export.is_symbolic_dim(x)


def _with(x: Any, extents: Extents) -> Any:
    if export.is_symbolic_dim(x):
        return eval(_code(str(x)), _FUNCTIONS, extents)
    if isinstance(x, list | tuple) and not _is_fixed(x):
        parts = [_with(part, extents) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return x


_FUNCTIONS = {"__builtins__": {}, "floordiv": operator.floordiv, "mod": operator.mod, "max": max, "min": min}


@functools.lru_cache(maxsize=4096)
def _code(text: str) -> CodeType:
    # JAX's own evaluation calls `__index__` of an extent, which would make it a constant for PyTorch
    return compile(text.replace("^", "**"), "extent", "eval")
