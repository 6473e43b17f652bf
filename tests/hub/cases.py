"""The table of primitives: for each the dtypes it takes, operands, and a reference or a property of the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.hub import elementwise_cases as elementwise
from tests.hub import references as ref
from tests.hub.draw import Draw

from tensorgraft.hub import dtypes
from tensorgraft.hub.operations.elementwise import COMPOSITES, kinds_of

FLOATS = (dtypes.float32, dtypes.float64)
LAPACK = (*FLOATS, *dtypes.COMPLEX)
# Operations that only move values do not look at them: one dtype of each kind and size.
LAYOUT = (dtypes.bool_, dtypes.uint8, dtypes.int64, dtypes.bfloat16, dtypes.float32, dtypes.complex128)


@dataclass(frozen=True)
class Case:
    """`arguments(draw)` gives the operands, host arrays where the operation takes arrays.

    `reference(*operands)` takes them in double precision and gives the result; or `verify(operands, results)` asserts
    what must hold of results that are not unique.
    """

    dtypes: tuple[np.dtype, ...]
    arguments: Callable[[Draw], tuple[Any, ...]]
    reference: Callable[..., Any] | None = None
    units: float = 8
    verify: Callable[[Any, Any], None] | None = None
    wide: bool = True  # the reference computes in double precision, not in the operands' dtype


def of(kinds: str) -> tuple[np.dtype, ...]:
    """The dtypes whose kinds are letters of `kinds`."""
    return tuple(dtype for dtype in dtypes.ALL if kinds_of(dtype) in kinds)


def _nonempty(d: Draw, least: int = 1) -> np.ndarray:
    return d.array(d.shape(least, smallest=1))


def _reduced(d: Draw) -> tuple[Any, ...]:
    x = d.array(special=True)
    return x, d.axes(x.ndim), d.flag()


def _summed(d: Draw) -> tuple[Any, ...]:
    x = d.array()
    return x, d.axes(x.ndim), d.flag()


def _position(d: Draw) -> tuple[Any, ...]:
    x = d.array(d.shape(1, smallest=1), special=True)
    return x, d.axis(x.ndim), d.flag()


def _scanned(d: Draw) -> tuple[Any, ...]:
    x = d.array(d.shape(1), special=True)
    return x, d.axis(x.ndim)


def _spectrum(d: Draw) -> tuple[Any, ...]:
    x = d.array(d.shape(1, side=7, smallest=1))
    return x, d.axis(x.ndim)


def _half_spectrum(d: Draw) -> tuple[Any, ...]:
    n = d.int(1, 8)
    return d.array((*d.shape(0, 2), n // 2 + 1)), n, -1


def _reshaped(d: Draw) -> tuple[Any, ...]:
    x = d.array()
    return x, d.one_of((x.shape, x.shape[::-1], (x.size,), (1, x.size), (*x.shape, 1)))


def _concatenated(d: Draw) -> tuple[Any, ...]:
    shape = d.shape(1)
    axis = d.axis(len(shape))
    at = axis % len(shape)
    return [d.array((*shape[:at], d.int(0, 3), *shape[at + 1 :])) for _ in range(d.int(1, 3))], axis


def _broadcast(d: Draw) -> tuple[Any, ...]:
    shape, target = d.broadcastable(2)
    return d.array(shape), np.broadcast_shapes(shape, target)


def _padded(d: Draw) -> tuple[Any, ...]:
    x = d.array()
    config = []
    for n in x.shape:
        gap = d.int(0, 2)
        low = d.int(-2, 2)
        high = max(d.int(-2, 2), -(n + max(n - 1, 0) * gap) - low)  # no more cut off than there is
        config.append((low, high, gap))
    return x, d.array((), low=0, high=3) if d.flag() else 0, config


def _sliced(d: Draw) -> tuple[Any, ...]:
    x = d.array()
    start = tuple(d.int(0, n) for n in x.shape)
    return x, start, tuple(d.int(b, n) for b, n in zip(start, x.shape, strict=True)), tuple(d.int(1, 3) for _ in start)


def _slice_updated(d: Draw) -> tuple[Any, ...]:
    x, start, stop, step = _sliced(d)
    extents = (max(-((b - e) // s), 0) for b, e, s in zip(start, stop, step, strict=True))
    return x, d.array(tuple(extents)), start, step


def _dynamic(d: Draw) -> tuple[Any, ...]:
    x = d.array()
    start = [np.array(d.int(-2, 5), d.one_of((dtypes.int32, dtypes.int64))) for _ in x.shape]
    return x, start, tuple(d.int(0, n) for n in x.shape)


def _dynamic_updated(d: Draw) -> tuple[Any, ...]:
    x, start, sizes = _dynamic(d)
    return x, d.array(sizes), start


def _indices(d: Draw, shape: tuple[int, ...]) -> list[np.ndarray]:
    grids = d.broadcastable(len(shape)) if shape else []
    dtype = d.one_of((dtypes.int32, dtypes.int64, dtypes.uint8, dtypes.uint64))
    return [d.indices(n, s, dtype) for n, s in zip(shape, grids, strict=True)]


def _gathered(d: Draw) -> tuple[Any, ...]:
    x = _nonempty(d)
    return x, _indices(d, x.shape[: d.int(1, x.ndim)])


def _scattered(mode: str) -> Callable[[Draw], tuple[Any, ...]]:
    def draw(d: Draw) -> tuple[Any, ...]:
        if mode == "set":  # updates of equal indices: unspecified which one wins
            x = d.array(d.shape(1, smallest=1))
            n = d.int(0, x.shape[0])
            at = np.array(d.permutation(x.shape[0])[:n], dtypes.int64)
            return x, [at], d.array((n, *x.shape[1:]) if d.flag() else x.shape[1:]), mode
        x, indices = _gathered(d)
        whole = np.broadcast_shapes(*(i.shape for i in indices)) + x.shape[len(indices) :]
        return x, indices, d.array(whole[d.int(0, len(whole)) :]), mode

    return draw


def _sorted(d: Draw) -> tuple[Any, ...]:
    shape = d.shape(1, side=6)
    keys = [d.array(shape, low=-2, high=2, special=True) for _ in range(d.int(1, 2))]
    others = [d.array(shape, dtypes.int32) for _ in range(d.int(0, 1))]
    return [*keys, *others], d.axis(len(shape)), len(keys)


def _searched(d: Draw) -> tuple[Any, ...]:
    lead = d.shape(0, 2)
    boundaries = np.sort(wide_floats(d.array((*lead, d.int(0, 5)))), axis=-1).astype(d.dtype)
    values = d.array((*lead, d.int(0, 4))) if lead or d.flag() else d.array()
    return boundaries, values, d.flag()


def wide_floats(x: np.ndarray) -> np.ndarray:
    """Exactly the same values in a dtype that NumPy sorts."""
    return x.astype(np.float64) if dtypes.is_floating(x.dtype) else x


def _contracted(d: Draw) -> tuple[Any, ...]:
    shared, summed = d.shape(0, 2, 3), d.shape(0, 2, 3)
    free_a, free_b = d.shape(0, 2, 3), d.shape(0, 2, 3)
    s, k = len(shared), len(summed)
    a, b = d.array(shared + summed + free_a), d.array(shared + summed + free_b)
    order_a, order_b = d.permutation(a.ndim), d.permutation(b.ndim)
    batch = tuple(tuple(order.index(i) for i in range(s)) for order in (order_a, order_b))
    contract = tuple(tuple(order.index(i) for i in range(s, s + k)) for order in (order_a, order_b))
    result = d.one_of((None, *ref.products_of(d.dtype)))
    return a.transpose(order_a), b.transpose(order_b), contract, batch, result


def _matrix(d: Draw) -> np.ndarray:
    return d.array((*d.shape(0, 1), d.int(1, 4), d.int(1, 4)))


def _square(d: Draw) -> np.ndarray:
    n = d.int(1, 4)
    return d.array((*d.shape(0, 1), n, n))


def _definite(d: Draw) -> tuple[Any, ...]:
    x = _square(d)
    definite = x @ x.conj().swapaxes(-1, -2) + 2 * np.eye(x.shape[-1], dtype=x.dtype)
    return (definite + np.triu(x, 1),)  # the upper triangle is not to be read


def _triangular(d: Draw) -> tuple[Any, ...]:
    a = _square(d)
    n = a.shape[-1]
    a = a / 4 + 2 * np.eye(n, dtype=a.dtype)
    left = d.flag()
    b = d.array((*a.shape[:-2], n, d.int(0, 3)) if left else (*a.shape[:-2], d.int(0, 3), n))
    return a.astype(d.dtype), b, d.flag(), left, *d.one_of(((False, False), (True, False), (False, True))), d.flag()


def _reflectors(d: Draw) -> tuple[Any, ...]:
    m = d.int(1, 4)
    n = d.int(1, m)
    batch = d.shape(0, 1)
    return d.array((*batch, m, n)), d.array((*batch, d.int(0, n)), low=0, high=1)


def _convolved(d: Draw) -> tuple[Any, ...]:
    spatial = d.int(0, 2)
    groups, batch_groups = d.one_of(((1, 1), (2, 1), (1, 2)))
    n, c, o = d.int(1, 2) * batch_groups, d.int(1, 2), d.int(1, 2) * groups * batch_groups
    x = d.array((n, c * groups, *(d.int(2, 6) for _ in range(spatial))))
    w = d.array((o, c, *(d.int(1, 3) for _ in range(spatial))))
    padding = tuple((d.int(-1, 2), d.int(0, 2)) for _ in range(spatial))
    strides, lhs, rhs = (tuple(d.int(1, most) for _ in range(spatial)) for most in (3, 2, 2))
    return x, w, strides, padding, lhs, rhs, groups, batch_groups


def _windowed(kind: str) -> Callable[[Draw], tuple[Any, ...]]:
    def draw(d: Draw) -> tuple[Any, ...]:
        x = d.array(d.shape(side=6), special=kind != "sum")
        window, strides, dilation = (tuple(d.int(1, most) for _ in x.shape) for most in (3, 3, 2))
        return x, kind, window, strides, tuple((d.int(0, 1), d.int(0, 2)) for _ in x.shape), dilation

    return draw


def _bits(d: Draw) -> tuple[Any, ...]:
    target = d.one_of([t for t in dtypes.ALL if t != dtypes.bool_])
    return d.array((16 * d.int(0, 2),)), target


def _converted(d: Draw) -> tuple[Any, ...]:
    target = d.one_of((*dtypes.ALL, *dtypes.FLOAT8[:2]))
    unsigned = target.kind == "u" and target.itemsize > 2  # what a negative float becomes differs by machine
    return d.array(low=0 if unsigned else -300, high=300), target


ELEMENTWISE = {
    name: Case(
        of(kinds),
        elementwise.arguments(name),
        elementwise.reference(name),
        units=elementwise.UNITS.get(name, 8),
        wide=name != "nextafter",
    )
    for name, kinds in elementwise.ELEMENTWISE.items()
}
OTHERS = {
    "where": Case(LAYOUT, lambda d: ref.where_operands(d), np.where),
    "complex": Case(FLOATS, lambda d: tuple(map(d.array, d.broadcastable(2))), lambda x, y: x + 1j * y),
    "astype": Case(of("bifc"), _converted, ref.astype, wide=False),
    "bitcast": Case(of("ifc"), _bits, lambda x, dtype: x.view(dtype), wide=False),
    "integer_floor_divide": Case(of("i"), elementwise.arguments("integer_floor_divide"), np.floor_divide),
    "sum": Case(of("ifc"), _summed, ref.reduced(np.sum), units=32),
    "prod": Case(of("ifc"), _summed, ref.reduced(np.prod), units=32),
    "max": Case(of("bif"), _reduced, ref.extreme(np.max, dtypes.lowest)),
    "min": Case(of("bif"), _reduced, ref.extreme(np.min, dtypes.highest)),
    "any": Case(of("b"), _reduced, ref.reduced(np.any)),
    "all": Case(of("b"), _reduced, ref.reduced(np.all)),
    "argmax": Case(of("bif"), _position, ref.reduced(np.argmax)),
    "argmin": Case(of("bif"), _position, ref.reduced(np.argmin)),
    "cumsum": Case(of("ifc"), _scanned, np.cumsum, units=32),
    "cumprod": Case(of("ifc"), _scanned, np.cumprod, units=64),
    "cummax": Case(of("bif"), _scanned, np.maximum.accumulate),
    "cummin": Case(of("bif"), _scanned, np.minimum.accumulate),
    "full": Case(LAYOUT, lambda d: (d.shape(), ref.fill_value(d), d.dtype), np.full),
    "iota": Case(of("if"), lambda d: (d.int(0, 9), d.dtype), lambda n, dtype: np.arange(n)),
    "reshape": Case(LAYOUT, _reshaped, np.reshape),
    "permute_dims": Case(LAYOUT, lambda d: (x := d.array(), d.permutation(x.ndim)), np.transpose),
    "broadcast_to": Case(LAYOUT, _broadcast, np.broadcast_to),
    "concat": Case(LAYOUT, _concatenated, np.concatenate),
    "pad": Case(LAYOUT, _padded, ref.pad),
    "slice": Case(LAYOUT, _sliced, lambda x, *at: x[tuple(map(slice, *at))]),
    "slice_update": Case(LAYOUT, _slice_updated, ref.slice_update),
    "flip": Case(LAYOUT, lambda d: (x := d.array(), ref.some_axes(d, x)), np.flip),
    "dynamic_slice": Case(LAYOUT, _dynamic, lambda x, start, sizes: x[ref.window(x, start, sizes)]),
    "dynamic_update_slice": Case(LAYOUT, _dynamic_updated, ref.dynamic_update_slice),
    "gather": Case(LAYOUT, _gathered, lambda x, indices: x[tuple(indices)]),
    "scatter set": Case(LAYOUT, _scattered("set"), ref.scatter),
    "scatter add": Case(of("ifc"), _scattered("add"), ref.scatter, units=32),
    "scatter multiply": Case(of("ifc"), _scattered("multiply"), ref.scatter, units=64),
    "scatter min": Case(of("bif"), _scattered("min"), ref.scatter),
    "scatter max": Case(of("bif"), _scattered("max"), ref.scatter),
    "nonzero": Case(of("bif"), lambda d: (d.array(d.shape(1)),), np.nonzero),
    "sort": Case(of("bif"), _sorted, ref.sort),
    "searchsorted": Case(of("if"), _searched, ref.searchsorted),
    "dot_general": Case(of("bifc"), _contracted, ref.dot_general, units=128),
    "cholesky": Case(LAPACK, _definite, lambda x: np.linalg.cholesky(np.tril(x)), units=256),
    "qr": Case(LAPACK, lambda d: (_matrix(d), d.flag()), verify=ref.verify_qr),
    "svd": Case(LAPACK, lambda d: (_matrix(d), d.flag()), verify=ref.verify_svd),
    "svdvals": Case(LAPACK, lambda d: (_matrix(d),), lambda x: np.linalg.svd(x, compute_uv=False), units=256),
    "eigh": Case(LAPACK, lambda d: (_square(d), d.flag()), verify=ref.verify_eigh),
    "eig": Case(LAPACK, lambda d: (_square(d),), verify=ref.verify_eig),
    "lu": Case(LAPACK, lambda d: (_matrix(d),), verify=ref.verify_lu),
    "triangular_solve": Case(LAPACK, _triangular, ref.triangular_solve, units=512),
    "householder_product": Case(LAPACK, _reflectors, ref.householder_product, units=1024),
    "convolution": Case(of("ifc"), _convolved, ref.convolution, units=128),
    "reduce_window sum": Case(of("ifc"), _windowed("sum"), ref.reduce_window, units=64),
    "reduce_window max": Case(of("if"), _windowed("max"), ref.reduce_window),
    "reduce_window min": Case(of("if"), _windowed("min"), ref.reduce_window),
    "fft": Case(of("c"), _spectrum, lambda x, axis: np.fft.fft(x, axis=axis), units=64),
    "ifft": Case(of("c"), _spectrum, lambda x, axis: np.fft.ifft(x, axis=axis), units=64),
    "rfft": Case(FLOATS, _spectrum, lambda x, axis: np.fft.rfft(x, axis=axis), units=64),
    "irfft": Case(of("c"), _half_spectrum, lambda x, n, axis: np.fft.irfft(x, n, axis), units=64),
}
CASES = {name: case for name, case in {**ELEMENTWISE, **OTHERS}.items() if name not in COMPOSITES}
# Primitives about arrays, devices and control flow, which have tests of their own (test_arrays, test_control_flow).
ELSEWHERE = {
    *["is_array", "is_traced", "shape", "asarray", "to_numpy", "copy", "from_dlpack"],
    *["scope", "compile", "synchronize", "memory_stats", "device_name"],
    *["cond", "while_loop", "scan"],
}


def operation(name: str) -> str:
    """The primitive of a row: rows of one primitive with several modes are called "primitive mode"."""
    return name.partition(" ")[0]


def units(case: Case, dtype: np.dtype) -> float:
    return max(case.units, elementwise.COMPLEX_UNITS) if dtypes.is_complex(dtype) else case.units


__all__ = ["CASES", "ELSEWHERE", "Case", "operation", "units"]
