"""Functions of JAX of arrays with unknown extents. They are traced with JAX's symbolic extents and exported to
StableHLO, from which a backend compiles a program for any extents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import export
from jax.extend import core
from jax.extend.mlir.dialects import stablehlo

from tensorgraft.errors import ShapeError
from tensorgraft.frontends.jax import traced_value_errors
from tensorgraft.frontends.jax.keys import is_key_dtype
from tensorgraft.frontends.jax.program import traced
from tensorgraft.frontends.jax.symbolic_lowering import lowered
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

Extents = tuple[int | None, ...]


def native(
    xp: Backend, fn: Callable[..., Sequence[Any]], specs: Sequence[tuple[Extents, Any]], name: str
) -> tuple[core.ClosedJaxpr, Callable[..., tuple[Array, ...]]]:
    """Return (the jaxpr, the function on arrays of `xp`) for arguments of which some have extents None.

    Raises ShapeError if the program depends on the values of the extents, NotImplementedError if it has operations that
    are calls of a library."""
    errors: list[Exception] = []
    for symbolic in _symbolic(specs):
        try:
            closed = traced(fn, symbolic)
            return closed, xp.exported(ExportedFunction(core.jaxpr_as_fun(closed), symbolic, name))
        except Exception as error:  # the function may do anything with an extent
            if not _EXTENT_ERRORS.search(str(error)):
                raise
            errors.append(error.error if isinstance(error, traced_value_errors.Failed) else error)
    raise ShapeError(
        f"{name} depends on an unknown extent: {_locations(specs)}. JAX reports: {_first_line(errors[0])}\n"
        "Specify the extent (`tf.TensorSpec((32, 8))`, `keras.Input((8,), batch_size=32)`), or write the program"
        " for any extent: use `x.shape[0]` in shapes and arithmetic, but not `int(x.shape[0])`, and neither"
        " `range` nor `if` of it."
    ) from errors[0]


def _symbolic(specs: Sequence[tuple[Extents, Any]]) -> Iterator[list[jax.ShapeDtypeStruct]]:
    """Yield symbolic shapes for unknown extents, the most general first: a symbol for each extent; one symbol for all
    first axes, since these are often those of a batch; one symbol for each number of an axis. Arrays whose extents are
    not equal where the symbols are raise an error at the call."""
    kinds: list[Callable[[int, int], str]] = [
        lambda i, axis: f"extent{i}_{axis}",
        lambda i, axis: f"extent{i}_{axis}" if axis else "extent_0",
        lambda i, axis: f"extent_{axis}",
    ]
    seen_names = []
    for kind in kinds:
        names = [[kind(i, a) if n is None else str(n) for a, n in enumerate(s)] for i, (s, _) in enumerate(specs)]
        if names in seen_names:
            continue
        seen_names.append(names)
        scope = export.SymbolicScope()
        yield [
            jax.ShapeDtypeStruct(export.symbolic_shape(", ".join(shape), scope=scope), dtype)
            for shape, (_, dtype) in zip(names, specs, strict=True)
        ]


_EXTENT_ERRORS = re.compile(r"extent\d*_\d|_DimExpr|[Ss]ymbolic dim|dimension variable")  # in JAX's own errors


def _locations(specs: Sequence[tuple[Extents, Any]]) -> str:
    descriptions = [
        f"axis {', '.join(str(a) for a, n in enumerate(shape) if n is None)} of an argument of shape {shape}"
        for shape, _ in specs
        if None in shape
    ]
    return "; ".join(descriptions)


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return re.split(r"\n|\. ", text)[0].strip().rstrip(".") + "."


class ExportedFunction:
    """A function of flat arrays as a program of StableHLO (`hub.interchange.Exported`)."""

    def __init__(self, fn: Callable[..., Sequence[Any]], specs: Sequence[jax.ShapeDtypeStruct], name: str) -> None:
        self.fn, self.specs, self.name = fn, list(specs), name
        self._pullbacks: dict[tuple[int, ...], ExportedFunction] = {}
        # random keys are passed as their data, as everywhere in a backend
        words = [*map(_words, self.specs)]
        program = core.jaxpr_as_fun(lowered(jax.make_jaxpr(self._on_words)(*words)))
        exported = export.export(jax.jit(program), platforms=["cpu"])(*words)
        calls = set(re.findall(r"custom_call @([\w.]+)", str(exported.mlir_module()))) - _PORTABLE_CALLS
        if calls:
            raise NotImplementedError(
                f"{name} calls {', '.join(sorted(calls))}, library routines that require known extents: specify"
                " them (`tf.TensorSpec((32, 8))`, `keras.Input((8,), batch_size=32)`)"
            )
        self.module, self.version = _serialized(exported), exported.calling_convention_version
        self.reads = exported.module_kept_var_idx
        self.results = [
            (tuple(n if isinstance(n, int) else None for n in a.shape), a.dtype) for a in exported.out_avals
        ]
        self._out = exported.out_avals

    def _on_words(self, *words: Any) -> list[Any]:
        arrays = [
            jax.random.wrap_key_data(x, impl=s.dtype._impl.name) if is_key_dtype(s.dtype) else x
            for x, s in zip(words, self.specs, strict=True)
        ]
        return [jax.random.key_data(x) if is_key_dtype(x.dtype) else x for x in self.fn(*arrays)]

    def pullback(self, argnums: tuple[int, ...]) -> ExportedFunction:
        """Return the function from (arguments, cotangents of the inexact results) to the cotangents of the arguments
        `argnums`."""
        n = len(self.specs)

        def pulled_back(*words: Any) -> list[Any]:
            def inexact_results(*inputs: Any) -> list[Any]:
                arrays = list(words[:n])
                for i, x in zip(argnums, inputs, strict=True):
                    arrays[i] = x
                return [r for r in self.fn(*arrays) if jax.numpy.issubdtype(r.dtype, np.inexact)]

            return list(jax.vjp(inexact_results, *[words[i] for i in argnums])[1](list(words[n:])))

        if argnums not in self._pullbacks:
            out = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self._out if np.issubdtype(a.dtype, np.inexact)]
            self._pullbacks[argnums] = ExportedFunction(pulled_back, [*self.specs, *out], self.name)
        return self._pullbacks[argnums]


_OLDEST_VERSION = "1.10.0"  # of StableHLO, which TensorFlow 2.20 reads; JAX writes the version of twelve weeks ago


def _serialized(exported: export.Exported) -> bytes:
    """Return a program in the oldest version of StableHLO, or in JAX's if that version lacks its operations."""
    try:
        return stablehlo.serialize_portable_artifact_str(exported.mlir_module(), _OLDEST_VERSION)
    except ValueError:
        return exported.mlir_module_serialized


# custom calls that every compiler of StableHLO supports
_PORTABLE_CALLS = frozenset({
    "shape_assertion", "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement",
    "stablehlo.dynamic_reduce_window", "stablehlo.dynamic_rng_bit_generator", "stablehlo.dynamic_top_k",
})  # fmt: skip


def _words(spec: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    if not is_key_dtype(spec.dtype):
        return spec
    data = jax.eval_shape(jax.random.key_data, spec)
    return jax.ShapeDtypeStruct(data.shape, data.dtype)
