"""Rules that remove artefacts of tracing: copies, explicit broadcasting, constants as arrays, reshapes of reshapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.codegen.simplification.rewriting import COMMUTATIVE, New, Number, Rewriting, Rule, bound
from tensorgraft.hub.operations.elementwise import BINARY, ELEMENTWISE, UNARY
from tensorgraft.hub.recorded.block import Call, Var

_REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "mean", "var", "logsumexp")
_BY_ELEMENT = frozenset((*ELEMENTWISE, "clip")) - {"fmod"}
_MOVES = ("reshape", "broadcast_to", "expand_dims", "squeeze")


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return `axis` as a sorted tuple of non-negative axes."""
    if axis is None:
        return tuple(range(ndim))
    return tuple(sorted(int(a) % ndim for a in (axis if isinstance(axis, tuple | list) else (axis,))))


def written_axis(axes: tuple[int, ...], ndim: int) -> Any:
    """Return axes as they are usually written: None for all of them, negative numbers for the last ones."""
    if len(axes) == ndim:
        return None
    if len(axes) == 1:
        return -1 if axes[0] == ndim - 1 else axes[0]
    last = tuple(range(ndim - len(axes), ndim))
    return tuple(a - ndim for a in axes) if axes == last else axes


# ---- elementwise -----------------------------------------------------------------------------------------------------


def _plain(state: Rewriting, x: Any, shape: tuple[int, ...], operands: list[Any]) -> Any:
    """Return an operand without explicit broadcasting, or the number that all its elements equal."""
    if type(x) is not Var:
        return x
    arrays = [o for o in operands if type(o) is Var and o is not x]
    number = state.number(x) if any(o.dtype == x.dtype for o in arrays) else None
    if number is not None and not _is_wide(number) and np.broadcast_shapes(*[o.shape for o in arrays]) == shape:
        return number
    named = state.made_by(x, "broadcast_to")
    if named is not None and arrays:
        inner = named["x"]
        if np.broadcast_shapes(inner.shape, *[o.shape for o in arrays]) == shape:
            return inner
    named = state.made_by(x, "reshape", "expand_dims")
    if named is not None and arrays:  # (1, 1, n) of (n,)
        inner = named["x"]
        front = x.ndim - inner.ndim
        is_front = front > 0 and x.shape == (1,) * front + inner.shape
        if is_front and np.broadcast_shapes(inner.shape, *[o.shape for o in arrays]) == shape:
            return inner
    return x


def _is_wide(number: Number) -> bool:
    """Return True for integers that need more than 32 bits, which frameworks do not combine with narrower arrays."""
    return isinstance(number, int) and abs(number) >= 2**31


def elementwise(state: Rewriting, call: Call) -> New | None:
    named = bound(call)
    names = [n for n, x in named.items() if n in ("x", "y", "condition")]
    shape = call.results.shape
    changed = False
    for name in names:
        operands = [named[n] for n in names if n != name]
        if call.method == "where" and name != "condition":
            operands = [
                *operands,
                *([Var(named["condition"].shape, named[name].dtype)] if type(named[name]) is Var else []),
            ]
            if state.number(named[name]) is not None and type(named["x" if name == "y" else "y"]) is not Var:
                continue  # one of the two has to determine the dtype
        new = _plain(state, named[name], shape, operands)
        if new is not named[name]:
            named[name] = new
            changed = True
    return New(call.method, named) if changed else None


def where_known(state: Rewriting, call: Call) -> Any:
    named = bound(call)
    condition = state.number(named["condition"])
    if condition is None:
        return None
    selected = named["x"] if condition else named["y"]
    if type(selected) is Var and selected.shape == call.results.shape:
        return selected
    if type(selected) is Var:
        return New("broadcast_to", {"x": selected, "shape": call.results.shape})
    return None


_NEUTRAL = {"bitwise_and": True, "logical_and": True, "bitwise_or": False, "logical_or": False}


def neutral(state: Rewriting, call: Call) -> Any:
    """Simplify x + 0, x * 1, x / 1, max(x, -inf) of floats and x & True to x."""
    named = bound(call)
    x, y = named["x"], named["y"]
    operands: tuple[Any, Any] = (x, y)
    for x, y in (operands, operands[::-1]) if call.method in COMMUTATIVE else (operands,):
        if type(x) is not Var or (number := state.number(y)) is None:
            continue
        if type(number) is bool and x.dtype.kind == "b" and number is _NEUTRAL.get(call.method):
            same = x.shape == call.results.shape
            return x if same else New("broadcast_to", {"x": x, "shape": call.results.shape})
        if type(number) is bool or x.shape != call.results.shape:
            continue
        if isinstance(number, complex) or call.method in _NEUTRAL:
            continue
        neutral_of = {"add": 0, "subtract": 0, "multiply": 1, "divide": 1, "maximum": -math.inf, "minimum": math.inf}
        if number == neutral_of[call.method]:
            return x
        if x.dtype.kind == "i" and call.method in ("maximum", "minimum"):
            limits = np.iinfo(x.dtype)
            if number == (limits.min if call.method == "maximum" else limits.max):
                return x
    return None


