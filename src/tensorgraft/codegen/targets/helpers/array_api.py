"""Functions of generated files in the Array API standard."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

# ---- elementwise -----------------------------------------------------------------------------------------------------


def integer_pow(x: Any, y: Any) -> Any:
    """Integers to any power; negative powers are the truncated reciprocal, as in C."""
    xp = (x if hasattr(x, "dtype") else y).__array_namespace__()
    zero = xp.zeros_like(x * y)
    inverse = xp.where((x == 1) | (x == -1), xp.where(y % 2 == 1, x + zero, x * x + zero), zero)
    return xp.where(y < zero, inverse, (x + zero) ** xp.where(y < zero, zero, y + zero))


def fmod(x: Any, y: Any) -> Any:
    """The remainder with the sign of x."""
    like = x if hasattr(x, "dtype") else y
    xp = like.__array_namespace__()
    x, y = xp.broadcast_arrays(xp.asarray(x, dtype=like.dtype), xp.asarray(y, dtype=like.dtype))
    rest = xp.abs(x) % xp.abs(y)
    return xp.copysign(rest, x) if xp.isdtype(x.dtype, "real floating") else xp.where(x < 0, -rest, rest)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), without overflow."""
    xp = x.__array_namespace__()
    small = xp.exp(-xp.abs(x))
    return xp.where(x < 0, small, xp.ones_like(x)) / (1 + small)


def erf(x: Any) -> Any:
    """Compute erf by a series of positive terms (Abramowitz, Stegun 7.1.6)."""
    xp = x.__array_namespace__()
    z = xp.clip(x, -6.0, 6.0)
    total = term = z
    for n in range(1, 120):
        term = term * (2 * z * z / (2 * n + 1))
        total = total + term
    return 2 / math.sqrt(math.pi) * xp.exp(-z * z) * total


# ---- reductions ------------------------------------------------------------------------------------------------------


def softmax(x: Any, axis: int = -1) -> Any:
    xp = x.__array_namespace__()
    exps = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return exps / xp.sum(exps, axis=axis, keepdims=True)


def log_softmax(x: Any, axis: int = -1) -> Any:
    xp = x.__array_namespace__()
    shifted = x - xp.max(x, axis=axis, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))


def running(combine: Callable[[Any, Any], Any], x: Any, axis: int) -> Any:
    """Combine each element with those before it along an axis, in log2(n) rounds (Hillis, Steele 1986)."""
    xp = x.__array_namespace__()
    x = xp.moveaxis(x, axis, 0)
    n, step = x.shape[0], 1
    while step < n:
        x = xp.concat([x[:step, ...], combine(x[step:, ...], x[: n - step, ...])], axis=0)
        step *= 2
    return xp.moveaxis(x, 0, axis)


# ---- updates, sorting ------------------------------------------------------------------------------------------------


def updated(x: Any, index: Any, value: Any) -> Any:
    """A copy of `x` with `value` at `index` (of libraries whose arrays can be written)."""
    out = x.__array_namespace__().asarray(x, copy=True)
    out[index] = value
    return out


def pad(x: Any, value: Any, config: Sequence[tuple[int, int, int]]) -> Any:
    """Each axis by (low, high, between two elements); negative numbers cut off."""
    xp = x.__array_namespace__()
    apart = [n + max(n - 1, 0) * gap for n, (_, _, gap) in zip(x.shape, config, strict=True)]
    wide = tuple(max(low, 0) + n + max(high, 0) for n, (low, high, _) in zip(apart, config, strict=True))
    out = xp.asarray(xp.broadcast_to(xp.asarray(value, dtype=x.dtype), wide), copy=True)
    inner = zip(apart, config, strict=True)
    out[tuple(slice(max(low, 0), max(low, 0) + n, gap + 1) for n, (low, _, gap) in inner)] = x
    return out[tuple(slice(max(-low, 0), n + min(high, 0)) for n, (low, high, _) in zip(wide, config, strict=True))]


