"""A function or model of JAX as a program that `tg.source` writes down."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from tensorgraft.codegen.program import Evaluation, by_path, cosines
from tensorgraft.codegen.trace import SourceTrace
from tensorgraft.frontends.jax import releases
from tensorgraft.frontends.jax.codegen import models
from tensorgraft.frontends.jax.codegen.programs import TakenApart, closed_arrays, host, is_array, trace_function
from tensorgraft.frontends.jax.jaxpr_interpreter import bind, interpret
from tensorgraft.frontends.jax.keys import is_key_dtype
from tensorgraft.frontends.jax.objects import is_object


class FunctionProgram:
    """A function of JAX, or a model of Equinox, Flax or Haiku."""

    framework = "jax"

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        owner = fn if hasattr(fn, "__qualname__") else type(fn)
        self.name = getattr(owner, "__name__", type(fn).__name__)
        qualified = f"{getattr(owner, '__module__', '')}.{getattr(owner, '__qualname__', self.name)}"
        self.origin = f"{qualified.removeprefix('__main__.')} of {_library(fn)}"

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SourceTrace:
        return trace_function(self.fn, args, kwargs)

    def flatten(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]]]:
        values = [*args, *kwargs.values()]
        omit = TakenApart(self.fn, args, kwargs).held
        flattened = [jax.tree.flatten(x) for x in values]
        positions = [
            (i, k) for i, (flat, _) in enumerate(flattened) if i not in omit for k, x in enumerate(flat) if is_array(x)
        ]

        def rebuild(new: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            changed = [list(flat) for flat, _ in flattened]
            for (i, k), x in zip(positions, new, strict=True):
                changed[i][k] = x
            trees = [
                x if i in omit else jax.tree.unflatten(structure, flat)
                for i, (x, flat, (_, structure)) in enumerate(zip(values, changed, flattened, strict=True))
            ]
            return tuple(trees[: len(args)]), dict(zip(kwargs, trees[len(args) :], strict=True))

        return [flattened[i][0][k] for i, k in positions], rebuild

    def resized(self, x: Any, shape: tuple[int, ...]) -> Any:
        before = x.shape
        for axis, n in enumerate(shape):
            if x.shape[axis] != n:
                x = jnp.take(x, np.arange(n) % x.shape[axis], axis=axis)
        if len(shape) == 2 and len({*before}) == len({*shape}) == 1 and _is_inexact(x):
            block = np.arange(shape[0]) // before[0]  # along the diagonal: what has an inverse, or a root, keeps it
            x = jnp.where(block[:, None] == block, x, 0)
        return x

    def numpy(self, x: Any) -> np.ndarray:
        return host(x)

    def evaluate(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool, same_numbers: bool = False
    ) -> Evaluation:
        inputs = TakenApart(self.fn, args, kwargs)
        closed = jax.make_jaxpr(lambda *arrays: inputs.call(arrays))(*inputs.inputs.values)
        consts = {n: x for n, x in closed_arrays(self.fn)[0].items() if _is_inexact(x)} if inputs.model is None else {}
        trained = {n: inputs.inputs.values[i] for n, i in inputs.inputs.parameters.items()} | consts

        def run(parameters: dict[str, Any]) -> list[Any]:
            operands = list(inputs.inputs.values)
            for n, i in inputs.inputs.parameters.items():
                operands[i] = parameters[n]
            return _evaluated(closed, {id(x): parameters[n] for n, x in consts.items()}, operands)

        results = run(trained)
        positions_: list[Any] = [_ResultIndex(k) for k in range(len(results))]
        tree, written_positions = inputs.results(positions_)
        numbers = by_path(tree)
        outputs = {n: results[k] for n, k in numbers.items() if type(k) is _ResultIndex}
        outputs = {n: x for n, x in outputs.items() if hasattr(x, "dtype")}
        buffers = {n: inputs.inputs.values[i] for n, i in inputs.inputs.buffers.items()}
        buffers |= {n: results[k] for n, k in written_positions.items()}  # type: ignore[call-overload]
        gradients_by_name: dict[str, Any] = {}
        smooth = [numbers[n] for n, x in outputs.items() if _is_inexact(x)]
        if gradients and smooth and trained:

            def total(parameters: dict[str, Any]) -> Any:
                after = run(parameters)
                return sum((jnp.real(after[k]) * cosines(after[k].shape).astype(np.float32)).sum() for k in smooth)

            gradients_by_name = jax.grad(total)(trained)
        return Evaluation(
            {n: host(x) for n, x in outputs.items()},
            {n: host(jnp.conj(x)) for n, x in gradients_by_name.items()},  # the direction, as other frameworks have it
            {n: host(x) for n, x in buffers.items()},
        )


class _ResultIndex(int):
    """The place of an array among the results: a program may return numbers, too."""


def _is_inexact(x: Any) -> bool:
    return not is_key_dtype(x.dtype) and bool(jnp.issubdtype(x.dtype, np.inexact))


def _library(fn: Any) -> str:
    name = next(
        (n for n in ("equinox", "flax", "haiku") if n in sys.modules and type(fn).__module__ and _is_of(fn, n)), "jax"
    )
    library = {"equinox": "Equinox", "flax": "Flax", "haiku": "Haiku", "jax": "JAX"}[name]
    return f"{library} {sys.modules[name].__version__}"


def _is_of(fn: Any, library: str) -> bool:
    if library == "equinox":
        return models.is_module(fn) and not is_object(fn)
    if library == "flax":
        linen = sys.modules.get("flax.linen")
        return is_object(fn) or (linen is not None and isinstance(getattr(fn, "__self__", fn), linen.Module))
    return getattr(fn, "__module__", "").startswith("haiku")


def _evaluated(closed: core.ClosedJaxpr, replacements: dict[int, Any], operands: Sequence[Any]) -> list[Any]:
    """Return the results of a jaxpr, with other values for constants (by `id`), those of functions that it calls
    too."""

    def compute(equation: Any, values: list[Any]) -> list[Any]:
        if equation.primitive.name in ("jit", "pjit", "closed_call"):
            return _evaluated(releases.called_jaxpr(equation), replacements, values)
        return bind(equation, values)

    return interpret(closed.jaxpr, [replacements.get(id(c), c) for c in closed.consts], operands, compute)


__all__ = ["FunctionProgram"]
