"""Cells on a backend against TensorFlow's kernels: value, dtype, shape, signs of zeros.

What TensorFlow's kernel gives for an element by itself counts as well as what it gives for it among others, where its
loops over vectors of the processor differ from those over numbers; and what its kernel of float32 gives, rounded, as
well as that of 16 bits, which rounds whenever it adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tests.frontends.tensorflow.cells import ELEMENTWISE, Cell, Typed, cells, typed
from tests.frontends.tensorflow.common import difference, native, on_host
from tests.frontends.tensorflow.samples_of_programs import Program

from tensorgraft.frontends.tensorflow.grafted import GraftedGraph
from tensorgraft.hub import registry

_TOGETHER = 24  # cells in one graph


_WIDE = {"float16": "float32", "bfloat16": "float32"}


def _kernel(cell: Cell) -> Callable[..., Any]:
    """A program begins anew: its random operations have states."""
    return tf.function(cell.sample.call) if isinstance(cell.sample, Program) else cell.sample.call


def _results(cell: Cell) -> list[np.ndarray]:
    return [r.numpy() for r in _kernel(cell)([tf.constant(np.asarray(x)) for x, _ in cell.sample.flat()])]


def judged(cell: Cell) -> list[np.ndarray] | None:
    """What TensorFlow's kernel gives; None where it gives nothing, not what its own shape function says, or not the
    same twice."""
    try:
        with tf.__internal__.FuncGraph("shapes").as_default():  # kernels of wrong shapes may end the process
            said = [y.shape for y in cell.sample.call([tf.constant(np.asarray(x)) for x, _ in cell.sample.flat()])]
        first, second = _results(cell), _results(cell)
    except (tf.errors.OpError, ValueError, TypeError, NotImplementedError):
        return None
    if any(a.dtype.hasobject for a in first) or not all(
        s.is_compatible_with(a.shape) for s, a in zip(said, first, strict=True)
    ):
        return None
    if cell.variant == "ends" and cell.op not in ELEMENTWISE and any(a.dtype.kind not in "biu" for a in first):
        return None  # large numbers, whose differences floats have not
    return first if all(not difference(a, b) for a, b in zip(first, second, strict=True)) else None


def _one_by_one(cell: Cell) -> list[np.ndarray] | None:
    """What the kernel gives for each element by itself: its loop over vectors of the processor may say otherwise."""
    if cell.op not in ELEMENTWISE or not isinstance(cell.sample, Typed):
        return None
    operands = np.broadcast_arrays(*cell.sample.operands)
    each = [
        _results(cell._replace(sample=cell.sample._replace(operands=tuple(x.reshape(-1)[i : i + 1] for x in operands))))
        for i in range(operands[0].size)
    ]
    return [np.concatenate(rows).reshape(operands[0].shape) for rows in zip(*each, strict=True)]


def _in_wide(cell: Cell) -> list[np.ndarray] | None:
    """What the kernel of float32 gives, rounded once: those of 16 bits round whenever they add."""
    chosen = dict(cell.dtypes)
    if not set(chosen.values()) & set(_WIDE) or not isinstance(cell.sample, Typed):
        return None
    wide = typed(cell.sample, {k: _WIDE.get(v, v) for k, v in chosen.items()})
    want = judged(cell)
    return [a.astype(b.dtype) for a, b in zip(_results(cell._replace(sample=wide)), want or [], strict=True)]


def compared(cell: Cell, got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> str:
    """What is wrong."""
    off = [different(g, w) for g, w in zip(got, want, strict=True)]
    for other in (_one_by_one, _in_wide):
        if any(off) and all(g.shape == w.shape for g, w in zip(got, want, strict=True)):
            more = other(cell)
            if more is not None:
                merged = [np.where(_same(g, m), m, w) for g, m, w in zip(got, more, want, strict=True)]
                off = [different(g, w) for g, w in zip(got, merged, strict=True)]
    return next(filter(None, off), "")


def _same(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Element by element."""
    flat = [different(g[None], w[None]) == "" for g, w in zip(got.reshape(-1), want.reshape(-1), strict=True)]
    return np.asarray(flat, bool).reshape(got.shape)


def different(got: np.ndarray, want: np.ndarray) -> str:
    off = difference(got, want)
    if not off and want.dtype.kind not in "biuc":
        zeros = (np.asarray(want, "float64") == 0) & (np.asarray(got, "float64") == 0)
        if (np.signbit(got) != np.signbit(want))[zeros].any():
            return "the sign of 0"
    return off


def computed(
    some: Sequence[Cell], wanted: Sequence[list[np.ndarray]], backend: str, compiled: bool
) -> dict[int, str]:
    """What is wrong, by the cell's identity."""
    flats = [cell.sample.flat() for cell in some]
    arguments = [x for flat in flats for x, is_argument in flat if is_argument]

    def call(*given: tf.Tensor) -> list[list[tf.Tensor]]:
        remaining = iter(given)
        return [
            cell.sample.call([next(remaining) if is_argument else tf.constant(np.asarray(x)) for x, is_argument in flat])
            for cell, flat in zip(some, flats, strict=True)
        ]

    try:
        with np.errstate(all="ignore"):
            grafted = GraftedGraph(tf.function(call), registry.get(backend), compiled)
            got = [
                [on_host(backend, g) for g in results]
                for results in grafted(*(native(backend, np.asarray(x)) for x in arguments))
            ]
    except Exception as error:
        if len(some) == 1:
            return {id(some[0]): f"{type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}"}
        half = len(some) // 2
        first, second = slice(None, half), slice(half, None)
        return computed(some[first], wanted[first], backend, compiled) | computed(
            some[second], wanted[second], backend, compiled
        )
    wrong = {}
    for cell, mine, theirs in zip(some, got, wanted, strict=True):
        off = compared(cell, mine, theirs)
        if off:
            wrong[id(cell)] = off
    return wrong


Found = tuple[int, dict[str, dict[str, str]]]  # how many cells TensorFlow has; backend -> cell -> what is wrong


def checked(op: str, backends: Sequence[str], every: int = 1, compiled: bool = False) -> Found:
    """`every`: of so many cells one."""
    judgements = [(cell, judged(cell)) for cell in list(cells(op))[::every]]
    there: list[tuple[Cell, list[np.ndarray]]] = [(cell, want) for cell, want in judgements if want is not None]
    wrong: dict[str, dict[str, str]] = {backend: {} for backend in backends}
    for i in range(0, len(there), _TOGETHER):
        some, wanted = zip(*there[i : i + _TOGETHER], strict=True)
        for backend in backends:
            off = computed(some, wanted, backend, compiled)
            wrong[backend] |= {str(cell): off[id(cell)] for cell in some if id(cell) in off}
    return len(there), wrong
