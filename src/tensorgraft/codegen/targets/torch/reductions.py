"""Reductions and running reductions in PyTorch."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from tensorgraft.codegen.targets import Rule, Var, Writing, rules
from tensorgraft.codegen.targets.torch.common import NARROW_FLOATS
from tensorgraft.hub import dtypes


def _axes(x: Var, axis: Any, keepdims: bool = False) -> Any:
    """Return the axes for PyTorch, None for all of them, which it takes only without keepdim."""
    if axis is None:
        return tuple(range(x.ndim)) if keepdims and x.ndim else None
    return tuple(axis) if isinstance(axis, tuple | list) else axis


def _reduced(name: str, over_none: str = "x", of_sum: bool = False, suffix: str = "") -> Rule:
    """`over_none`: of each element by itself, which PyTorch takes for all."""

    def rule(w: Writing, x: Var, axis: Any = None, keepdims: bool = False) -> ast.expr:
        if axis == ():
            return w.fill(over_none, x=x)
        result_dtype = x.dtype if of_sum and x.dtype in rules.NARROW_INTEGERS else None
        return w.fill(f"x.{name}(dim=axis, keepdim=keepdims, dtype=dtype{suffix})", x=x, axis=_axes(x, axis, keepdims),
                      keepdims=keepdims or None, dtype=result_dtype)  # fmt: skip

    return rule


def _prod(w: Writing, x: Var, axis: Any = None, keepdims: bool = False) -> ast.expr:
    """PyTorch multiplies along one axis, or all."""
    narrow = x.dtype in NARROW_FLOATS
    result_dtype = x.dtype if x.dtype in rules.NARROW_INTEGERS else None
    out = w.fill("x.float()", x=x) if narrow else w(x)
    axes = rules.axes_of(x, axis)
    if axis is None and not keepdims:
        out = w.fill("x.prod(dtype=dtype)", x=out, dtype=result_dtype)
    for a in sorted(axes, reverse=True) if axis is not None or keepdims else ():
        out = w.fill(
            "x.prod(dim=a, keepdim=keepdims, dtype=dtype)", x=out, a=a, keepdims=keepdims or None, dtype=result_dtype
        )
    return w.fill("y.to(dtype)", y=out, dtype=x.dtype) if narrow and (axes or not x.ndim) else out


def _extreme(name: str, identity: Any) -> Rule:
    def rule(w: Writing, x: Var, axis: Any = None, keepdims: bool = False) -> ast.expr:
        if axis == () or not x.ndim:
            return w(x)
        if rules.is_empty(x):
            shape = w.call_outcome().shape
            return w.fill("torch.full(shape, v, dtype=dtype)", shape=shape, v=identity(x.dtype), dtype=x.dtype)
        return w.fill(f"x.{name}(dim=axis, keepdim=keepdims)", x=x, axis=_axes(x, axis, keepdims),
                      keepdims=keepdims or None)  # fmt: skip

    return rule


def _position(name: str) -> Rule:
    def rule(w: Writing, x: Var, axis: int, keepdims: bool = False) -> ast.expr:
        numbers = w.fill("x.byte()", x=x) if x.dtype == np.bool_ else x
        return w.fill(f"x.{name}(dim=axis, keepdim=keepdims)", x=numbers, axis=axis, keepdims=keepdims or None)

    return rule


def _var(w: Writing, x: Var, axis: Any = None, keepdims: bool = False, correction: Any = 0) -> ast.expr:
    if axis == ():
        return w.fill("(x - x).abs()", x=x)
    narrow = x.dtype in NARROW_FLOATS
    wide = w.fill("x.float()", x=x) if narrow else x
    out = w.fill("x.var(dim=axis, correction=correction, keepdim=keepdims)", x=wide, axis=_axes(x, axis),
                 correction=correction, keepdims=keepdims or None)  # fmt: skip
    return w.fill("y.to(dtype)", y=out, dtype=x.dtype) if narrow else out


def _logsumexp(w: Writing, x: Var, axis: Any = None, keepdims: bool = False) -> ast.expr:
    if axis == () or not x.ndim:
        return w(x)
    return w.fill("torch.logsumexp(x, dim=axis, keepdim=keepdims)", x=x,
                  axis=tuple(range(x.ndim)) if axis is None else axis, keepdims=keepdims or None)  # fmt: skip


def _scan_along(name: str) -> Rule:
    def rule(w: Writing, x: Var, axis: int) -> ast.expr:
        if x.dtype in NARROW_FLOATS:
            return w.fill(f"x.{name}(dim=axis, dtype=torch.float32).to(dtype)", x=x, axis=axis, dtype=x.dtype)
        result_dtype = x.dtype if x.dtype in rules.NARROW_INTEGERS else None
        return w.fill(f"x.{name}(dim=axis, dtype=dtype)", x=x, axis=axis, dtype=result_dtype)

    return rule


def _running(name: str) -> Rule:
    def rule(w: Writing, x: Var, axis: int) -> ast.expr:
        if x.dtype == np.bool_:
            return w.fill(f"x.byte().{name}(dim=axis).values.bool()", x=x, axis=axis)
        return w.fill(f"x.{name}(dim=axis).values", x=x, axis=axis)

    return rule


RULES: dict[str, Rule] = {
    "sum": _reduced("sum", of_sum=True),
    "prod": _prod,
    "max": _extreme("amax", dtypes.lowest),
    "min": _extreme("amin", dtypes.highest),
    "any": _reduced("any"),
    "all": _reduced("all"),
    "mean": _reduced("mean"),
    "var": _var,
    "argmax": _position("argmax"),
    "argmin": _position("argmin"),
    "cumsum": _scan_along("cumsum"),
    "cumprod": _scan_along("cumprod"),
    "cummax": _running("cummax"),
    "cummin": _running("cummin"),
    "cumlogsumexp": "torch.logcumsumexp(x, dim=axis)",
    "logsumexp": _logsumexp,
    "softmax": "F.softmax(x, dim=axis)",
    "log_softmax": "F.log_softmax(x, dim=axis)",
}  # fmt: skip
