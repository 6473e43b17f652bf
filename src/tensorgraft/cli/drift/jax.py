"""A snapshot of JAX: primitives of jaxprs, with the parameters that the rules of their lowering take."""

from __future__ import annotations

import inspect
from collections import ChainMap
from typing import Any

import jax  # noqa: F401
from jax._src.interpreters import mlir

from tensorgraft.cli.drift import Kinds, hashed


def kinds() -> Kinds:
    of_platforms: Any = mlir._platform_specific_lowerings
    rules: Any = ChainMap(mlir._lowerings, *of_platforms.values())
    return {"primitives": {str(primitive): hashed(_parameters(rule)) for primitive, rule in rules.items()}}


def _parameters(rule: Any) -> str:
    """Names alone: annotations and defaults are printed in other ways by other versions of Python."""
    rule = getattr(rule, "rule", rule)  # the function itself, without its cache
    try:
        return " ".join(inspect.signature(rule).parameters)
    except (TypeError, ValueError):
        return ""
