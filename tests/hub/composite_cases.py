"""The table of composites: like `cases.py`, one row each."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special as sp
from tests.hub.cases import ELEMENTWISE, FLOATS, LAYOUT, Case, of
from tests.hub.draw import Draw
from tests.hub.neural_cases import NEURAL
from tests.hub.sparse_cases import SPARSE

from tensorgraft.hub import dtypes, registry
from tensorgraft.hub.operations import elementwise
from tensorgraft.hub.operations.factorisations import Factorisations
from tensorgraft.hub.operations.random import Random
from tensorgraft.quantization.encodings import ENCODINGS

FLOAT = (dtypes.float32, dtypes.bfloat16, dtypes.float64)
ORDERED = (dtypes.float32, dtypes.int8, dtypes.bfloat16, dtypes.bool_)
DIVISION = (dtypes.float32, dtypes.int32, dtypes.bfloat16, dtypes.float64, dtypes.uint8)


def _one(d: Draw) -> tuple[Any, ...]:
    return (d.array(),)


def _derived(d: Draw) -> tuple[Any, ...]:
    first, second = d.broadcastable(2)
    order = np.asarray(np.round(d.array(first, low=0, high=4).astype(np.float64)), d.dtype)
    return order, d.array(second, low=0.5, high=9)


def _divided(d: Draw) -> tuple[Any, ...]:
    first, second = d.broadcastable(2)
    divisor = d.array(second, low=1, high=4)
    sign = -1 if d.flag() and d.dtype.kind != "u" else 1
    return d.array(first, low=-9, high=9), np.asarray(divisor * np.asarray(sign, d.dtype), d.dtype)


def _clipped(d: Draw) -> tuple[Any, ...]:
    return d.array(), d.one_of((None, -1.5, d.array((), low=-2, high=-1))), d.one_of((None, 1, d.array((), low=1)))


def _attended(d: Draw) -> tuple[Any, ...]:
    """Heads that share keys, every kind of mask, rows that see no key, and sometimes more rows than go at once."""
    groups, shared, rows, keys, width = d.int(1, 2), d.int(1, 2), d.int(1, 5), d.int(1, 6), d.int(1, 4)
    causal = d.flag()
    if causal and d.int(0, 3) == 0:
        rows, keys = d.int(512, 520), d.one_of((300, 600))
    q = d.array((2, groups * shared, rows, width))
    k, v = d.array((2, groups, keys, width)), d.array((2, groups, keys, d.int(1, 4)))
    mask = d.one_of((None, d.array((rows, keys), dtypes.bool_), d.array((2, 1, 1, keys)), d.array((rows, keys))))
    if mask is not None and mask.dtype != dtypes.bool_ and d.flag():
        mask[..., 0] = -np.inf
    return q, k, v, mask, causal, d.one_of((None, 0.3))


def _attention(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None) -> tuple[Any, Any]:
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    norm = np.logaddexp.reduce(scores, -1)
    norm = np.where(norm == -np.inf, 0, norm)
    return np.exp(scores - norm[..., None]) @ v, norm


def _attended_back(d: Draw) -> tuple[Any, ...]:
    q, k, v, mask, causal, scale = _attended(d)
    out, norm = _attention(*(x.astype(np.float64) for x in (q, k, v)), mask, causal, scale)
    grad = d.array(out.shape)
    return grad, q, k, v, out.astype(d.dtype), norm.astype(dtypes.accumulator(d.dtype)), mask, causal, scale


def _attention_gradients(
    grad: Any, q: Any, k: Any, v: Any, out: Any, norm: Any, mask: Any, causal: bool, scale: float | None
) -> tuple[Any, ...]:
    n, groups, keys, _ = k.shape
    shared = q.shape[1] // groups
    every = [np.repeat(x, shared, 1) for x in (k, v)]
    factor = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    scores = q @ every[0].swapaxes(-1, -2) * factor
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    p = np.exp(scores - norm[..., None])
    d_scores = p * (grad @ every[1].swapaxes(-1, -2) - (grad * out).sum(-1, keepdims=True)) * factor

    def gathered(x: Any, rows: Any) -> Any:
        return (x.swapaxes(-1, -2) @ rows).reshape(n, groups, shared, keys, -1).sum(2)

    return d_scores @ every[0], gathered(d_scores, q), gathered(p, grad)


def _along(d: Draw) -> tuple[Any, ...]:
    """An array that is not empty, and one of its axes."""
    x = d.array(d.shape(1, smallest=1))
    return x, d.axis(x.ndim)


def _reduced(d: Draw) -> tuple[Any, ...]:
    x = d.array(d.shape(smallest=1))
    return x, d.axes(x.ndim), d.flag()


def _taken_along(d: Draw) -> tuple[Any, ...]:
    """Indices of as many axes as the array, none but `axis` longer than its own."""
    x, axis = _along(d)
    shape = [d.int(0, n) for n in x.shape]
    shape[axis] = d.int(0, 5)
    return x, d.indices(x.shape[axis], tuple(shape)), axis


def _put_along(d: Draw) -> tuple[Any, ...]:
    x, at, axis = _taken_along(d)
    return x, at, d.array(at.shape), axis, "add"


def _put_along_axis(x: Any, at: Any, updates: Any, axis: int, mode: str) -> Any:
    out = x.copy()
    for place in np.ndindex(at.shape):
        to = list(place)
        to[axis] = at[place]
        out[tuple(to)] += updates[place]
    return out


def _row(d: Draw) -> tuple[Any, ...]:
    x, axis = _along(d)
    shape = [1 if a == axis % x.ndim else n for a, n in enumerate(x.shape)]
    return x, d.indices(x.shape[axis], ()), d.array(tuple(shape)), axis


def _put_row(x: Any, at: Any, row: Any, axis: int) -> Any:
    out = x.copy()
    out[(slice(None),) * (axis % x.ndim) + (int(at),)] = row.squeeze(axis)
    return out


def _grid(at: Any, axis: int) -> tuple[Any, ...]:
    grid = list(np.indices(at.shape))
    grid[axis] = at
    return tuple(grid)


def _stable_argsort(x: Any, axis: int, descending: bool) -> Any:
    key = np.where(np.isnan(x), np.inf, x) if x.dtype.kind == "f" else x.astype(np.int64)
    return np.argsort(-key if descending else key, axis=axis, kind="stable")


def _running_extreme(x: Any, axis: int, largest: bool) -> Any:
    rows = np.moveaxis(x.astype(np.float64), axis, 0)
    best = np.zeros(rows.shape, np.int64)
    for i in range(1, len(rows)):
        before, now = np.take_along_axis(rows, best[i - 1 : i], 0)[0], rows[i]
        takes = np.isnan(now) | (now >= before if largest else now <= before)
        best[i] = np.where(takes, i, best[i - 1])
    best = np.moveaxis(best, 0, axis)
    return np.take_along_axis(x, best, axis), best


def _multiplied(d: Draw) -> tuple[Any, ...]:
    m, k, n = (d.int(0, 3) for _ in range(3))
    lead_a, lead_b = d.broadcastable(2)
    a = d.array((k,) if d.int(0, 3) == 0 else (*lead_a, m, k))
    b = d.array((k,) if d.int(0, 3) == 0 else (*lead_b, k, n))
    return a, b


def _system(d: Draw) -> tuple[Any, ...]:
    n = d.int(1, 4)
    batch = d.shape(0, 1)
    a = d.array((*batch, n, n)) + 9 * np.eye(n, dtype=d.dtype)
    return a, d.array((*batch, n, d.int(0, 3)))


def _factored(d: Draw) -> tuple[Any, ...]:
    """L U of a matrix whose rows are permuted, the permutation, a right-hand side."""
    a, b = _system(d)
    n = a.shape[-1]
    permutation = np.broadcast_to(np.array(d.permutation(n), np.int32), a.shape[:-1])
    return a, permutation, b


def _lu_solve(lu: Any, permutation: Any, b: Any) -> Any:
    n = lu.shape[-1]
    x = (np.tril(lu, -1) + np.eye(n)) @ np.triu(lu)
    return np.linalg.solve(x, np.take_along_axis(b, permutation[..., None].astype(np.int64), -2))


def _grouped(d: Draw) -> tuple[Any, ...]:
    """Matrices of which rows, columns or the contracted axis are in groups, some of them empty or of none."""
    m, k, n, groups = d.int(0, 9), d.int(1, 4), d.int(1, 3), d.int(1, 4)
    ends = np.array(sorted(d.int(0, m) for _ in range(groups)), np.int32)
    shapes = d.one_of((((m, k), (groups, k, n)), ((groups, n, k), (k, m)), ((n, m), (m, k))))
    return *map(d.array, shapes), ends


def _grouped_matmul(a: Any, b: Any, ends: Any) -> Any:
    out = np.zeros((len(ends), a.shape[0], b.shape[1]) if a.ndim == b.ndim else (a.shape[-2], b.shape[-1]))
    for i, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        if a.ndim == b.ndim:
            out[i] = a[:, start:end] @ b[start:end]
        elif a.ndim == 2:
            out[start:end] = a[start:end] @ b[i]
        else:
            out[:, start:end] = a[i] @ b[:, start:end]
    return out


def _coded(d: Draw) -> tuple[Any, ...]:
    """x, codes in their memory, scales, zero points or none, an encoding, the shape, the contracted axis."""
    coding = ENCODINGS[
        d.one_of(("int8", "uint8", "int4", "uint4", "int2", "int1", "nf4", "float8_e4m3", "float4_e2m1"))
    ]
    n, groups, axis = d.int(1, 6), d.int(1, 3), d.int(0, 1)
    group = d.one_of((3, 4, 8))
    shape = n, groups * group
    count = len(coding.table) or 1 << coding.bits
    codes = np.random.default_rng(d.int(0, 9)).integers(0, count, shape) - (1 << coding.bits >> 1 if coding.low else 0)
    if coding.kind == "float":
        codes = d.array(shape, dtypes.float32).astype(coding.dtype)
    grid = d.one_of((1, n)), groups
    scale = d.array(grid, dtypes.float32, low=0.5, high=1) / np.float32(max(coding.largest, 1))
    zero = d.array(grid, dtypes.float32, low=-4, high=4) if d.flag() else None
    packed = coding.pack(registry.get("numpy"), codes.astype(coding.dtype))
    return d.array((d.int(1, 12), shape[axis])), packed, scale, zero, coding, shape, axis


def _coded_matmul(x: Any, codes: Any, scale: Any, zero: Any, coding: Any, shape: Any, axis: Any) -> Any:
    xp = registry.get("numpy")
    values = codes if coding.kind == "float" else coding.decode(xp, coding.unpack(xp, codes, shape))

    def wide(s: Any) -> Any:
        return np.repeat(s, shape[1] // s.shape[1], 1)

    values = (values if zero is None else values - wide(zero)) * wide(scale)
    return x @ (values.T if axis == 1 else values)


def _patches(d: Draw) -> tuple[Any, ...]:
    x = d.array((*d.shape(0, 1), d.int(5, 7), d.int(5, 7)))
    return x, *(tuple(d.int(1, most) for _ in range(2)) for most in (3, 2, 2))


def _window_patches(x: Any, window: Any, strides: Any, dilation: Any) -> Any:
    spread = tuple(d * (k - 1) + 1 for k, d in zip(window, dilation, strict=True))
    seen = np.lib.stride_tricks.sliding_window_view(x, spread, (-2, -1))
    seen = seen[..., :: strides[0], :: strides[1], :: dilation[0], :: dilation[1]]
    return np.moveaxis(seen, (-2, -1), (-4, -3)).reshape(*x.shape[:-2], -1, *seen.shape[-4:-2])


def _sizes(d: Draw) -> tuple[Any, ...]:
    x, axis = _along(d)
    at = d.int(0, x.shape[axis])
    return x, [at, x.shape[axis] - at], axis


def _unit_axes(d: Draw) -> tuple[Any, ...]:
    shape = list(d.shape(1))
    axis = d.axis(len(shape))
    shape[axis] = 1
    return d.array(tuple(shape)), axis


def _step(d: Draw) -> tuple[Any, ...]:
    x, axis = _along(d)
    start = d.int(0, x.shape[axis])
    return x, axis, start, d.int(start, x.shape[axis]), d.int(1, 3)


def _taken(d: Draw) -> tuple[Any, ...]:
    x, axis = _along(d)
    return x, d.indices(x.shape[axis], d.shape()), axis


def _matrices(d: Draw) -> tuple[Any, ...]:
    return d.array(d.shape(2)), d.int(-3, 3)


def _diagonal(d: Draw) -> tuple[Any, ...]:
    return d.array(d.shape(2, smallest=1)), d.int(-3, 3)


def _geometry(d: Draw) -> tuple[Any, ...]:
    """(groups, in channels, out channels, sides, window, strides, padding, dilation) of a convolution."""
    n, groups = d.int(0, 2), d.int(1, 2)
    window, strides, dilation = (tuple(d.int(1, most) for _ in range(n)) for most in (3, 3, 2))
    padding = tuple(d.int(0, k) for k in window)
    sides = tuple((k - 1) * t + 1 + d.int(0, 4) for k, t in zip(window, dilation, strict=True))
    return groups, groups * d.int(1, 2), groups * d.int(1, 3), sides, window, strides, padding, dilation


def _transposed(d: Draw) -> tuple[Any, ...]:
    groups, c, o, sides, window, strides, padding, dilation = _geometry(d)
    extra = tuple(d.int(0, s - 1) + 2 * p for s, p in zip(strides, padding, strict=True))  # something is left over
    x, w = d.array((d.int(1, 2), c, *sides)), d.array((c, o // groups, *window))
    return x, w, strides, padding, dilation, extra, groups


def _weighed(d: Draw) -> tuple[Any, ...]:
    groups, c, o, sides, window, strides, padding, dilation = _geometry(d)
    rest = zip(sides, window, strides, padding, dilation, strict=True)
    out = [(i + 2 * p - t * (k - 1) - 1) // s + 1 for i, k, s, p, t in rest]
    n = d.int(1, 2)
    return d.array((n, c, *sides)), d.array((n, o, *out)), window, strides, padding, dilation, groups


def _pairs(out: tuple[int, ...], window: tuple[int, ...], strides: Any, dilation: Any) -> Any:
    """(place of the result, tap of the window, place of the padded image) of a convolution."""
    for at in np.ndindex(*out):
        for tap in np.ndindex(*window):
            yield at, tap, tuple(a * s + t * d for a, s, t, d in zip(at, strides, tap, dilation, strict=True))


def _transposed_convolution(x: Any, w: Any, strides: Any, padding: Any, dilation: Any, extra: Any, groups: int) -> Any:
    sides, window = x.shape[2:], w.shape[2:]
    rest = zip(sides, window, strides, dilation, extra, strict=True)
    full = [(i - 1) * s + d * (k - 1) + 1 + e for i, k, s, d, e in rest]
    out = np.zeros((x.shape[0], w.shape[1] * groups, *full), x.dtype)
    for at, tap, to in _pairs(sides, window, strides, dilation):
        pairs = zip(np.split(x[:, :, *at], groups, 1), np.split(w[:, :, *tap], groups), strict=True)
        out[:, :, *to] += np.concatenate([a @ b for a, b in pairs], 1)
    return out[(..., *(slice(p, n - p) for p, n in zip(padding, full, strict=True)))]


def _convolution_weights(x: Any, grad: Any, window: Any, strides: Any, padding: Any, dilation: Any, groups: int) -> Any:
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    found = np.zeros((grad.shape[1], x.shape[1] // groups, *window), x.dtype)
    for at, tap, seen in _pairs(grad.shape[2:], window, strides, dilation):
        pairs = zip(np.split(grad[:, :, *at], groups, 1), np.split(x[:, :, *seen], groups, 1), strict=True)
        found[:, :, *tap] += np.concatenate([a.T @ b for a, b in pairs])
    return found


COMPOSITES = {
    **{name: ELEMENTWISE[name] for name in elementwise.COMPOSITES},
    "clip": Case(FLOAT, _clipped, np.clip),
    "remainder": Case(DIVISION, _divided, np.remainder),
    "floor_divide": Case(DIVISION, _divided, np.floor_divide),
    "angle": Case((*FLOAT, dtypes.complex64), _one, lambda x: np.angle(x + 0)),  # -0.0 is not negative here
    "polygamma": Case(
        FLOAT, _derived, lambda n, x: np.reshape(sp.polygamma(n.astype(int), x), np.broadcast_shapes(n.shape, x.shape))
    ),
    "softplus": Case(FLOAT, _one, lambda x: np.logaddexp(x, 0)),
    "mean": Case((*FLOAT, dtypes.complex64), _reduced, lambda x, axis, keep: np.mean(x, axis, keepdims=keep), 32),
    "var": Case((*FLOAT, dtypes.complex64), _reduced, lambda x, axis, keep: np.var(x, axis, keepdims=keep), 64),
    "logsumexp": Case(FLOAT, _reduced, lambda x, axis, keep: np.log(np.sum(np.exp(x), axis, keepdims=keep)), 32),
    "softmax": Case(FLOAT, _along, sp.softmax, 32),
    "log_softmax": Case(FLOAT, _along, sp.log_softmax, 32),
    "cumlogsumexp": Case(FLOAT, _along, np.logaddexp.accumulate, 32),
    "zeros": Case(LAYOUT, lambda d: (d.shape(), d.dtype), np.zeros),
    "ones": Case(LAYOUT, lambda d: (d.shape(), d.dtype), np.ones),
    "zeros_like": Case(LAYOUT, _one, np.zeros_like),
    "ones_like": Case(LAYOUT, _one, np.ones_like),
    "full_like": Case(LAYOUT, lambda d: (d.array(), 1), np.full_like),
    "eye": Case(
        LAYOUT, lambda d: (d.int(0, 4), d.int(0, 4), d.dtype, d.int(-3, 3)), lambda n, m, t, k: np.eye(n, m, k, bool)
    ),
    "expand_dims": Case(LAYOUT, lambda d: (x := d.array(), d.axis(x.ndim + 1)), np.expand_dims),
    "squeeze": Case(LAYOUT, _unit_axes, np.squeeze),
    "moveaxis": Case(LAYOUT, lambda d: (x := d.array(d.shape(1)), d.axis(x.ndim), d.axis(x.ndim)), np.moveaxis),
    "swapaxes": Case(LAYOUT, lambda d: (x := d.array(d.shape(1)), d.axis(x.ndim), d.axis(x.ndim)), np.swapaxes),
    "matrix_transpose": Case(LAYOUT, lambda d: (d.array(d.shape(2)),), np.matrix_transpose),
    "stack": Case(LAYOUT, lambda d: ([x := d.array(), d.array(x.shape)], d.axis(x.ndim + 1)), np.stack),
    "take_slice": Case(LAYOUT, _step, lambda x, axis, *at: x[(slice(None),) * (axis % x.ndim) + (slice(*at),)]),
    "split": Case(LAYOUT, _sizes, lambda x, sizes, axis: np.split(x, sizes[:1], axis)),
    "unstack": Case(LAYOUT, _along, lambda x, axis: [x.take(i, axis) for i in range(x.shape[axis])]),
    "roll": Case(LAYOUT, lambda d: (x := d.array(d.shape(1)), d.int(-9, 9), d.axis(x.ndim)), np.roll),
    "tile": Case(LAYOUT, lambda d: (x := d.array(), [d.int(0, 3) for _ in x.shape]), np.tile),
    "repeat": Case(LAYOUT, lambda d: (x := d.array(d.shape(1)), d.int(0, 3), d.axis(x.ndim)), np.repeat),
    "triangle_mask": Case(
        (dtypes.bool_,), lambda d: (d.int(0, 4), d.int(0, 4), d.int(-4, 4)), lambda n, m, k: np.tri(n, m, k, bool)
    ),
    "tril": Case(LAYOUT, _matrices, np.tril),
    "triu": Case(LAYOUT, _matrices, np.triu),
    "diagonal": Case(LAYOUT, _diagonal, lambda x, k: np.diagonal(x, k, -2, -1)),
    "take": Case(LAYOUT, _taken, np.take),
    "take_along_axis": Case(LAYOUT, _taken_along, lambda x, at, axis: x[_grid(at, axis)]),
    "put_along_axis": Case((*FLOAT, dtypes.int8), _put_along, _put_along_axis, 32),
    "put_row": Case(LAYOUT, _row, _put_row),
    "one_hot": Case(
        LAYOUT,
        lambda d: (d.indices(n := d.int(1, 5), d.shape()), n, d.dtype),
        lambda at, n, dtype: at[..., None] == np.arange(n),
    ),
    "argsort": Case(ORDERED, lambda d: (*_along(d), d.flag()), _stable_argsort),
    "sort_with_indices": Case(
        ORDERED,
        lambda d: (*_along(d), d.flag()),
        lambda x, axis, down: (np.take_along_axis(x, at := _stable_argsort(x, axis, down), axis), at),
    ),
    "running_extreme": Case(ORDERED, lambda d: (*_along(d), d.flag()), _running_extreme),
    "kth_value": Case(
        ORDERED,
        lambda d: (x := d.array(d.shape(1, smallest=1)), d.int(0, x.shape[-1] - 1), -1),
        lambda x, k, axis: (
            np.take_along_axis(x, at := _stable_argsort(x, axis, False)[..., k : k + 1], axis),
            at,
        ),
    ),
    "top_k": Case(
        ORDERED,
        lambda d: (x := d.array(d.shape(1, smallest=1)), d.int(1, x.shape[-1]), -1, d.flag()),
        lambda x, k, axis, most: (
            np.take_along_axis(x, at := _stable_argsort(x, axis, most)[..., :k], axis),
            at,
        ),
    ),
    "matmul": Case(of("bifc"), _multiplied, np.matmul, 64),
    **NEURAL,
    **SPARSE,
    "attention": Case(FLOAT, _attended, _attention, 64),
    "attention_gradients": Case(FLOAT, _attended_back, _attention_gradients, 1024),
    "coded_matmul": Case((dtypes.float32, dtypes.bfloat16, dtypes.float16), _coded, _coded_matmul, 64),
    "grouped_matmul": Case(FLOAT, _grouped, _grouped_matmul, 64),
    "inverse_permutation": Case((dtypes.int64,), lambda d: (np.array(d.permutation(5)),), np.argsort),
    "lu_solve": Case(FLOATS, _factored, _lu_solve, 512),
    "solve": Case((*FLOATS, dtypes.complex64), _system, np.linalg.solve, 512),
    "inv": Case((*FLOATS, dtypes.complex64), lambda d: _system(d)[:1], np.linalg.inv, 512),
    "parity": Case(
        (dtypes.int32,),
        lambda d: (np.array([[d.int(i, 3) for i in range(4)]], np.int32),),
        lambda pivots: np.sum(pivots != np.arange(4), -1),
    ),
    "window_patches": Case(LAYOUT, _patches, _window_patches),
    "transposed_convolution": Case(of("ifc"), _transposed, _transposed_convolution, 128),
    "convolution_weights": Case(of("ifc"), _weighed, _convolution_weights, 128),
}
# Of shapes, memory and traces; random numbers, factorisations and `map` have tests of their own.
ELSEWHERE = {
    "is_differentiated",
    "abstract",
    "lifted",
    "vmap",
    "jvp",
    "vjp",
    "custom_vjp",
    "labelled",
    "when_known",
    "materialize",
    "lend",
    "adopt",
    "is_tracing",
    "is_hot",
    "flush",
    "eval_shape",
    "trace",
    "eagerly",
    "native_dtype",
    "native_function",
    "differentiable",
    "module",
    "native_scope",
    "exported",
    "detached",
    "in_trace",
    "is_watched",
    "operand",
    "seed_words",
    "stand_in",
    "as_traced",
    "strided_view",
    "assign",
    "ensure_owned",
    "memory",
    "over_memory",
    "place",
    "host_call",
    "optimization_barrier",
    "constrain",
    "mesh_ids",
    "processes",
    "parts_fed",
    "assembled",
    "capsules",  # test_arrays
    "collective",
    "joined_as",
    "same_everywhere",
    "pieces",
    "placement",
    "with_piece",
    "bytes_by_device",
    "dtype_of",
    "signature",
    "count",
    "size",
    "ndim",
    "map",
    "observe",
    "dialect",  # test_native_programs
    "sparse_array",  # torch/sparse/test_grafted
    "sparse_parts",
}
ELSEWHERE |= {name for area in (Random, Factorisations) for name in vars(area) if not name.startswith("_")}
