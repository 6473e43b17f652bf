"""Products, factorisations and Fourier transforms."""

from __future__ import annotations

import numpy as np
from tests.fuzz.kinds.array_api.drawing import Drawing, result, statement


@statement(1.5)
def multiplied(d: Drawing) -> str:
    n = d.array("fciu", lambda x: x.ndim > 0)
    x = d.arrays[n]
    last = x.shape[-1]
    kind = d.one("@", "matmul", "tensordot", "vecdot", "outer", "@")
    if kind == "outer":
        n = d.array("fciu", lambda y: y.ndim == 1 and y.size < 12)
        return result(d, f"xp.linalg.outer({n}, {d.new(d.same(d.arrays[n].dtype), (d.one(1, 2, 3),))})")
    if kind == "tensordot":
        return result(d, f"xp.tensordot({n}, {d.new(d.same(x.dtype), (last, d.one(1, 2)))}, axes=1)")
    if kind == "vecdot":
        return result(d, f"xp.vecdot({n}, {d.new(d.same(x.dtype), x.shape[d.rng.randint(0, x.ndim - 1) :])})")
    other = d.find(
        "fciu", lambda y: str(y.dtype) in d.dtypes_with(x.dtype) and 0 < y.ndim < 3 and y.shape[-2:][0] == last
    )
    other = other if other and d.maybe() else d.new(d.same(x.dtype), d.one((last,), (last, 2), (last, 3)))
    return result(d, f"{n} @ {other}" if kind == "@" else f"xp.matmul({n}, {other})")


SQUARE = [
    "det({n})", "inv({n})", "slogdet({n}).logabsdet", "matrix_power({n}, 2)", "trace({n}, offset={k})", "matrix_rank({n})",
    "cholesky(xp.matmul(xp.conj({n}).mT if False else {n}, {n}.mT) + 4 * xp.eye({size}, dtype={n}.dtype, device=D))",
    "eigvalsh({n} + {n}.mT)", "solve({n} + 9 * xp.eye({size}, dtype={n}.dtype, device=D), {n})",
]  # fmt: skip


ANY = ["matrix_norm({n})", "svdvals({n})", "pinv({n})", "vector_norm({n}, axis={axis}, ord={ord})", "matrix_norm({n}, ord=1)", "qr({n}).Q @ xp.linalg.qr({n}).R"]  # fmt: skip


@statement(0.8)
def factored(d: Drawing) -> str:
    n = d.array("f", lambda x: x.ndim > 1 and x.size < 50 and x.dtype.itemsize > 2 and bool(np.isfinite(x).all()))
    x = d.arrays[n]
    form = d.rng.choice(SQUARE if x.shape[-1] == x.shape[-2] else ANY)
    said = form.format(n=n, k=d.one(-1, 0, 1), size=x.shape[-1], axis=d.axes(x), ord=d.one("1", "2", "xp.inf", "0"))
    return result(d, f"xp.linalg.{said}")


@statement(0.4)
def transformed(d: Drawing) -> str:
    n = d.array("fc", lambda x: x.ndim > 0 and x.size > 0 and x.dtype.itemsize > 2)
    x = d.arrays[n]
    axis = d.rng.randrange(x.ndim)
    names = ["fftshift", "fft", "ifft"] + (["rfft", "ihfft"] if x.dtype.kind == "f" else ["irfft", "hfft"])
    name = d.rng.choice(names)
    if name == "fftshift":
        return result(d, f"xp.fft.fftshift({n}, axes={d.one(axis, None)})")
    size = f", n={d.one(2, 4)}" if d.maybe(0.3) else ""
    return result(d, f'xp.fft.{name}({n}, axis={axis}, norm="{d.one("backward", "ortho", "forward")}"{size})')