def negative_added(state: Rewriting, call: Call) -> New | None:
    """Rewrite -x + y to y - x."""
    named = bound(call)
    for x, y in ((named["x"], named["y"]), (named["y"], named["x"])):
        inner = state.made_by(x, "negative")
        if inner is not None and type(y) is Var and state.uses[x] == 1:
            return New("subtract", {"x": y, "y": inner["x"]})
    return None


# ---- shapes ----------------------------------------------------------------------------------------------------------


def same_shape(state: Rewriting, call: Call) -> Any:
    """Remove reshapes and transpositions that change nothing, and merge two consecutive ones."""
    named = bound(call)
    x = named["x"]
    if type(x) is Var and x.shape == call.results.shape and call.method in _MOVES:
        return x
    if call.method in ("reshape", "squeeze", "expand_dims"):
        inner = state.made_by(x, "reshape", "expand_dims", "squeeze")
        if inner is not None and inner["x"].shape == call.results.shape:
            return inner["x"]
        if inner is not None and call.method == "reshape":
            return New("reshape", {"x": inner["x"], "shape": call.results.shape})
        inner = state.made_by(x, *_REDUCTIONS) if call.method == "reshape" else None
        if inner is not None and not inner["keepdims"] and state.uses[x] == 1:
            axes = axes_of(inner["axis"], inner["x"].ndim)
            shape_with_axes = tuple(1 if a in axes else n for a, n in enumerate(inner["x"].shape))
            if shape_with_axes == call.results.shape:
                return New(
                    state.maker[x].method, {**inner, "axis": written_axis(axes, inner["x"].ndim), "keepdims": True}
                )
    if call.method in ("reshape", "broadcast_to") and type(x) is Var and x.size == call.results.size:
        shape_with_axes = _with_kept_axes(state, x, call.results.shape)
        if shape_with_axes is not None:
            return shape_with_axes
    if call.method == "broadcast_to":
        inner = state.made_by(x, "broadcast_to")
        if inner is not None:
            return New("broadcast_to", {"x": inner["x"], "shape": call.results.shape})
        inner = state.made_by(x, "reshape", "expand_dims")
        if inner is not None:
            front = x.ndim - inner["x"].ndim
            if front > 0 and x.shape == (1,) * front + inner["x"].shape:
                return New("broadcast_to", {"x": inner["x"], "shape": call.results.shape})
        if (number := state.number(x)) is not None:
            return New("full", {"shape": call.results.shape, "value": number, "dtype": call.results.dtype})
        if type(x) is Var and x.size == call.results.size:
            return New("reshape", {"x": x, "shape": call.results.shape})
    if call.method == "reshape" and (number := state.number(x)) is not None and x.value is None:
        return New("full", {"shape": call.results.shape, "value": number, "dtype": call.results.dtype})
    return None


def _with_kept_axes(state: Rewriting, x: Any, shape: tuple[int, ...]) -> Any:
    """Compute `x`, a reduction and elementwise operations on it, from a reduction that keeps its axes; None if it is
    anything else."""
    call = state.maker.get(x) if type(x) is Var and state.uses[x] == 1 else None
    if call is None:
        return None
    named = bound(call)
    if call.method in _REDUCTIONS and not named["keepdims"]:
        axes = axes_of(named["axis"], named["x"].ndim)
        if tuple(1 if a in axes else n for a, n in enumerate(named["x"].shape)) == shape:
            method = getattr(state.xp, call.method)
            return method(named["x"], axis=written_axis(axes, named["x"].ndim), keepdims=True)
    arrays = [n for n, v in named.items() if type(v) is Var]
    if call.method in _BY_ELEMENT and len(arrays) == 1:
        inner = _with_kept_axes(state, named[arrays[0]], shape)
        if inner is not None:
            return getattr(state.xp, call.method)(*{**named, arrays[0]: inner}.values())
    return None


