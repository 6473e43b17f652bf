"""Indexing, scattering and sorting in TensorFlow."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.codegen.targets import Rule, Var, Writing, rules
from tensorgraft.codegen.targets.tensorflow.common import AS_FLOAT32, AS_INT32, in_other_dtype, unless_float32
from tensorgraft.hub import dtypes


def indices_of(w: Writing, i: Any) -> Any:
    known = (dtypes.int32, dtypes.int64)
    return w.fill("tf.cast(i, tf.int64)", i=i) if isinstance(i, Var) and i.dtype not in known else i


def _gather(w: Writing, x: Var, indices: Any) -> ast.expr:
    if len(indices) == 1:
        return w.fill("tf.gather(x, i)", x=x, i=indices_of(w, indices[0]))
    return w.fill("gather(x, indices)", x=x, indices=tuple(indices))


def _scatter(w: Writing, x: Var, indices: Any, updates: Any, mode: str = "set") -> ast.expr:
    return w.fill("scatter(x, indices, updates, mode=mode)", x=x, indices=tuple(indices), updates=updates,
                  mode=None if mode == "set" else mode)  # fmt: skip


def _take(w: Writing, x: Var, indices: Any, axis: int) -> ast.expr:
    return w.fill("tf.gather(x, indices, axis=axis)", x=x, indices=indices_of(w, indices), axis=axis % x.ndim or None)


def _take_along_axis(w: Writing, x: Var, indices: Var, axis: int) -> ast.expr:
    if not x.ndim:
        return w.fill("tf.broadcast_to(x, indices.shape)", x=x, indices=indices)
    part = rules.indexed(w, x, rules.part_as_long(x, indices, axis))
    if axis % x.ndim == x.ndim - 1 and x.ndim > 1:
        return w.fill("tf.gather(x, indices, batch_dims=n)", x=part, indices=indices_of(w, indices), n=x.ndim - 1)
    return w.fill("take_along_axis(x, indices, axis)", x=part, indices=indices, axis=axis)


def _put_along_axis(w: Writing, x: Var, indices: Var, updates: Any, axis: int, mode: str = "set") -> ast.expr:
    return w.fill("put_along_axis(x, indices, updates, axis, mode=mode)", x=x, indices=indices, updates=updates,
                  axis=axis, mode=None if mode == "set" else mode)  # fmt: skip


def _one_hot(w: Writing, indices: Var, n: Any, dtype: np.dtype) -> ast.expr:
    if dtype == np.bool_:
        return w.fill("tf.one_hot(i, n, True, False)", i=indices_of(w, indices), n=n)
    return w.fill("tf.one_hot(i, n, dtype=dtype)", i=indices_of(w, indices), n=n, dtype=unless_float32(dtype))


def _sort(w: Writing, operands: Any, axis: int = -1, num_keys: int = 1) -> ast.expr:
    return w.fill("sort(operands, axis=axis, num_keys=num_keys)", operands=tuple(operands),
                  axis=None if axis == -1 else axis, num_keys=None if num_keys == 1 else num_keys)  # fmt: skip


def _argsort(name: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Var, axis: int = -1, descending: bool = False) -> ast.expr:
        return w.fill(f"{name}(x, axis=axis, descending=descending)", x=x, axis=None if axis == -1 else axis,
                      descending=descending or None)  # fmt: skip

    return rule


def _searchsorted(w: Writing, boundaries: Var, values: Any, right: bool = False) -> ast.expr:
    side = ', side="right"' if right else ""
    plain = boundaries.ndim == values.ndim == 1
    template = f"tf.searchsorted(b, v{side}, out_type=tf.int64)" if plain else f"searchsorted(b, v{side})"
    table = {**AS_FLOAT32, **AS_INT32}
    return in_other_dtype(template, table)(w, b=boundaries, v=values)


def _index(w: Writing, x: Var, indices: Any) -> ast.expr:
    used = [k for k, i in enumerate(indices) if i is not None]
    if len(used) == 1:
        (k,) = used
        at = w.fill("positive(i, n)", i=indices[k], n=x.shape[k])
        return w.fill("tf.gather(x, at, axis=axis)", x=x, at=at, axis=k or None)
    return w.fill("index(x, indices)", x=x, indices=tuple(indices))


RULES: dict[str, Rule] = {
    "gather": _gather,
    "scatter": _scatter,
    "nonzero": lambda w, x: w.fill("tuple(tf.unstack(tf.where(x), axis=1))" if x.dtype == np.bool_ else
                                 "tuple(tf.unstack(tf.where(x != 0), axis=1))", x=x),
    "take": _take,
    "take_along_axis": _take_along_axis,
    "put_along_axis": _put_along_axis,
    "one_hot": _one_hot,
    "sort": _sort,
    "argsort": _argsort("argsort"),
    "sort_with_indices": _argsort("sort_with_indices"),
    "searchsorted": _searchsorted,
    "index": _index,
    "index_update": "index_update(x, indices, values, mode=mode)",
}  # fmt: skip
