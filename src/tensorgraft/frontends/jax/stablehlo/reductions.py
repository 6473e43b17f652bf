"""Reductions, windows and sorting."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from tensorgraft.frontends.jax.stablehlo.attributes import ints, kind_of_region, known
from tensorgraft.frontends.jax.stablehlo.errors import UnsupportedStableHLOError
from tensorgraft.frontends.jax.stablehlo.interpreter import Interpreter, rule

_REDUCTIONS: dict[str, Any] = {
    "add": lax.add, "maximum": lax.max, "minimum": lax.min, "multiply": lax.mul, "and": lax.bitwise_and,
    "or": lax.bitwise_or, "xor": lax.bitwise_xor,
}  # fmt: skip


@rule("reduce")
def reduce(interpreter: Interpreter, op: Any, *operands: Any) -> Any:
    arrays, initial = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    kind, axes = kind_of_region(op), ints(op, "dimensions")
    if len(arrays) == 1 and kind in _REDUCTIONS:
        return lax.reduce(arrays[0], initial[0], _REDUCTIONS[kind], axes)
    if len(arrays) == 2 and len(axes) == 1 and np.issubdtype(arrays[1].dtype, np.integer):
        largest = _first_direction(op) in ("GT", "GE")  # the arg max of JAX: of values and their places
        at = (lax.argmax if largest else lax.argmin)(arrays[0], axes[0], arrays[1].dtype)
        best = jax.numpy.take_along_axis(arrays[0], jax.numpy.expand_dims(at, axes[0]), axes[0])
        return [lax.squeeze(best, axes), at]
    fn = interpreter.region(op)
    n = len(arrays)
    return lax.reduce(list(arrays), list(initial), lambda a, b: tuple(fn(*a, *b)), axes) if n > 1 else lax.reduce(
        arrays[0], initial[0], lambda a, b: fn(a, b)[0], axes)  # fmt: skip


def _first_direction(op: Any) -> str:
    for inner in op.operation.regions[0].blocks[0].operations:
        if inner.operation.name == "stablehlo.compare":
            direction = stablehlo.ComparisonDirectionAttr(inner.attributes["comparison_direction"]).value
            if direction not in ("NE", "EQ"):
                return str(direction)
    raise UnsupportedStableHLOError("a reduction of several arrays")


@rule("sort")
def sort(interpreter: Interpreter, op: Any, *operands: Any) -> Any:
    descends, axis = _first_direction(op) in ("GT", "GE"), ints(op, "dimension")
    block = op.operation.regions[0].blocks[0]
    compared = {
        ir.BlockArgument(x).arg_number for inner in block.operations for x in inner.operation.operands
        if isinstance(x.owner, ir.Block)
    }  # fmt: skip
    flipped = [lax.rev(x, [axis]) for x in operands] if descends else operands  # equal elements keep their order
    out = lax.sort(flipped, dimension=axis, num_keys=max(1, len(compared) // 2))
    return [lax.rev(x, [axis]) for x in out] if descends else out


@rule("chlo.top_k")
def top_k(_: Any, op: Any, x: Any) -> Any:
    return lax.top_k(x, ints(op, "k"))


@rule("reduce_window")
def reduce_window(_: Any, op: Any, x: Any, initial: Any) -> Any:
    kind = kind_of_region(op)
    if kind not in _REDUCTIONS:
        raise UnsupportedStableHLOError("a window with a function of its own")
    rank = np.ndim(x)
    ones = [1] * rank
    padding = ints(op, "padding", np.zeros((rank, 2), int))
    return lax.reduce_window(
        x, initial, _REDUCTIONS[kind], ints(op, "window_dimensions"), ints(op, "window_strides", ones),
        [(int(a), int(b)) for a, b in np.reshape(padding, (rank, 2))], ints(op, "base_dilations", ones),
        ints(op, "window_dilations", ones),
    )  # fmt: skip


@rule("custom_call stablehlo.dynamic_reduce_window")
def dynamic_reduce_window(interpreter: Interpreter, op: Any, x: Any, initial: Any, *shapes: Any) -> Any:
    name = ir.FlatSymbolRefAttr(ir.ArrayAttr(op.attributes["called_computations"])[0]).value
    first = next(iter(interpreter.functions[name].regions[0].blocks[0].operations))
    window, strides, base, dilation, padding = map(known, shapes)
    pairs = [(padding[k], padding[k + 1]) for k in range(0, len(padding), 2)]
    fn = _REDUCTIONS[first.operation.name.partition(".")[2]]
    return lax.reduce_window(x, initial, fn, window, strides, pairs, base, dilation)