def outward(state: Rewriting, call: Call) -> Any:
    """Move new leading axes (1, 1, n) of the operands after an operation, to a reshape of its result."""
    named = bound(call)
    shape = call.results.shape
    new: dict[str, Any] = {}
    stripped = False
    for name, v in named.items():
        if type(v) is not Var:
            new[name] = v
            continue
        inner = state.made_by(v, "reshape", "expand_dims", "broadcast_to")
        if inner is not None and v.shape == (1,) * (v.ndim - inner["x"].ndim) + inner["x"].shape:
            new[name], stripped = inner["x"], True
        else:
            new[name] = v
    arrays = [v for v in new.values() if type(v) is Var]
    if not stripped or not arrays:
        return None
    operand_shape = np.broadcast_shapes(*[v.shape for v in arrays])
    front = len(shape) - len(operand_shape)
    if front <= 0 or shape != (1,) * front + operand_shape:
        return None
    return New("reshape", {"x": getattr(state.xp, call.method)(*new.values()), "shape": shape})


def identity(state: Rewriting, call: Call) -> Any:
    return bound(call)["x"]


def permuted(state: Rewriting, call: Call) -> Any:
    named = bound(call)
    x, axes = named["x"], tuple(named["axes"])
    if axes == tuple(range(len(axes))):
        return x
    inner = state.made_by(x, "permute_dims")
    if inner is not None:
        return New("permute_dims", {"x": inner["x"], "axes": tuple(inner["axes"][a] for a in axes)})
    inner = state.made_by(x, "matrix_transpose")
    if inner is not None:
        before = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
        return New("permute_dims", {"x": inner["x"], "axes": tuple(before[a] for a in axes)})
    return None


def moved(state: Rewriting, call: Call) -> Any:
    """Remove the move of an axis to its own position."""
    named = bound(call)
    x = named["x"]
    return x if named["source"] % x.ndim == named["target"] % x.ndim else None


def full_slice(state: Rewriting, call: Call) -> Any:
    """Remove a slice of the whole array."""
    named = bound(call)
    return named["x"] if named["x"].shape == call.results.shape else None


def reduction(state: Rewriting, call: Call) -> New | None:
    """Write the axes of a reduction as usual, and merge two consecutive ones along the same axes."""
    named = bound(call)
    axes = axes_of(named["axis"], named["x"].ndim)
    inner = state.made_by(named["x"], call.method) if call.method in ("sum", "max", "min", "prod") else None
    if inner is not None and inner["keepdims"] and not named["keepdims"]:
        before = axes_of(inner["axis"], inner["x"].ndim)
        if axes == before:
            return New(call.method, {**inner, "keepdims": False})
    axis = written_axis(axes, named["x"].ndim)
    if axis == named["axis"] and type(axis) is type(named["axis"]):
        return None
    return New(call.method, {**named, "axis": axis})


def mean(state: Rewriting, call: Call) -> New | None:
    """Rewrite sum / n and sum * (1 / n) to a mean."""
    named = bound(call)
    total, n = named["x"], state.number(named["y"])
    inner = state.made_by(total, "sum")
    if inner is None or not isinstance(n, int | float) or total.dtype.kind not in "fcV" or state.uses[total] != 1:
        return None
    x = inner["x"]
    count = math.prod(x.shape[a] for a in axes_of(inner["axis"], x.ndim))
    if count < 2 or not math.isclose(n, count if call.method == "divide" else 1 / count, rel_tol=1e-6):
        return None
    return New("mean", inner)


RULES: dict[str, list[Rule]] = {}
for _name in (*ELEMENTWISE, "remainder", "floor_divide"):
    RULES.setdefault(_name, []).append(elementwise)
RULES["where"] = [where_known, elementwise]
for _name in (*UNARY, *BINARY):
    RULES[_name].append(outward)
for _name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", *_NEUTRAL):
    RULES[_name] = [neutral, *RULES[_name]]
RULES["add"].append(negative_added)
for _name in _MOVES:
    RULES[_name] = [same_shape]
RULES["permute_dims"] = [permuted]
RULES["moveaxis"] = [moved]
RULES["getitem"] = RULES["take_slice"] = [full_slice]
RULES["copy"] = [identity]
RULES["optimization_barrier"] = [identity]
for _name in ("divide", "multiply"):
    RULES[_name].append(mean)
for _name in _REDUCTIONS:
    RULES[_name] = [reduction]


def last_axis(state: Rewriting, call: Call) -> New | None:
    named = bound(call)
    ndim = (named["arrays"][0] if "arrays" in named else named["x"]).ndim
    if isinstance(named["axis"], int) and ndim > 1 and named["axis"] == ndim - 1:
        return New(call.method, {**named, "axis": -1})
    return None


