"""Arrays of a traced program whose number of rows depends on values: which operations take them, and how.

Compiled programs have arrays of known shapes. An array whose length depends on values (`tf.boolean_mask`) has as many
rows as it may have at most, and a count of valid ones; rows after these are padding. Each operation that takes such an
array has a rule in `COUNTED`, which keeps the padding out of its result. For any other operation there is an error.

Operands with different counts are an error in TensorFlow; compiled programs do not check this (neither does XLA).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.tensorflow.graph import GraphNode
from tensorgraft.frontends.tensorflow.values import CountedRows, CountedSizes, lifted
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

# (backend, the rule for arrays, operands, the node) -> results, or None if it cannot take the operands
CountedRule = Callable[[Backend, Callable[..., Any], list[Any], GraphNode], Any]
COUNTED: dict[str, CountedRule] = {}


def run_counted(xp: Backend, plain: Callable[..., Any], operands: Sequence[Any], node: GraphNode) -> Any:
    """Run a node that has counted operands. Raises TracedValueError if the operation cannot take them."""
    known = COUNTED.get(node.op)
    result = None if known is None else known(xp, plain, list(operands), node)
    if result is None and not any(isinstance(x, CountedRows) for x in operands):
        return plain(*(lifted(xp, x) if isinstance(x, CountedSizes) else x for x in operands))
    if result is None:
        raise TracedValueError(
            f"TensorFlow's {node} takes an array whose shape depends on values that are being traced: call the"
            " program without compiling it, or use a mask of known shape instead of selecting rows"
        )
    return result


def padded(xp: Backend, x: Array, rows: int) -> Array:
    """Return an array padded with zeros to a number of rows."""
    n = xp.shape(x)[0]
    return x if n == rows else xp.pad(x, 0, [(0, rows - n, 0), *[(0, 0, 0)] * (xp.ndim(x) - 1)])


def count_of(xp: Backend, x: Any) -> Array:
    """Return the number of valid rows."""
    return x.count if isinstance(x, CountedRows) else xp.full((), xp.shape(x)[0], dtypes.int64)


def aligned(xp: Backend, operands: Sequence[Any]) -> tuple[list[Array], Array]:
    """Return (arrays of equally many rows, the count of valid ones). An operand with a count of 1 is broadcast along
    the rows."""
    counts = list({id(c): c for c in (count_of(xp, x) for x in operands)}.values())
    arrays = [x.array if isinstance(x, CountedRows) else x for x in operands]
    most = max(xp.shape(x)[0] for x in arrays)
    if len(counts) == 1 and all(xp.shape(x)[0] == most for x in arrays):
        return arrays, counts[0]
    total = counts[0]
    for c in counts[1:]:
        total = xp.where(xp.equal(total, 1), c, total)
    positions = xp.iota(most, dtypes.int64)
    return [
        xp.take(padded(xp, a, most), xp.where(xp.equal(count_of(xp, x), 1), xp.zeros_like(positions), positions), 0)
        for a, x in zip(arrays, operands, strict=True)
    ], total


def is_counted(xp: Backend, x: CountedRows) -> Array:
    """Return a mask of the valid rows."""
    return xp.less(xp.iota(xp.shape(x.array)[0], dtypes.int64), x.count)


def compacted(xp: Backend, mask: Array) -> CountedRows:
    """Return the positions of the true elements of a vector, in order."""
    n = xp.size(mask)
    ranks = xp.cumsum(xp.astype(mask, dtypes.int64), 0)
    past_end = xp.full((n,), n, dtypes.int64)
    rows = xp.where(mask, xp.subtract(ranks, xp.ones_like(ranks)), past_end)
    positions = xp.scatter(xp.zeros((n + 1,), dtypes.int64), (rows,), xp.iota(n, dtypes.int64), mode="set")
    return CountedRows(xp.take_slice(positions, 0, 0, n), xp.squeeze(xp.take_slice(ranks, 0, n - 1, n), 0))


def largest_counts(sides: Sequence[Sequence[Any]]) -> dict[int, int]:
    """Return {position: the larger number of rows} for those results of two branches that are counted in one of them.
    `sides`: the results of each branch, as shapes."""
    counted = [k for k, pair in enumerate(zip(*sides, strict=True)) if any(isinstance(x, CountedRows) for x in pair)]
    arrays = [[x.array if isinstance(x, CountedRows) else x for x in side] for side in sides]
    return {k: max(side[k].shape[0] for side in arrays) for k in counted}


def with_counts(xp: Backend, outputs: Sequence[Any], most: dict[int, int]) -> list[Any]:
    """Return the results of a branch as arrays, followed by the counts of those in `most` (see `largest_counts`)."""
    flat = list(outputs)
    for k, rows in most.items():
        x = outputs[k] if isinstance(outputs[k], CountedRows) else lifted(xp, outputs[k])
        flat[k] = padded(xp, x.array if isinstance(x, CountedRows) else x, rows)
        flat.append(count_of(xp, x))
    return flat


def without_counts(values: Sequence[Any], most: dict[int, int]) -> list[Any]:
    """Undo `with_counts`."""
    n = len(values) - len(most)
    results = list(values[:n])
    for k, count in zip(most, values[n:], strict=True):
        results[k] = CountedRows(results[k], count)
    return results
