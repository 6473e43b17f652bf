"""tf2jax's tests of operators, with `tg.graft(function, onto="jax")` in the place of its converter."""

from __future__ import annotations

from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    from tf2jax._src import tf2jax

    if backend := config.getoption("--suite-on"):
        assert backend == "jax", "what tf2jax makes is a function of JAX"
        tf2jax.convert = convert
        tf2jax.convert_functional = convert_functional


def convert_functional(function: Any, *arguments: Any, **options: Any) -> Any:
    import tensorgraft as tg

    return tg.graft(function, onto="jax")


def convert(function: Any, *arguments: Any, **options: Any) -> tuple[Any, Any]:
    """Return a function of variables and arguments which also returns the variables, and the variables."""
    grafted = convert_functional(function)
    apply, variables = grafted[:2] if isinstance(grafted, tuple) else (lambda _, *inputs: grafted(*inputs), {})

    def call(variables: Any, *inputs: Any, rng: Any = None, **named: Any) -> tuple[Any, Any]:
        return apply(variables, *inputs, **named), variables

    return call, variables