def take(x: Any, indices: Any, axis: int) -> Any:
    """Indices of any shape."""
    xp = x.__array_namespace__()
    flat = xp.take(x, xp.reshape(indices, (-1,)), axis=axis)
    return xp.reshape(flat, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def argsort(x: Any, axis: int = -1, descending: bool = False) -> Any:
    """Stable, NaN last (or first)."""
    xp = x.__array_namespace__()
    if not descending:
        return xp.argsort(x, axis=axis, stable=True)
    backwards = xp.argsort(xp.flip(x, axis=axis), axis=axis, stable=True)
    return x.shape[axis] - 1 - xp.flip(backwards, axis=axis)


def sort_with_indices(x: Any, axis: int = -1, descending: bool = False) -> tuple[Any, Any]:
    """The values in order, and where they were."""
    order = argsort(x, axis, descending)
    return x.__array_namespace__().take_along_axis(x, order, axis=axis), order


def searchsorted(boundaries: Any, values: Any, side: str = "left") -> Any:
    """Return the indices at which `values` go into the sorted `boundaries`, row by row."""
    xp = boundaries.__array_namespace__()
    b, v = boundaries[..., None, :], values[..., None]
    return xp.sum(xp.astype(b < v if side == "left" else b <= v, xp.int64), axis=-1)


def contracted(a: Any, b: Any, contract: Sequence[Sequence[int]], batch: Sequence[Sequence[int]]) -> Any:
    """The product of a and b along axes; the result has the batch, then the other axes of a, then those of b."""
    xp = a.__array_namespace__()
    free = [[i for i in range(x.ndim) if i not in contract[k] and i not in batch[k]] for k, x in enumerate((a, b))]
    left = xp.permute_dims(a, (*batch[0], *free[0], *contract[0]))
    right = xp.permute_dims(b, (*batch[1], *contract[1], *free[1]))
    lead = tuple(a.shape[i] for i in batch[0])
    rows, columns = (tuple(x.shape[i] for i in f) for x, f in zip((a, b), free, strict=True))
    n = math.prod(a.shape[i] for i in contract[0])
    left = xp.reshape(left, (*lead, math.prod(rows), n))
    return xp.reshape(left @ xp.reshape(right, (*lead, n, math.prod(columns))), (*lead, *rows, *columns))


# ---- windows ---------------------------------------------------------------------------------------------------------


def windows(
    x: Any, sizes: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> tuple[list[Any], tuple[int, ...]]:
    """(what each place of a window over the last axes sees, how many windows there are)."""
    n = len(sizes)
    spans = zip(x.shape[x.ndim - n :], sizes, strides, dilation, strict=True)
    places = tuple(max(s - d * (k - 1) - 1, -t) // t + 1 for s, k, t, d in spans)
    seen = []
    for at in range(math.prod(sizes)):
        index: list[Any] = []
        for k, t, d, m in zip(reversed(sizes), reversed(strides), reversed(dilation), reversed(places), strict=True):
            at, i = divmod(at, k)
            index.insert(0, slice(i * d, i * d + (m - 1) * t + 1 if m else i * d, t))
        seen.append(x[(..., *index)])
    return seen, places


def convolution(
    x: Any,
    weight: Any,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    groups: int = 1,
    batch_groups: int = 1,
) -> Any:
    """x (N, C, spatial...) with weight (O, C / groups, spatial...), by one product of all windows."""
    xp = x.__array_namespace__()
    n = len(strides)
    if batch_groups > 1:
        rows, outputs = x.shape[0] // batch_groups, weight.shape[0] // batch_groups
        xs = [x[i * rows : (i + 1) * rows, ...] for i in range(batch_groups)]
        ws = [weight[i * outputs : (i + 1) * outputs, ...] for i in range(batch_groups)]
        parts = [convolution(a, b, strides, padding, lhs_dilation, rhs_dilation) for a, b in zip(xs, ws, strict=True)]
        return xp.concat(parts, axis=1)
    gaps = [d - 1 for d in lhs_dilation or [1] * n]
    spread = pad(x, 0, [(0, 0, 0), (0, 0, 0), *((*p, g) for p, g in zip(padding, gaps, strict=True))])
    seen, places = windows(spread, weight.shape[2:], strides, rhs_dilation or [1] * n)
    rows = xp.stack(seen, axis=2)  # (N, C, window, places...)
    rows = xp.reshape(rows, (x.shape[0], groups, x.shape[1] // groups * len(seen), math.prod(places)))
    parts = xp.reshape(weight, (groups, weight.shape[0] // groups, weight.shape[1] * len(seen)))
    return xp.reshape(parts @ rows, (x.shape[0], weight.shape[0], *places))


def reduce_window(
    combine: Callable[[Any, Any], Any],
    x: Any,
    initial: Any,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] | None = None,
) -> Any:
    """Sums, maxima or minima over windows, one size for each of the last axes."""
    n = len(window)
    spread = pad(x, initial, [(0, 0, 0)] * (x.ndim - n) + [(*p, 0) for p in padding])
    seen, _ = windows(spread, window, strides, dilation or [1] * n)
    out = seen[0]
    for piece in seen[1:]:
        out = combine(out, piece)
    return out


# ---- attention, control flow -----------------------------------------------------------------------------------------


def while_loop(condition: Callable[[Any], Any], body: Callable[[Any], Any], state: Any) -> Any:
    while condition(state):
        state = body(state)
    return state


def scan(
    step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: tuple[Any, ...], length: int, reverse: bool = False
) -> tuple[Any, Any]:
    """`step(carry, x) -> (carry, y)` along the first axis; (the last carry, the stacked ys)."""
    rows = []
    for i in reversed(range(length)) if reverse else range(length):
        carry, y = step(carry, tuple(x[i, ...] for x in xs))
        rows.append(y)
    if reverse:
        rows.reverse()
    return carry, tuple(ys[0].__array_namespace__().stack(ys) for ys in zip(*rows, strict=True))
