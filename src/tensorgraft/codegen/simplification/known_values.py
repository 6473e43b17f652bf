"""Rules for values that are known without being computed: comparisons of positions, parts of uniform arrays, arrays
that are indexed at all of their positions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.codegen.simplification.rewriting import New, Rewriting, Rule, bound, number_of
from tensorgraft.hub.recorded.block import Call, Var

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "less": operator.lt, "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge,
    "equal": operator.eq, "not_equal": operator.ne,
}  # fmt: skip
_MOVES = ("reshape", "broadcast_to", "expand_dims", "squeeze", "permute_dims", "slice", "take_slice", "getitem", "copy")
_SHAPED = ("reshape", "broadcast_to", "expand_dims", "squeeze")


def is_counted(state: Rewriting, x: Any) -> bool:
    """Return True for integers that are known to be at least zero: positions, and sums and products of these."""
    number = state.number(x)
    if number is not None:
        return isinstance(number, int) and number >= 0
    if type(x) is Var and x.value is not None:
        return x.dtype.kind in "iu" and bool((x.value >= 0).all())
    call = state.maker.get(x) if type(x) is Var and x.dtype.kind in "iu" else None
    if call is None:
        return False
    named = bound(call)
    if call.method in ("iota", "arange"):
        return call.method == "iota" or (named["start"] >= 0 and named["step"] > 0)
    if call.method == "concat":
        return all(is_counted(state, v) for v in named["arrays"])
    if call.method in ("add", "multiply"):
        return is_counted(state, named["x"]) and is_counted(state, named["y"])
    return call.method in (*_MOVES, "unstack", "split") and is_counted(state, named["x"])


def compared(state: Rewriting, call: Call) -> Any:
    """Replace a comparison of numbers, or of positions with zero, by its value."""
    named = bound(call)
    x, y = state.number(named["x"]), state.number(named["y"])
    if x is not None and y is not None and not isinstance(x, complex) and not isinstance(y, complex):
        known = _COMPARISONS[call.method](x, y)
    elif y == 0 and call.method in ("less", "greater_equal") and is_counted(state, named["x"]):
        known = call.method == "greater_equal"
    else:
        return None
    return New("full", {"shape": call.results.shape, "value": known, "dtype": call.results.dtype})


def uniform(state: Rewriting, call: Call) -> New | None:
    """Replace a part of an array whose elements are all one number by such an array."""
    x = next(iter(bound(call).values()))
    number = state.number(x)
    if (
        number is None
        and type(x) is Var
        and x.value is not None
        and x.size
        and bool((x.value == x.value.flat[0]).all())
    ):
        number = number_of(x.value.reshape(-1)[0:1].reshape(()))
    if number is None:
        return None
    return New("full", {"shape": call.results.shape, "value": number, "dtype": call.results.dtype})


def taken(state: Rewriting, call: Call) -> New | None:
    """Rewrite the entries at one known position of an axis to an index."""
    named = bound(call)
    x, at = named["x"], state.number(named["indices"])
    if type(x) is not Var or not isinstance(at, int) or named["indices"].ndim:
        return None
    return New("getitem", {"x": x, "index": (*[slice(None)] * (named["axis"] % x.ndim), at)})


def taken_everywhere(state: Rewriting, call: Call) -> New | None:
    """Rewrite an array that is taken at all positions of its first axis in order, `i * n + j`, to a reshape."""
    named = bound(call)
    x, total = named["x"], state.made_by(named["indices"], "add")
    if type(x) is not Var or total is None or named["axis"] % x.ndim or x.size != call.results.size:
        return None
    for inner, outer in ((total["x"], total["y"]), (total["y"], total["x"])):
        rows = state.made_by(outer, "multiply")
        n = state.number(rows["y"]) if rows is not None else None
        if rows is None or not isinstance(n, int) or n < 1 or type(rows["x"]) is not Var or type(inner) is not Var:
            continue
        in_order = inner.size == n and outer.size * n == x.shape[0] and all(m == 1 for m in outer.shape[-inner.ndim :])
        if in_order and _is_whole(state, inner, n) and _is_whole(state, rows["x"], outer.size):
            return New("reshape", {"x": x, "shape": call.results.shape})
    return None


def column(state: Rewriting, call: Call) -> New | None:
    """Gather at the arrays of which the columns of positions were made."""
    named = bound(call)
    indices = [_without_broadcast(state, _piece(state, v)) for v in named["indices"]]
    if all(a is b for a, b in zip(indices, named["indices"], strict=True)):
        return None
    before, after = (np.broadcast_shapes(*[v.shape for v in vs]) for vs in (named["indices"], indices))
    return New(call.method, {**named, "indices": tuple(indices)}) if before == after else None


def _piece(state: Rewriting, v: Any) -> Any:
    """Return the array that is an element of a stack, if `v` is this element."""
    call = state.maker.get(v) if type(v) is Var else None
    if call is None or call.method != "unstack":
        return v
    named = bound(call)
    inner = state.made_by(named["x"], "concat")
    axis = named["axis"] % named["x"].ndim
    if inner is None or inner["axis"] % named["x"].ndim != axis or any(a.shape[axis] != 1 for a in inner["arrays"]):
        return v
    return state.xp.reshape(inner["arrays"][call.results.index(v)], v.shape)


def _without_broadcast(state: Rewriting, v: Any) -> Any:
    named = state.made_by(v, "broadcast_to")
    return v if named is None else named["x"]


def whole_gather(state: Rewriting, call: Call) -> New | None:
    """Rewrite an array that is gathered at all of its positions, along axes of their own in order, to a reshape."""
    named = bound(call)
    x, indices = named["x"], named["indices"]
    if type(x) is not Var or len(indices) != x.ndim or x.size != call.results.size:
        return None
    rank, last = call.results.ndim, -1
    for v, n in zip(indices, x.shape, strict=True):
        axes = [rank - v.ndim + a for a, m in enumerate(v.shape) if m != 1]
        if v.size != n or not _is_whole(state, v, n) or len(axes) > 1 or (axes and axes[0] <= last):
            return None
        last = axes[0] if axes else last
    return New("reshape", {"x": x, "shape": call.results.shape})


def _is_whole(state: Rewriting, v: Any, n: int) -> bool:
    """Return True for 0, 1, ... n - 1, in a shape of n elements."""
    while (named := state.made_by(v, *_SHAPED)) is not None:
        v = named["x"]
    call = state.maker.get(v)
    if call is None or v.size != n or call.method not in ("iota", "arange"):
        return False
    named = bound(call)
    return call.method == "iota" or (named["start"] == 0 and named["step"] == 1)


def swapped(state: Rewriting, call: Call) -> New | None:
    """Swap the last two axes of an array whose other axes are merged for it and then separated again."""
    x, shape = bound(call)["x"], call.results.shape
    moved = state.made_by(x, "permute_dims")
    before = state.made_by(moved["x"], "reshape") if moved is not None and tuple(moved["axes"]) == (0, 2, 1) else None
    if before is None or (*before["x"].shape[:-2], *before["x"].shape[:-3:-1]) != shape or len(shape) < 4:
        return None
    if before["x"].shape[-2:] != moved["x"].shape[-2:]:  # type: ignore[index]
        return None
    n = len(shape)
    return New("permute_dims", {"x": before["x"], "axes": (*range(n - 2), n - 1, n - 2)})


def unbound(state: Rewriting, call: Call) -> Any:
    """Rewrite a piece of one element, without its axis, to an element of the array."""
    x = bound(call)["x"]
    maker = state.maker.get(x) if type(x) is Var else None
    if maker is None or maker.method != "split":
        return None
    named = bound(maker)
    axis = named["axis"] % x.ndim
    if any(n != 1 for n in named["sizes"]) or call.results.shape != x.shape[:axis] + x.shape[axis + 1 :]:
        return None
    at = maker.results.index(x)
    if sum(state.uses[piece] > 0 for piece in maker.results) == 1:
        return New("getitem", {"x": named["x"], "index": (*[slice(None)] * axis, at)})
    return state.xp.unstack(named["x"], axis)[at]


RULES: dict[str, list[Rule]] = {name: [compared] for name in _COMPARISONS}
for _name in ("take", "take_along_axis", "gather", "slice", "take_slice", "getitem"):
    RULES[_name] = [uniform]
RULES["take"] += [taken, taken_everywhere]
RULES["gather"] += [column, whole_gather]
RULES["reshape"] = [swapped, unbound]
RULES["squeeze"] = [unbound]
