"""What a primitive or a function of `jax.numpy` is called by people: recorded so, where its rule would be many steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.extend import core

from tensorgraft.frontends.jax.keys import Keys
from tensorgraft.hub import dtypes
from tensorgraft.hub.recorded.block import Var

Word = Callable[..., Any]  # (recorder, equation, *operands) -> a result, several, or None: it is not said so
PRIMITIVES: dict[str, Word] = {}
FUNCTIONS: dict[str, Word] = {}


def primitive(*names: str) -> Callable[[Word], Word]:
    def register(fn: Word) -> Word:
        PRIMITIVES.update(dict.fromkeys(names, fn))
        return fn

    return register


def function(*names: str) -> Callable[[Word], Word]:
    def register(fn: Word) -> Word:
        FUNCTIONS.update(dict.fromkeys(names, fn))
        return fn

    return register


def _kind(x: Any) -> str:
    return "f" if dtypes.is_floating(x.dtype) else x.dtype.kind


@primitive("integer_pow")
def integer_pow(xp: Any, equation: Any, x: Any) -> Any:
    y = equation.params["y"]
    if _kind(x) != "f" or y in (0, 1):
        return None
    return xp.square(x) if y == 2 else xp.reciprocal(x) if y == -1 else xp.pow(x, y)


@primitive("stop_gradient")
def stop_gradient(xp: Any, equation: Any, x: Any) -> Any:
    return None if isinstance(x, Keys) else xp.word("stop_gradient", x)


@primitive("clamp")
def clamp(xp: Any, equation: Any, low: Any, x: Any, high: Any) -> Any:
    return None if dtypes.is_complex(x.dtype) else xp.clip(x, low, high)


@primitive("convert_element_type")
def convert(xp: Any, equation: Any, x: Any) -> Any:
    """Beyond the range of integers frameworks differ; none says that it saturates but XLA."""
    if isinstance(x, Keys) or x.value is not None or dtypes.is_complex(x.dtype):
        return None
    return xp.astype(x, np.dtype(equation.params["new_dtype"]))


@primitive("gather")
def gather(xp: Any, equation: Any, x: Any, indices: Any) -> Any:
    """`jnp.take` and `x[indices]`: whole rows of one axis. Indices are taken to be in range."""
    numbers = equation.params["dimension_numbers"]
    if isinstance(x, Keys) or numbers.operand_batching_dims or len(numbers.start_index_map) != 1:
        return None
    (axis,) = numbers.start_index_map
    sizes = tuple(equation.params["slice_sizes"])
    k = indices.ndim - 1
    if numbers.collapsed_slice_dims != (axis,) or sizes != (*x.shape[:axis], 1, *x.shape[axis + 1 :]):
        return None
    if tuple(numbers.offset_dims) != (*range(axis), *range(axis + k, x.ndim - 1 + k)) or indices.shape[-1] != 1:
        return None
    index = xp.reshape(indices, indices.shape[:-1])
    if axis == 0 and x.ndim == 2 and k:
        return xp.word("embedding", x, index)
    return xp.take(x, index, axis)


@function("tril", "triu")
def triangle(xp: Any, equation: Any, x: Any) -> Any:
    """The diagonal is a number in the function's body."""
    inner = equation.params["jaxpr"].jaxpr
    added = [e for e in inner.eqns if e.primitive.name == "add"]
    if len(added) != 1 or x.ndim != 2 or not isinstance(added[0].invars[1], core.Literal):
        return None
    k = int(np.asarray(added[0].invars[1].val))
    name, k = ("tril", k) if equation.params["name"] == "tril" else ("triu", k + 1)
    return [getattr(xp, name)(x, *[k] * (k != 0))]


# ---- what a file of source does not do -----------------------------------------------------------------------------------


@primitive("cond")
def check(xp: Any, equation: Any, which: Any, *operands: Any) -> Any:
    """A branch of `equinox.error_if` that raises."""
    branches = equation.params["branches"]
    raising = [_message(b.jaxpr) for b in branches]
    if len(branches) != 2 or raising[0] is not None or raising[1] is None:
        return None
    xp.note(f"a check is left out: {raising[1]!r}")
    return xp.jaxpr_evaluator(branches[0])(*operands)


def _message(jaxpr: core.Jaxpr) -> str | None:
    """What a branch of `error_if` says when it raises; None for what is none."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pure_callback":
            fn = getattr(equation.params["callback"], "callback_func", None)
            if getattr(fn, "__qualname__", "").startswith("_error.<locals>"):
                held = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
                messages = held["msgs"].cell_contents if "msgs" in held else ("an error of Equinox",)
                return str(messages[0]).strip().partition("\n")[0]
    return None


@primitive("debug_callback", "debug_print")
def printed(xp: Any, equation: Any, *operands: Any) -> list[Any]:
    xp.note("jax.debug calls are left out")
    return []


@primitive("pure_callback", "io_callback")
def host_function(xp: Any, equation: Any, *operands: Any) -> Any:
    raise NotImplementedError(
        f"{equation.primitive.name} calls a function of the host, which cannot be written in another framework: write"
        " what it computes in operations of JAX, or leave it out"
    )


def _two(name: str) -> Word:
    def run(xp: Any, equation: Any, *operands: Any) -> Any:
        if len(operands) != 2 or any(type(x) is not Var for x in operands) or operands[0].dtype != operands[1].dtype:
            return None
        return [getattr(xp, name)(*operands)]

    return run


FUNCTIONS["floor_divide"] = _two("floor_divide")
FUNCTIONS["remainder"] = _two("remainder")


__all__ = ["FUNCTIONS", "PRIMITIVES"]
