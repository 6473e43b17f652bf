"""Products, convolutions, indexing, decompositions and random bits."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from tensorgraft.frontends.jax.stablehlo.attributes import dtype_of, flag, ints, kind_of_region, known, result_dtype
from tensorgraft.frontends.jax.stablehlo.errors import UnsupportedStableHLOError
from tensorgraft.frontends.jax.stablehlo.interpreter import Interpreter, rule


@rule("dot_general")
def dot_general(_: Any, op: Any, a: Any, b: Any) -> Any:
    d = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    numbers = (
        (list(d.lhs_contracting_dimensions), list(d.rhs_contracting_dimensions)),
        (list(d.lhs_batching_dimensions), list(d.rhs_batching_dimensions)),
    )
    return lax.dot_general(a, b, numbers, preferred_element_type=result_dtype(op))


@rule("convolution")
def convolution(_: Any, op: Any, x: Any, w: Any) -> Any:
    d = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    numbers = lax.ConvDimensionNumbers(
        (d.input_batch_dimension, d.input_feature_dimension, *d.input_spatial_dimensions),
        (d.kernel_output_feature_dimension, d.kernel_input_feature_dimension, *d.kernel_spatial_dimensions),
        (d.output_batch_dimension, d.output_feature_dimension, *d.output_spatial_dimensions),
    )
    ones = [1] * len(d.input_spatial_dimensions)
    padding = np.reshape(ints(op, "padding", np.zeros((len(ones), 2), int)), (len(ones), 2))
    return lax.conv_general_dilated(
        x, w, ints(op, "window_strides", ones), [(int(a), int(b)) for a, b in padding], ints(op, "lhs_dilation", ones),
        ints(op, "rhs_dilation", ones), numbers, ints(op, "feature_group_count"), ints(op, "batch_group_count"),
        preferred_element_type=result_dtype(op),
    )  # fmt: skip


@rule("gather", "dynamic_gather")
def gather(_: Any, op: Any, x: Any, indices: Any, sizes: Any = None) -> Any:
    d = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    numbers = lax.GatherDimensionNumbers(
        tuple(d.offset_dims),
        tuple(d.collapsed_slice_dims),
        tuple(d.start_index_map),
        tuple(d.operand_batching_dims),
        tuple(d.start_indices_batching_dims),
    )
    indices = _vectors_last(indices, d.index_vector_dim)
    window = ints(op, "slice_sizes") if sizes is None else known(sizes)
    return lax.gather(x, indices, numbers, tuple(map(int, window)), mode=lax.GatherScatterMode.CLIP)


def _vectors_last(indices: Any, axis: int) -> Any:
    if axis == np.ndim(indices):
        return lax.expand_dims(indices, [axis])
    return jax.numpy.moveaxis(indices, axis, -1)


@rule("scatter")
def scatter(interpreter: Interpreter, op: Any, x: Any, indices: Any, updates: Any) -> Any:
    d = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    numbers = lax.ScatterDimensionNumbers(
        tuple(d.update_window_dims), tuple(d.inserted_window_dims), tuple(d.scattered_dims_to_operand_dims),
        tuple(d.input_batching_dims),
        tuple(d.scatter_indices_batching_dims),
    )  # fmt: skip
    kinds = {
        "add": lax.scatter_add,
        "multiply": lax.scatter_mul,
        "maximum": lax.scatter_max,
        "minimum": lax.scatter_min,
    }
    kind = kind_of_region(op)
    indices = _vectors_last(indices, d.index_vector_dim)
    modes: dict[str, Any] = {"mode": lax.GatherScatterMode.FILL_OR_DROP, "unique_indices": flag(op, "unique_indices")}
    if kind in kinds:
        return kinds[kind](x, indices, updates, numbers, **modes)
    block = op.operation.regions[0].blocks[0]
    (last,) = block.operations
    if ir.BlockArgument(last.operation.operands[0]).arg_number != 1:
        raise UnsupportedStableHLOError("a scatter with a function of its own")
    return lax.scatter(x, indices, updates, numbers, **modes)


@rule("rng_bit_generator")
def rng_bit_generator(_: Any, op: Any, state: Any) -> Any:
    type_ = ir.RankedTensorType(op.operation.results[1].type)
    return lax.rng_bit_generator(state, type_.shape, dtype_of(type_.element_type))


@rule("fft")
def fft(_: Any, op: Any, x: Any) -> Any:
    kind = stablehlo.FftTypeAttr(op.attributes["fft_type"]).value
    return lax.fft(x, lax.FftType[kind], ints(op, "fft_length"))


@rule("cholesky")
def cholesky(_: Any, op: Any, x: Any) -> Any:
    return jax.lax.linalg.cholesky(x, symmetrize_input=False)


@rule("triangular_solve")
def triangular_solve(_: Any, op: Any, a: Any, b: Any) -> Any:
    kind = stablehlo.TransposeAttr(op.attributes["transpose_a"]).value
    return jax.lax.linalg.triangular_solve(
        a, b, left_side=flag(op, "left_side"), lower=flag(op, "lower"), transpose_a=kind != "NO_TRANSPOSE",
        conjugate_a=kind == "ADJOINT", unit_diagonal=flag(op, "unit_diagonal"),
    )  # fmt: skip
