"""Programs of StableHLO in graphs: XLA compiles one when the extents of its arguments come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorgraft.backends.tensorflow.framework import tf
from tensorgraft.backends.tensorflow.operation import TF, dtype_of
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.interchange import Exported


def exported(function: Exported) -> Callable[..., tuple[Array, ...]]:
    """See `Backend.exported`."""

    @tf.custom_gradient
    def call(*arrays: Array) -> Any:
        argnums = tuple(i for i, x in enumerate(arrays) if dtypes.is_inexact(dtype_of(x)))

        def gradient(*cotangents: Array) -> list[Array | None]:
            seeds = [_transposed(g) for g in cotangents if dtypes.is_inexact(dtype_of(g))]
            remaining = iter(exported(function.pullback(argnums))(*arrays, *seeds))
            return [_transposed(next(remaining)) if i in argnums else None for i in range(len(arrays))]

        return _call(function, arrays), gradient

    return lambda *arrays: tuple(call(*arrays)) if function.results else ()


def _call(function: Exported, arrays: Sequence[Array]) -> tuple[Array, ...]:
    from tensorflow.compiler.tf2xla.python import xla

    outputs = xla.call_module(
        [arrays[i] for i in function.reads],
        version=function.version,
        module=function.module,
        Tout=[TF[dtype] for _, dtype in function.results],
        Sout=[shape for shape, _ in function.results],
        platforms=["CPU"],
        disabled_checks=[xla.call_module_disable_check_platform()],  # it has operations of StableHLO alone
    )
    return tuple(outputs)


def _transposed(g: Array) -> Array:
    """TensorFlow's cotangents are conjugated, the hub's are transposed."""
    return tf.math.conj(g) if dtypes.is_complex(dtype_of(g)) else g
