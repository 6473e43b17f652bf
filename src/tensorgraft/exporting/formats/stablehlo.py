"""StableHLO, as `jax.export` writes it: a function of arrays for one or more platforms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax import export

from tensorgraft import files
from tensorgraft.codegen.program import error_line
from tensorgraft.exporting.conversion import Converted
from tensorgraft.exporting.formats import Format
from tensorgraft.exporting.sizes import OpenSizes
from tensorgraft.exporting.structure import filled, taken
from tensorgraft.exporting.subject import Subject

PLATFORMS = ("cpu", "cuda", "tpu")


def _write(
    converted: Converted, subject: Subject, sizes: OpenSizes, path: str, options: Mapping[str, Any]
) -> list[str]:
    platforms = tuple(options.get("platforms") or PLATFORMS)
    arrays = [subject.source.numpy(x) for x in subject.arrays]
    with jax.enable_x64(jax.config.read("jax_enable_x64") or is_wide(arrays)):
        exported, notes = _exported(converted, subject, sizes, arrays, platforms, "platforms" in options)
        files.write(path, exported.serialize())
    return notes


def is_wide(arrays: list[np.ndarray]) -> bool:
    """Return True if a program computes with 64 bits, for which JAX has a setting."""
    return any(x.dtype in (np.float64, np.complex128) for x in arrays)


def _exported(
    converted: Converted, subject: Subject, sizes: OpenSizes, arrays: list[np.ndarray], platforms: Any, strict: bool
) -> tuple[Any, list[str]]:
    for _ in range(len(sizes.open()) + 1):
        try:
            return _with_constraints(converted, subject, sizes, arrays, platforms, strict)
        except Exception as error:
            if not sizes.bound(str(error)):
                raise
    raise AssertionError


def _with_constraints(
    converted: Converted, subject: Subject, sizes: OpenSizes, arrays: list[np.ndarray], platforms: Any, strict: bool
) -> tuple[Any, list[str]]:
    scope = export.SymbolicScope([f"{name} <= {n}" for name, n in sizes.limits.items()])
    specs = []
    for k, x in enumerate(arrays):
        text = ", ".join(map(str, sizes.shape(k)))
        shape = export.symbolic_shape(text, scope=scope) if text else ()
        specs.append(jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(x.dtype)))
    args, kwargs = filled(subject.structure, specs)

    def call(*args: Any, **kwargs: Any) -> Any:
        found = taken(subject.structure, (args, kwargs))
        return converted.call([found[k] for k in sorted(found)])

    def step(state: Any, *args: Any, **kwargs: Any) -> Any:
        found = taken(subject.structure, (args, kwargs))
        return converted.call(state, [found[k] for k in sorted(found)])

    if converted.state:
        args = (jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), converted.state), *args)
    function = jax.jit(step if converted.state else call)
    try:
        return export.export(function, platforms=platforms)(*args, **kwargs), []
    except NotImplementedError as error:  # an operation that one of the platforms lacks
        if strict or platforms == ("cpu",):
            raise
        note = f"for cpu only, not for {', '.join(platforms[1:])}: {error_line(error)}"
        return export.export(function, platforms=("cpu",))(*args, **kwargs), [note]


FORMAT = Format("stablehlo", "jax", "jax", ".stablehlo", _write, ("platforms",))
