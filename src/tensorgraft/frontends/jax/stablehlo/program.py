"""Modules of StableHLO as functions."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, sdy, stablehlo

from tensorgraft.frontends.jax.stablehlo.errors import ModuleSizeError, UnsupportedStableHLOError
from tensorgraft.frontends.jax.stablehlo.interpreter import CALLS, RULES, Interpreter, operator_name


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Name the file in errors of reading its module. What the bindings of MLIR raise becomes a ValueError: a module
    that their parser accepts may still lack an attribute, or have one of another type."""
    try:
        yield
    except (ModuleSizeError, UnsupportedStableHLOError) as error:
        raise type(error)(f"{path}: {error}") from None
    except (jax.errors.JaxRuntimeError, FloatingPointError, MemoryError):  # of the computation
        raise
    except Exception as error:
        raise ValueError(f"{path} is not a file of jax.export: {type(error).__name__}: {error}") from error


def function_of(exported: Any, path: str) -> Callable[..., Any]:
    """Return a function of the arguments of a `jax.export.Exported`, which computes what it computes.

    Raises UnsupportedStableHLOError if the module has an operation without a rule, and ValueError if the module is
    broken; so does the function. Errors name `path`.
    """
    with naming(path):
        return _function(exported, path)


def _function(exported: Any, path: str) -> Callable[..., Any]:
    _, module = _module(exported)
    functions = {ir.StringAttr(op.attributes["sym_name"]).value: op for op in module.body.operations}
    kept = exported.module_kept_var_idx
    if "main" not in functions:
        raise ValueError("its module has no function `main`")
    trees = exported.in_tree.num_leaves, exported.out_tree.num_leaves
    if trees != (len(exported.in_avals), len(exported.out_avals)):
        raise ValueError(f"its trees have {trees[0]} arguments and {trees[1]} results, its module others")
    if missing := lacking(exported):
        raise UnsupportedStableHLOError(f"{exported.fun_name}: StableHLO's {', '.join(missing)}")

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        if structure != exported.in_tree:
            raise TypeError(f"{exported.fun_name}: arguments are in {structure}, expected {exported.in_tree}")
        arrays = []
        for x, aval in zip(leaves, exported.in_avals, strict=True):
            array = jax.numpy.asarray(x)
            fits = array.ndim == len(aval.shape) and all(
                n == m
                for n, m in zip(array.shape, aval.shape, strict=True)
                if isinstance(n, int) and isinstance(m, int)
            )
            if array.dtype != aval.dtype or not fits:
                raise TypeError(
                    f"{exported.fun_name}: {array.dtype}{array.shape} is given, expected {aval.str_short()}"
                )
            arrays.append(array)
        with jax.enable_x64(True), naming(path):  # the module has dtypes of its own
            # a module for several platforms takes the number of one
            platform = [np.int32(0)] if len(exported.platforms) > 1 else []
            results = Interpreter(functions).call("main", [*map(np.asarray, platform), *(arrays[k] for k in kept)])
            return jax.tree.unflatten(exported.out_tree, results)

    call.__name__ = call.__qualname__ = exported.fun_name if exported.fun_name.isidentifier() else "exported"
    call.__signature__ = _signature(exported)  # type: ignore[attr-defined]
    call._module = module  # type: ignore[attr-defined]  # owns the operations
    return call


def _signature(exported: Any) -> inspect.Signature:
    args, kwargs = jax.tree.unflatten(exported.in_tree, [0] * exported.in_tree.num_leaves)
    parameters = [inspect.Parameter(f"x{k}", inspect.Parameter.POSITIONAL_ONLY) for k in range(len(args))]
    return inspect.Signature([*parameters, *(inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in kwargs)])


def _module(exported: Any) -> tuple[Any, Any]:
    """Return (the context of a module, the module)."""
    context = ir.Context()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    with context:
        return context, stablehlo.deserialize_portable_artifact(context, exported.mlir_module_serialized)


def operators(exported: Any) -> dict[str, int]:
    """Return the operations of a module, and how often each occurs."""
    context, module = _module(exported)
    counts: dict[str, int] = {}

    def count(block: Any) -> None:
        for op in block.operations:
            name = operator_name(op)
            counts[name] = counts.get(name, 0) + 1
            for region in op.operation.regions:
                for inner in region.blocks:
                    count(inner)

    with context:
        count(module.body)
    return {n: k for n, k in sorted(counts.items()) if n not in ("func.func", "func.return", "stablehlo.return")}


def lacking(exported: Any) -> list[str]:
    """Return the operations of a module that have no rule."""
    return [n for n in operators(exported) if n not in RULES and n not in CALLS]
