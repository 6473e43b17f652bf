"""Targets: the rules by which a program is written as source code, a file for each framework.

A target is a table: operation of the hub, or word (`codegen.words`) -> how it is written.

    RULES = {
        "exp": "jnp.exp(x)",                                        # names are the parameters of the operation
        "sum": "jnp.sum(x, axis=axis, keepdims=keepdims)",          # keywords are left out where the call has defaults
        "linear": linear,                                           # def linear(w, x, weight, bias): -> ast.expr
    }

A function gets a `Writing` and the call's arguments by name, as they are in the trace (`Var`s, numbers, dtypes, tuples)
with the operation's defaults: `w(x)` writes one, `w.fill(template, **arguments)` a template of them. In a template that
stands in the table, arguments with the operation's defaults are left out: where the target has another default, it
takes a function. What a table lacks is written as what it means: an operation or word that is made of others as these
(`expanding`), and a primitive is an error that names it.

Helpers are functions of the generated file: Python in `helpers`, of which those that are named in the text are copied
into it, with those that they name.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from tensorgraft.hub.recorded.block import Block, Var
from tensorgraft.importing import required


class Writing(Protocol):
    """The interface of the writer that a target's rules are given."""

    def __call__(self, value: Any) -> ast.expr:
        """Return a `Var`, a size, a number, a dtype, or a container of them, as an expression."""

    def fill(self, template: str, /, **arguments: Any) -> ast.expr:
        """Return a template with its arguments filled in as if it was called with them; keywords whose argument is None
        are left out."""

    def body(self, block: Block, name: str, star: bool = False) -> ast.expr:
        """Return the name of a function that does a `Block` (of a loop or branch), which is written before the
        statement."""

    def call_outcome(self) -> Any:
        """Return the outcome (Vars) of the call that is being written: its shape and dtype."""


Rule = str | Callable[..., ast.expr]


@dataclass
class Target:
    """The rules and conventions by which programs are written for one framework."""

    name: str  # "jax"
    imports: dict[str, str]  # the name in the text -> the statement: {"jnp": "import jax.numpy as jnp"}
    rules: dict[str, Rule]  # operation of the hub or word -> how it is written
    dtype: Callable[[np.dtype], str]  # "jnp.float32"; raises ValueError for what the framework lacks
    array: str  # the type of an array, in hints: "jax.Array"
    constant: str  # a template of a NumPy-like literal (`x`) with its dtype (`dtype`): "jnp.array(x, dtype)"
    helpers: ModuleType | None = None
    prelude: str = ""  # the first line of a function, of its first array `x`, that gives the name before its `=`
    shape: str = "x.shape"  # the shape of an array, as a tuple of numbers
    infinity: str = 'float("inf")'
    nan: str = 'float("nan")'
    load: str = "x"  # an array of NumPy as one of the framework, and back
    save: str = "np.asarray(x)"
    trains: bool = True  # the framework has derivatives
    title: str = "JAX"
    runner: str = "jax"
    key: type[np.generic] = np.uint32  # the two integers of a key of random numbers


def target(name: str) -> Target:
    """Return a target. Raises ValueError for an unknown one, ModuleNotFoundError if its framework is not installed."""
    known = ("jax", "torch", "tensorflow", "numpy", "array_api")
    if name not in known:
        raise ValueError(f"onto={name!r}: expected one of {', '.join(map(repr, known))}")
    if name != "array_api":
        required(name, by=f"tg.source(..., onto={name!r})")
    return importlib.import_module(f"tensorgraft.codegen.targets.{name}").TARGET


__all__ = ["Block", "Rule", "Target", "Var", "Writing", "target"]
