"""Indexing, scattering and sorting in PyTorch."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from tensorgraft.codegen.targets import Rule, Var, Writing, rules
from tensorgraft.codegen.targets.torch.common import NARROW_FLOATS
from tensorgraft.hub import dtypes


def index_argument(w: Writing, index: Any) -> ast.expr:
    """Return the expression of an index that is passed to a function: slices are calls of `slice`."""
    parts = [w(i) if not isinstance(i, slice) else w.fill("slice(a, b, c)", a=i.start, b=i.stop, c=i.step)
             if i.step is not None else w.fill("slice(a, b)", a=i.start, b=i.stop) for i in index]  # fmt: skip
    return parts[0] if len(parts) == 1 else ast.Tuple(parts, ast.Load())


def _long(w: Writing, i: Any) -> Any:
    """Return indices in a dtype that PyTorch accepts in `x[i]`: uint8 are masks there, other narrow integers errors."""
    return w.fill("i.long()", i=i) if isinstance(i, Var) and i.dtype not in (dtypes.int64, dtypes.int32) else i


def _int64(w: Writing, i: Any) -> Any:
    """Return indices as int64, which `gather` and `scatter` require."""
    return w.fill("i.long()", i=i) if isinstance(i, Var) and i.dtype != dtypes.int64 else i


def _gather(w: Writing, x: Var, indices: Any) -> ast.expr:
    return rules.indexed(w, x, [_long(w, i) for i in indices])


def _scatter(w: Writing, x: Var, indices: Any, updates: Any, mode: str = "set") -> ast.expr:
    at = tuple(_long(w, i) for i in indices)
    if mode == "set" and indices:
        return w.fill("x.index_put(at, updates)", x=x, at=at, updates=updates)
    if mode == "add" and indices and x.dtype not in (dtypes.bool_, *NARROW_FLOATS):
        return w.fill("x.index_put(at, updates, accumulate=True)", x=x, at=at, updates=updates)
    reduce = {"set": "set", "add": "sum", "multiply": "prod", "min": "amin", "max": "amax"}[mode]
    return w.fill("scatter_reduce(x, at, updates, reduce)", x=x, at=at, updates=updates, reduce=reduce)


def _take(w: Writing, x: Var, indices: Any, axis: int) -> ast.expr:
    return rules.indexed(w, x, [*[slice(None)] * (axis % x.ndim), _long(w, indices)])


def _take_along_axis(w: Writing, x: Var, indices: Var, axis: int) -> ast.expr:
    if not x.ndim:
        return w.fill("x.expand_as(indices)", x=x, indices=indices)
    return w.fill("x.gather(axis, indices)", x=x, axis=axis, indices=_int64(w, indices))


def _put_along_axis(w: Writing, x: Var, indices: Var, updates: Any, axis: int, mode: str = "set") -> ast.expr:
    at = _int64(w, indices)
    if mode == "set":
        return w.fill("x.scatter(axis, at, updates)", x=x, axis=axis, at=at, updates=updates)
    if x.dtype in NARROW_FLOATS:
        x, updates = (w.fill("x.float()", x=v) for v in (x, updates))  # type: ignore[assignment]
    if mode == "add":
        out = w.fill("x.scatter_add(axis, at, updates)", x=x, axis=axis, at=at, updates=updates)
    else:
        reduce = {"multiply": "prod", "min": "amin", "max": "amax"}[mode]
        out = w.fill("x.scatter_reduce(axis, at, updates, reduce)", x=x, axis=axis, at=at, updates=updates,
                     reduce=reduce)  # fmt: skip
    dtype = w.call_outcome().dtype
    return w.fill("y.to(dtype)", y=out, dtype=dtype) if dtype in NARROW_FLOATS else out


def _one_hot(w: Writing, indices: Var, n: Any, dtype: np.dtype) -> ast.expr:
    # an index out of range gives a row of zeros; F.one_hot refuses it
    hot = w.fill("i[..., None] == torch.arange(n)", i=indices, n=n)
    return hot if dtype == dtypes.bool_ else w.fill("x.to(dtype)", x=hot, dtype=dtype)


def _sort(w: Writing, operands: Any, axis: int = -1, num_keys: int = 1) -> ast.expr:
    if len(operands) == 1:
        value = w.fill("x.sort(dim=axis, stable=True).values", x=operands[0], axis=None if axis == -1 else axis)
        return ast.Tuple([value], ast.Load())
    return w.fill("sort(operands, axis, num_keys)", operands=tuple(operands), axis=axis, num_keys=num_keys)


def _sorted(name: str) -> Rule:
    def rule(w: Writing, x: Var, axis: int = -1, descending: bool = False) -> ast.expr:
        return w.fill(f"torch.{name}(x, dim=axis, descending=descending, stable=True)", x=x,
                      axis=None if axis == -1 else axis, descending=descending or None)  # fmt: skip

    return rule


def _searchsorted(w: Writing, boundaries: Var, values: Any, right: bool = False) -> ast.expr:
    return w.fill("torch.searchsorted(boundaries, values, right=right)", boundaries=boundaries, values=values,
                  right=right or None)  # fmt: skip


def _index(w: Writing, x: Var, indices: Any) -> ast.expr:
    return rules.indexed(w, x, [slice(None) if i is None else _long(w, i) for i in indices])


def _index_update(w: Writing, x: Var, indices: Any, values: Any, mode: str = "set") -> ast.expr:
    at = [slice(None) if i is None else _long(w, i) for i in indices]
    if None not in indices:
        return w.fill("x.index_put(at, values, accumulate=add)", x=x, at=tuple(at), values=values,
                      add=True if mode == "add" else None)  # fmt: skip
    if mode == "add":
        return w.fill("added(x, at, values)", x=x, at=[None if i is None else _long(w, i) for i in indices],
                      values=values)  # fmt: skip
    return w.fill("updated(x, at, values)", x=x, at=index_argument(w, at), values=values)


RULES: dict[str, Rule] = {
    "gather": _gather,
    "scatter": _scatter,
    "nonzero": "torch.nonzero(x, as_tuple=True)",
    "take": _take,
    "take_along_axis": _take_along_axis,
    "put_along_axis": _put_along_axis,
    "one_hot": _one_hot,
    "sort": _sort,
    "argsort": _sorted("argsort"),
    "sort_with_indices": _sorted("sort"),
    "searchsorted": _searchsorted,
    "getitem": rules.getitem,
    "index": _index,
    "index_update": _index_update,
}  # fmt: skip
