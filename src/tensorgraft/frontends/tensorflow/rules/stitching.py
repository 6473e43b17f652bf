"""Arrays put together by numbers that are known."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import EVERY, rule
from tensorgraft.frontends.tensorflow.values import is_known, lifted
from tensorgraft.hub.backend import Backend

Array = Any


@rule("DynamicStitch", "ParallelDynamicStitch", either=EVERY)
def dynamic_stitch(xp: Backend, *operands: Any) -> Array:
    """Rows put where indices say, the last of several; the indices have to be known."""
    n = len(operands) // 2
    indices = [np.asarray(x if is_known(x) else xp.to_numpy(x)) for x in operands[:n]]
    parts = [lifted(xp, x) for x in operands[n:]]
    rest = xp.shape(parts[0])[indices[0].ndim :]
    flat = [xp.reshape(x, (i.size, *rest)) for x, i in zip(parts, indices, strict=True)]
    every = np.concatenate([i.ravel() for i in indices])
    count = int(every.max(initial=-1)) + 1
    source = np.zeros(count, np.int64)
    source[every] = np.arange(every.size)
    rows = xp.take(xp.concat(flat, axis=0), xp.asarray(source), 0)
    there = np.isin(np.arange(count), every).reshape(count, *[1] * len(rest))
    return rows if there.all() else xp.where(xp.asarray(there), rows, xp.zeros_like(rows))