def pieces(state: Rewriting, call: Call) -> Any:
    """Replace a slice of a concatenation that is one of its arrays by that array."""
    named = bound(call)
    x = named["x"]
    if type(x) is Var and x.shape == call.results.shape and all(s == 1 for s in named["step"]):
        return x
    inner = state.made_by(x, "concat")
    if inner is None or any(s != 1 for s in named["step"]):
        return None
    axis, at = inner["axis"] % x.ndim, 0
    if any(
        a or b != n for k, (a, b, n) in enumerate(zip(named["start"], named["stop"], x.shape, strict=True)) if k != axis
    ):
        return None
    for piece in inner["arrays"]:
        if (named["start"][axis], named["stop"][axis]) == (at, at + piece.shape[axis]):
            return piece
        at += piece.shape[axis]
    return None


def restacked(state: Rewriting, call: Call) -> Any:
    """Replace a stack of all the parts of an unstacked array by that array."""
    named = bound(call)
    makers = [state.maker.get(v) for v in named["arrays"]]
    first = makers[0]
    if first is None or first.method != "unstack" or any(m is not first for m in makers):
        return None
    inner = bound(first)
    x = inner["x"]
    is_whole_stack = tuple(named["arrays"]) == tuple(first.results) and inner["axis"] % x.ndim == named["axis"] % x.ndim
    return x if is_whole_stack else None


# ---- the last pass ---------------------------------------------------------------------------------------------------


def clipped(state: Rewriting, call: Call) -> New | None:
    named = bound(call)
    new = {n: state.number(named[n]) for n in ("low", "high")}
    if any(type(named[n]) is Var and new[n] is not None for n in new):
        return New("clip", {**named, **{n: v for n, v in new.items() if v is not None}})
    return None


def unit_axes(state: Rewriting, call: Call) -> New | None:
    """Rewrite a reshape that adds or removes an axis of one element to `expand_dims` or `squeeze`."""
    named = bound(call)
    x, shape = named["x"], tuple(named["shape"])
    if type(x) is not Var:
        return None
    if len(shape) == x.ndim + 1:
        unit_axes_ = [a for a, n in enumerate(shape) if n == 1 and shape[:a] + shape[a + 1 :] == x.shape]
        if unit_axes_:
            axis = unit_axes_[-1]
            return New("expand_dims", {"x": x, "axis": -1 if axis == x.ndim else axis})
    if len(shape) == x.ndim - 1:
        unit_axes_ = [a for a, n in enumerate(x.shape) if n == 1 and x.shape[:a] + x.shape[a + 1 :] == shape]
        if unit_axes_:
            axis = unit_axes_[-1]
            return New("squeeze", {"x": x, "axes": -1 if axis == x.ndim - 1 else axis})
    return None


def indexed(state: Rewriting, call: Call) -> New | None:
    """Rewrite slices to indexing; a slice of one element whose axis is then removed is an index."""
    named = bound(call)
    if call.method == "slice":
        x = named["x"]
        index: list[Any] = []
        for n, a, b, c in zip(x.shape, named["start"], named["stop"], named["step"], strict=True):
            index.append(slice(a or None, None if b == n else b, None if c == 1 else c))
        return New("getitem", {"x": x, "index": _short(index)})
    x = named["x"]
    inner = state.made_by(x, "getitem")
    if inner is None or state.uses[x] != 1:
        return None
    axes = axes_of(named["axes"], x.ndim)
    index = [*inner["index"], *[slice(None)] * (x.ndim - len(inner["index"]))]
    if any(not isinstance(i, slice) for i in index):
        return None
    for a in axes:
        start, n = index[a].start or 0, inner["x"].shape[a]
        index[a] = -1 if start == n - 1 and n > 2 else start
    return New("getitem", {"x": inner["x"], "index": _short(index)})


def _short(index: list[Any]) -> tuple[Any, ...]:
    """Drop full slices at the end of an index, and return it as a tuple."""
    full = slice(None)
    while len(index) > 1 and index[-1] == full:
        index = index[:-1]
    front = 0
    while front < len(index) and index[front] == full:
        front += 1
    return tuple(index)


def filled(state: Rewriting, call: Call) -> New | None:
    named = bound(call)
    value = named["value"]
    if isinstance(value, bool | int | float) and value in (0, 1):
        return New("ones" if value else "zeros", {"shape": named["shape"], "dtype": named["dtype"]})
    return None


LAST_PASS: dict[str, list[Rule]] = {"full": [filled], "reshape": [unit_axes], "slice": [indexed], "squeeze": [indexed]}
RULES["clip"] = [clipped]
RULES["slice"] = [pieces]
RULES["stack"] = [restacked]
for _name in ("split", "concat", "cumsum", "take"):
    RULES[_name] = [last_axis]
