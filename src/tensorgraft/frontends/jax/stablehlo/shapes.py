"""Operations that move elements, and checks of sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from jaxlib.mlir import ir

from tensorgraft.frontends.jax.stablehlo.attributes import ints, known, result_dtype
from tensorgraft.frontends.jax.stablehlo.errors import ModuleSizeError
from tensorgraft.frontends.jax.stablehlo.interpreter import rule


@rule("reshape")
def reshape(_: Any, op: Any, x: Any) -> Any:
    return lax.reshape(x, ir.RankedTensorType(op.operation.results[0].type).shape)


@rule("dynamic_reshape")
def dynamic_reshape(_: Any, op: Any, x: Any, shape: Any) -> Any:
    return lax.reshape(x, known(shape))


@rule("broadcast_in_dim")
def broadcast_in_dim(_: Any, op: Any, x: Any) -> Any:
    shape = ir.RankedTensorType(op.operation.results[0].type).shape
    return lax.broadcast_in_dim(x, shape, ints(op, "broadcast_dimensions"))


@rule("dynamic_broadcast_in_dim")
def dynamic_broadcast_in_dim(_: Any, op: Any, x: Any, shape: Any) -> Any:
    return lax.broadcast_in_dim(x, known(shape), ints(op, "broadcast_dimensions"))


@rule("transpose")
def transpose(_: Any, op: Any, x: Any) -> Any:
    return lax.transpose(x, ints(op, "permutation"))


@rule("concatenate")
def concatenate(_: Any, op: Any, *xs: Any) -> Any:
    return lax.concatenate(xs, ints(op, "dimension"))


@rule("reverse")
def reverse(_: Any, op: Any, x: Any) -> Any:
    return lax.rev(x, ints(op, "dimensions"))


@rule("slice")
def slice_(_: Any, op: Any, x: Any) -> Any:
    return lax.slice(x, ints(op, "start_indices"), ints(op, "limit_indices"), ints(op, "strides"))


@rule("real_dynamic_slice")
def real_dynamic_slice(_: Any, op: Any, x: Any, start: Any, limit: Any, stride: Any) -> Any:
    return lax.slice(x, known(start), known(limit), known(stride))


@rule("dynamic_slice")
def dynamic_slice(_: Any, op: Any, x: Any, *starts: Any) -> Any:
    return lax.dynamic_slice(x, starts, ints(op, "slice_sizes"))


@rule("dynamic_update_slice")
def dynamic_update_slice(_: Any, op: Any, x: Any, update: Any, *starts: Any) -> Any:
    return lax.dynamic_update_slice(x, update, starts)


@rule("pad")
def pad(_: Any, op: Any, x: Any, value: Any) -> Any:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    return lax.pad(x, value, [*zip(*(ints(op, n) for n in names), strict=True)])


@rule("dynamic_pad")
def dynamic_pad(_: Any, op: Any, x: Any, value: Any, low: Any, high: Any, interior: Any) -> Any:
    return lax.pad(x, value, [*zip(known(low), known(high), known(interior), strict=True)])


@rule("iota")
def iota(_: Any, op: Any) -> Any:
    return lax.broadcasted_iota(result_dtype(op), ir.RankedTensorType(op.operation.results[0].type).shape,
                                ints(op, "iota_dimension"))  # fmt: skip


@rule("dynamic_iota")
def dynamic_iota(_: Any, op: Any, shape: Any) -> Any:
    return lax.broadcasted_iota(result_dtype(op), known(shape), ints(op, "iota_dimension"))


@rule("get_dimension_size")
def get_dimension_size(_: Any, op: Any, x: Any) -> Any:
    return np.asarray(np.shape(x)[ints(op, "dimension")], np.int32)


@rule("custom_call shape_assertion")
def shape_assertion(_: Any, op: Any, holds: Any, *operands: Any) -> Any:
    if isinstance(holds, np.ndarray) and not holds:
        raise ModuleSizeError(str(op.attributes["error_message"]).strip('"'))
    return []


@rule("custom_call Sharding", "custom_call annotate_device_placement")
def identity(_: Any, op: Any, x: Any) -> Any:
    return x
