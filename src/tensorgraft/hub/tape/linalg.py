"""Rules of products, factorisations and Fourier transforms.

The formulas of factorisations are those of the literature (Giles 2008; Seeger et al. 2017; Boeddeker et al. 2017), in
the convention of conjugated gradients: `_conjugated` goes from and to the transposed cotangents of the tape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray, Value, with_operators


def _dot_general(
    xp: Any,
    y: Array,
    g: Array,
    a: Array,
    b: Array,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    dtype: np.dtype | None = None,
) -> list[Any]:
    (ca, cb), (ba, bb) = contract, batch

    def transposed(x: Array, cx: Sequence[int], bx: Sequence[int], z: Array, cz: Any, bz: Any, first: bool) -> Array:
        """Return the cotangent of x, whose axes are bx, cx and its free ones; z is the other operand."""
        free_x = [i for i in range(len(xp.shape(x))) if i not in cx and i not in bx]
        free_z = [i for i in range(len(xp.shape(z))) if i not in cz and i not in bz]
        nb, nx, nz = len(bx), len(free_x), len(free_z)
        g_axes = range(nb + nx, nb + nx + nz) if first else range(nb, nb + nz)
        product = xp.dot_general(xp.astype(g, xp.dtype_of(z)) if xp.dtype_of(g) != xp.dtype_of(z) else g, z,
                                 (tuple(g_axes), tuple(free_z)), (tuple(range(nb)), tuple(bz)))  # fmt: skip
        # axes: batch, free of x, then z's contracted ones in the order in which z has them
        left = sorted(range(len(cz)), key=lambda k: cz[k])
        order = [0] * len(xp.shape(x))
        for k, axis in enumerate(bx):
            order[axis] = k
        for k, axis in enumerate(free_x):
            order[axis] = nb + k
        for k, z_axis in enumerate(left):
            order[cx[z_axis]] = nb + nx + k
        return xp.astype(xp.permute_dims(product, tuple(order)), xp.dtype_of(x))

    return [lambda: transposed(a, ca, ba, b, cb, bb, True), lambda: transposed(b, cb, bb, a, ca, ba, False)]


def _h(xp: Any, x: AnyArray) -> AnyArray:
    x = xp.matrix_transpose(x)
    return xp.conj(x) if dtypes.is_complex(x.dtype) else x


def _conj(xp: Any, x: Any) -> Any:
    return xp.conj(x) if x is not None and dtypes.is_complex(x.dtype) else x


def _conjugated(rule: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    @with_operators
    def wrapped(xp: Any, y: Any, g: Any, *args: Any, **kwargs: Any) -> list[Any]:
        g = [_conj(xp, item) for item in g] if isinstance(g, list) else _conj(xp, g)
        thunks = rule(xp, y, g, *args, **kwargs)
        return [None if t is None else (lambda t=t: _conj(xp, t())) for t in thunks]

    return wrapped


def _eye(xp: Any, x: AnyArray) -> AnyArray:
    n = x.shape[-1]
    return xp.eye(n, n, dtypes.bool_)


def _zero(xp: Any, x: AnyArray) -> AnyArray:
    return xp.full((), 0, xp.dtype_of(x))


def _diagonal_only(xp: Any, x: AnyArray) -> AnyArray:
    return xp.where(_eye(xp, x), x, _zero(xp, x))


def _as_diagonal(xp: Any, v: AnyArray, like: AnyArray) -> AnyArray:
    """Return (..., n) as diagonal matrices (..., n, n), in the dtype of `like`."""
    v = xp.astype(v, like.dtype)
    return xp.where(_eye(xp, like), xp.expand_dims(v, -1), _zero(xp, like))


def _differences(xp: Any, v: AnyArray) -> AnyArray:
    """Compute v[j] - v[i], ones on the diagonal."""
    d = xp.expand_dims(v, -2) - xp.expand_dims(v, -1)
    return xp.where(_eye(xp, d), xp.full((), 1, d.dtype), d)


def _cholesky(xp: Any, y: Value, g: Value, x: Value) -> list[Any]:
    def pull() -> Value:
        inner = xp.tril(_h(xp, y) @ g)
        inner = inner - _diagonal_only(xp, inner) * 0.5
        right = xp.triangular_solve(y, inner, lower=True, left=False)
        dx = xp.triangular_solve(y, right, lower=True, adjoint=True)
        return (dx + _h(xp, dx)) * 0.5

    return [pull]


def _triangular_solve(
    xp: Any,
    y: Value,
    g: Value,
    a: Value,
    b: Value,
    lower: bool,
    left: bool = True,
    transpose: bool = False,
    adjoint: bool = False,
    unit_diagonal: bool = False,
) -> list[Any]:
    def solved() -> Value:
        def solve(v: Value, **options: bool) -> Value:
            return xp.triangular_solve(a, v, lower=lower, left=left, unit_diagonal=unit_diagonal, **options)

        if adjoint:
            return solve(g)
        if transpose:
            return _conj(xp, solve(_conj(xp, g)))
        return solve(g, adjoint=True)

    def matrix() -> Value:
        gb = solved()
        dy = gb @ _h(xp, y) if left else _h(xp, y) @ gb
        if adjoint:
            dy = _h(xp, dy)
        elif transpose:
            dy = xp.matrix_transpose(dy)
        offset = int(unit_diagonal)
        triangle = xp.tril(dy, -offset) if lower else xp.triu(dy, offset)
        return -triangle

    return [matrix, solved]


def _qr(xp: Any, y: Any, g: Any, x: Value, full: bool = False) -> list[Any]:
    q, r = y
    m, n = x.shape[-2:]
    if m < n or (full and m != n):
        raise NotImplementedError(
            "qr is differentiable only for matrices with at most as many columns as rows, without full=True"
        )

    def pull() -> Value:
        gq, gr = (xp.zeros_like(v) if c is None else c for v, c in zip(y, g, strict=True))
        inner = xp.triu(gr @ _h(xp, r) - _h(xp, q) @ gq)
        symmetrised = inner + _h(xp, inner)
        symmetrised = symmetrised - _diagonal_only(xp, symmetrised) * 0.5
        return xp.triangular_solve(r, gq + q @ symmetrised, lower=False, left=False, adjoint=True)

    return [pull]


def _eigh(xp: Any, y: Any, g: Any, x: Value, lower: bool = True) -> list[Any]:
    values, vectors = y

    def pull() -> Value:
        gl, gv = g
        inner = _zero(xp, vectors) if gl is None else _as_diagonal(xp, gl, vectors)
        if gv is not None:
            part = (_h(xp, vectors) @ gv) / xp.astype(_differences(xp, values), vectors.dtype)
            inner = inner + xp.where(_eye(xp, vectors), _zero(xp, vectors), part)
        dx = vectors @ inner @ _h(xp, vectors)
        return (dx + _h(xp, dx)) * 0.5

    return [pull]


def _svd(xp: Any, y: Any, g: Any, x: Value, full: bool = False) -> list[Any]:
    u, s, vh = y
    m, n = x.shape[-2:]
    if full and m != n:
        raise NotImplementedError("svd is differentiable only without full=True")

    def pull() -> Value:
        gu, gs, gvh = g
        dtype = u.dtype
        sigma = xp.astype(s, dtype)
        inner = _as_diagonal(xp, xp.zeros_like(s) if gs is None else gs, vh @ _h(xp, vh))
        square = s * s
        gaps = xp.astype(_differences(xp, square), dtype)
        diagonal = xp.zeros_like(inner)

        def skew(a: Value, b: Value) -> Value:
            product = _h(xp, a) @ b
            return product - _h(xp, product)

        def off_diagonal(k: Value) -> Value:
            return xp.where(_eye(xp, k), _zero(xp, k), k) / gaps

        if gu is not None:
            k = skew(u, gu)
            inner = inner + off_diagonal(k) * xp.expand_dims(sigma, -2)
            diagonal = diagonal + _diagonal_only(xp, k)
        if gvh is not None:
            k = skew(_h(xp, vh), _h(xp, gvh))
            inner = inner + xp.expand_dims(sigma, -1) * off_diagonal(k)
        if dtypes.is_complex(dtype):
            inner = inner + diagonal / (xp.expand_dims(sigma, -2) * 2)
        dx = u @ inner @ vh
        if gu is not None and m > n:
            outside = gu - u @ (_h(xp, u) @ gu)
            dx = dx + (outside / xp.expand_dims(sigma, -2)) @ vh
        if gvh is not None and n > m:
            outside = gvh - gvh @ _h(xp, vh) @ vh
            dx = dx + u @ (outside / xp.expand_dims(sigma, -1))
        return dx

    return [pull]


def _svdvals(xp: Any, y: Value, g: Value, x: Value) -> list[Any]:
    def pull() -> Value:
        u, _, vh = xp.svd(x)
        return (u * xp.expand_dims(xp.astype(g, u.dtype), -2)) @ vh

    return [pull]


def _eig(xp: Any, y: Any, g: Any, x: Value) -> list[Any]:
    values, vectors = y

    def pull() -> Value:
        gl, gv = g
        inner = xp.zeros_like(vectors)
        vh = _h(xp, vectors)
        if gv is not None:
            part = vh @ gv
            real = xp.diagonal(part)
            real = xp.complex(xp.real(real), xp.zeros_like(xp.real(real)))
            part = part - (vh @ vectors) * xp.expand_dims(real, -2)
            part = part / xp.conj(_differences(xp, values))
            inner = xp.where(_eye(xp, part), _zero(xp, part), part)
        if gl is not None:
            inner = inner + _as_diagonal(xp, gl, vectors)
        dx = xp.solve(vh, inner @ vh)
        return dx if dtypes.is_complex(x.dtype) else xp.real(dx)

    return [pull]


def _lu(xp: Any, y: Any, g: Any, x: Array) -> list[Any]:
    packed, _, permutation = y
    m, n = x.shape[-2:]
    if m != n:
        raise NotImplementedError("lu is differentiable only for square matrices")

    def pull() -> Array:
        d_lu = g[0]
        lower = xp.tril(packed, -1) + xp.astype(_eye(xp, packed), packed.dtype)
        upper = xp.triu(packed)
        inner = xp.tril(_h(xp, lower) @ xp.tril(d_lu, -1), -1) + xp.triu(xp.triu(d_lu) @ _h(xp, upper))
        inner = xp.triangular_solve(upper, inner, lower=False, left=False, adjoint=True)
        inner = xp.triangular_solve(lower, inner, lower=True, adjoint=True, unit_diagonal=True)
        rows = xp.expand_dims(xp.inverse_permutation(permutation), -1)
        return xp.take_along_axis(inner, xp.broadcast_to(rows, inner.shape), -2)

    return [pull]


def _rfft(xp: Any, y: Array, g: Array, x: Array, axis: int) -> list[Any]:
    def pull() -> Array:
        n, half = xp.shape(x)[axis], xp.shape(g)[axis]
        at = axis % len(xp.shape(x))
        config = [(0, n - half if a == at else 0, 0) for a in range(len(xp.shape(x)))]
        return xp.real(xp.fft(xp.pad(g, _zero(xp, g), config), axis=axis))

    return [pull]


def _irfft(xp: Any, y: Array, g: Array, x: Array, n: int, axis: int) -> list[Any]:
    def pull() -> Array:
        at = axis % len(xp.shape(x))
        half = n // 2 + 1
        weight = np.full(half, 2.0)
        weight[0] = 1
        if n % 2 == 0:
            weight[-1] = 1
        dtype = dtypes.complex_dtype(xp.dtype_of(g))
        scale = xp.astype(xp.asarray(weight / n), dtype)
        scale = xp.reshape(scale, tuple(half if a == at else 1 for a in range(len(xp.shape(g)))))
        dx = xp.multiply(xp.conj(xp.rfft(g, axis=axis)), scale)
        x_count = xp.shape(x)[at]  # irfft cuts or fills up its operand
        config = [(0, x_count - half if a == at else 0, 0) for a in range(len(xp.shape(g)))]
        return dx if x_count == half else xp.pad(dx, _zero(xp, dx), config)

    return [pull]


_FACTORISATIONS: dict[str, Callable[..., list[Any]]] = {
    "cholesky": _cholesky,
    "triangular_solve": _triangular_solve,
    "qr": _qr,
    "eigh": _eigh,
    "svd": _svd,
    "svdvals": _svdvals,
    "eig": _eig,
    "lu": _lu,
}
RULES: dict[str, Callable[..., Any]] = {
    "dot_general": _dot_general,
    **{name: _conjugated(rule) for name, rule in _FACTORISATIONS.items()},
    "fft": lambda xp, y, g, x, axis: [lambda: xp.fft(g, axis=axis)],
    "ifft": lambda xp, y, g, x, axis: [lambda: xp.ifft(g, axis=axis)],
    "rfft": _rfft,
    "irfft": _irfft,
}
