"""Functions of JAX, with control flow, derivatives and batches, grafted onto other frameworks; the reference is JAX.

Statements are drawn on tracers, which cost no compilation, and played as one function of the program's data. XLA compiles
it without optimisations (100 ms; primitive by primitive would cost four times as much); data is moved by a few eps in
further runs, and what then moves is compared only so far.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tests.fuzz.kinds.array_api import Retry, Seen, compared
from tests.fuzz.program import REFERENCE, Kind, Outcome, Program
from tests.fuzz.rounding import Rounding

import tensorgraft as tg
from tensorgraft.frontends.jax.evaluate import plan
from tensorgraft.hub import registry
from tensorgraft.hub.backend import Backend

SHAPES = [(), (2,), (3,), (3,), (2, 3), (2, 3), (3, 3), (3, 2), (1, 3), (2, 2, 3), (0,), (4,), (2, 0)]
DTYPES = (
    ["float32"] * 8 + ["int32"] * 3 + ["bool", "uint8", "int8", "uint32", "bfloat16", "float16", "complex64", "int16"]
)
INPUT = re.compile(r"(v\d+) = (data|number)\(")


def data(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kind = jnp.dtype(dtype).kind
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind in "iu":
        return rng.integers(0 if kind == "u" else -5, 6, shape).astype(dtype)
    values = rng.integers(-16, 17, shape) / 8 + 0.03125
    if kind == "c":
        values = values + 1j * rng.integers(-16, 17, shape) / 8
    return np.asarray(values).astype(jnp.dtype(dtype))


def number(value: Any) -> Any:
    return value


@jax.custom_jvp
def clipped(x: Any) -> Any:
    return jnp.clip(x, -1, 1)


clipped.defjvp(lambda primals, tangents: (clipped(primals[0]), 2 * tangents[0]))


@jax.custom_vjp
def scaled(x: Any) -> Any:
    return 3 * x


scaled.defvjp(lambda x: (3 * x, x), lambda x, g: (g * jnp.cos(x),))

MODULES = {"jax": jax, "jnp": jnp, "lax": lax, "np": np, "clipped": clipped, "scaled": scaled}


class Drawing:
    def __init__(self, rng: random.Random, names: dict[str, Any]) -> None:
        self.rng, self.inner = rng, 0
        self.arrays = {n: x for n, x in names.items() if n[0] == "v" and n[1:].isdigit() and hasattr(x, "dtype")}
        taken = [int(n[1:]) for n in names if n[0] in "vp" and n[1:].isdigit()]
        self.next = max(taken, default=-1) + 1

    def one(self, *items: Any) -> Any:
        return self.rng.choice(items)

    def maybe(self, p: float = 0.5) -> bool:
        return self.rng.random() < p

    def name(self) -> str:
        self.inner += 1
        return f"x{self.inner}"

    def new(self, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> str:
        dtype = dtype or self.rng.choice(DTYPES)
        shape = self.rng.choice(SHAPES) if shape is None else shape
        return f'data("{dtype}", {shape}, {self.rng.randrange(10**5)})'

    def find(self, kinds: str = "fiubcV", where: Callable[[Any], bool] = lambda x: True) -> str:
        fit = [n for n, x in self.arrays.items() if kind(x) in kinds and where(x) and x.size <= 100 and x.ndim < 5]
        if not fit:
            raise Retry
        return fit[-1] if self.maybe(0.3) else self.rng.choice(fit)

    def axis(self, x: Any) -> int:
        if not x.ndim:
            raise Retry
        return self.rng.randrange(-x.ndim, x.ndim)

    def num(self, k: str) -> str:
        if k == "b":
            return self.one("True", "False")
        if k in "iu":
            return str(self.one(1, 2, 3, 5) if k == "u" else self.one(-2, 1, 2, 3))
        return str(self.one(0.5, 2, -1.5, 1, 0.25)) if k != "c" else self.one("2", "0.5", "(0.5+1j)")

    # one value in, one of the same shape and dtype out: bodies of loops, branches, derivatives
    def body(self, a: str, x: Any, depth: int = 2) -> str:
        if depth <= 0 or self.maybe(0.12):
            return a if self.maybe(0.8) else f"({a} * {self.num(kind(x))})" if kind(x) != "b" else f"(~{a})"
        k = kind(x)
        sub = lambda: self.body(a, x, depth - 1)  # noqa: E731
        forms: list[Callable[[], str]] = []
        if k in "f":
            forms += [lambda: f"jnp.{self.one(*SMOOTH)}({sub()})"] * 3
            forms += [lambda: f"({sub()} {self.one('+', '-', '*')} {self.captured(a, x, sub)})"] * 3
            forms += [
                lambda: f"({sub()} / (1 + jnp.abs({sub()})))",
                lambda: f"jnp.where({sub()} > {self.num(k)}, {sub()}, {self.captured(a, x, sub)})",
                lambda: f"{self.one('jnp.maximum', 'jnp.minimum')}({sub()}, {self.captured(a, x, sub)})",
                lambda: f"{self.one('clipped', 'scaled', 'lax.stop_gradient', 'jax.nn.relu', 'jax.nn.gelu')}({sub()})",
                lambda: self.grad(a, x, sub),
            ]
        elif k in "iu":
            forms += [lambda: f"({sub()} {self.one('+', '-', '*', '&', '|', '^')} {self.captured(a, x, sub)})"] * 3
            forms += [
                lambda: f"jnp.where({sub()} > {self.num(k)}, {sub()}, {self.captured(a, x, sub)})",
                lambda: f"({sub()} {self.one('//', '%')} {self.one(2, 3)})",
                lambda: f"jnp.maximum({sub()}, {self.num(k)})",
            ]
        elif k == "b":
            forms += [lambda: f"({sub()} {self.one('&', '|', '^')} {self.captured(a, x, sub)})", lambda: f"(~{sub()})"]
        else:
            forms += [
                lambda: f"({sub()} {self.one('+', '-', '*')} {self.captured(a, x, sub)})",
                lambda: f"jnp.conj({sub()})",
            ]
        if x.ndim and k != "c":
            ax = self.axis(x)
            forms += [
                lambda: f"jnp.flip({sub()}, {ax})",
                lambda: f"jnp.roll({sub()}, {self.one(1, -1)}, {ax})",
            ]
            if k != "b":
                forms += [lambda: f"jnp.sort({sub()}, axis={ax})", lambda: self.at(sub(), x), lambda: self.at(sub(), x)]
            if k == "f":
                forms += [
                    lambda: f"jnp.cumsum({sub()}, axis={ax})",
                    lambda: f"jax.nn.softmax({sub()}, axis={ax})",
                    lambda: f"({sub()} - {sub()}.{self.one('mean', 'max', 'sum')}({ax}, keepdims=True))",
                ]
            if x.shape[0]:
                forms.append(lambda: self.mapped(sub, x, depth))
        forms += [
            lambda: self.cond(sub, x, depth),
            lambda: self.loop(sub, x, depth),
            lambda: self.called(sub, x, depth),
        ]
        return self.rng.choice(forms)()

    def captured(self, a: str, x: Any, sub: Callable[[], str]) -> str:
        fits = [n for n, y in self.arrays.items() if y.shape in (x.shape, ()) and y.dtype == x.dtype]
        if fits and self.maybe(0.4):
            return self.rng.choice(fits)
        return sub() if self.maybe(0.6) else self.num(kind(x))

    def at(self, target: str, x: Any) -> str:
        index = self.one("0", "-1", "::2", "1:", "...", f"jnp.array([{self.one(0, -1, 5)}])", "::-1")
        if index != "..." and not x.shape[0]:
            raise Retry
        name = self.one("set", "add", "multiply", "min", "max", "mul")
        return f"{target}.at[{index}].{name}({self.num(kind(x))})"

    def grad(self, a: str, x: Any, sub: Callable[[], str]) -> str:
        b = self.name()
        inside = self.body(b, x, 1)
        form = self.rng.choice(
            [
                "jax.grad(lambda {b}: jnp.sum({e}).astype({a}.dtype))({s})",
                "jax.jvp(lambda {b}: {e}, ({s},), ({a},))[1]",
                "jax.vjp(lambda {b}: {e}, {s})[1]({a})[0]",
                "jax.linearize(lambda {b}: {e}, {s})[1]({a})",
            ]
        )
        return form.format(b=b, e=inside, s=sub(), a=a)

    def mapped(self, sub: Callable[[], str], x: Any, depth: int) -> str:
        b = self.name()
        row = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
        how = self.one("jax.vmap({f})({s})", "jax.vmap({f})({s})", "lax.map({f}, {s})")
        return str(how).format(f=f"lambda {b}: {self.body(b, row, depth - 1)}", s=sub())

    def cond(self, sub: Callable[[], str], x: Any, depth: int) -> str:
        b, c = self.name(), self.name()
        return f"lax.cond(jnp.sum({sub()}{'.real' if kind(x) == 'c' else ''}) > 0, lambda {b}: {self.body(b, x, depth - 1)}, lambda {c}: {self.body(c, x, depth - 1)}, {sub()})"

    def loop(self, sub: Callable[[], str], x: Any, depth: int) -> str:
        b, i = self.name(), self.name()
        n = self.one(0, 1, 2, 3)
        return f"lax.fori_loop(0, {n}, lambda {i}, {b}: {self.body(b, x, depth - 1)}, {sub()})"

    def called(self, sub: Callable[[], str], x: Any, depth: int) -> str:
        b = self.name()
        return f"{self.one('jax.jit', 'jax.checkpoint')}(lambda {b}: {self.body(b, x, depth - 1)})({sub()})"


SMOOTH = ["sin", "cos", "tanh", "arctan", "square", "abs", "sinh", "exp2", "cbrt", "expm1", "floor", "sign", "round"]


def kind(x: Any) -> str:
    return "f" if jnp.issubdtype(x.dtype, jnp.floating) else np.dtype(x.dtype).kind


Statement = Callable[[Drawing], str]
STATEMENTS: list[tuple[float, Statement]] = []


def statement(weight: float) -> Callable[[Statement], Statement]:
    def noted(f: Statement) -> Statement:
        STATEMENTS.append((weight, f))
        return f

    return noted


def templates(kinds: str, where: Callable[[Any], bool], *forms: str) -> Statement:
    """`n`, of these kinds, in a form with an axis `a`, a number `c`, a new name `b`."""

    def drawn(d: Drawing) -> str:
        n = d.find(kinds, where)
        x = d.arrays[n]
        form = d.rng.choice(forms)
        said = {
            "n": n,
            "c": d.num(kind(x)),
            "a": d.axis(x) if "{a}" in form else 0,
            "k": d.one(1, 2),
            "t": d.rng.choice(DTYPES),
            "s": d.rng.randrange(1000),
        }
        if "{m}" in form:
            said["m"] = d.find(where=lambda y: y.dtype == x.dtype and y.shape == x.shape)
        return form.format(**said)

    return drawn


ANY = lambda x: True  # noqa: E731
FULL = lambda x: x.ndim > 0 and x.size > 0  # noqa: E731
MATRIX = lambda x: x.ndim == 2 and x.size > 0  # noqa: E731
SQUARE = lambda x: x.ndim == 2 and x.shape[0] == x.shape[1] and x.size > 0 and x.dtype == np.float32  # noqa: E731

UNARY = templates(
    "f", ANY,
    *(f"jnp.{f}({{n}})" for f in ["sin", "cos", "tan", "tanh", "exp", "log1p", "sqrt", "arctan", "arcsinh", "floor", "ceil", "rint", "square", "sign", "abs", "expm1", "exp2", "cbrt", "isfinite", "trunc", "reciprocal", "sinc", "deg2rad", "i0", "spacing", "frexp"] if f not in ("frexp", "spacing")),
    *(f"jax.nn.{f}({{n}})" for f in ["relu", "gelu", "sigmoid", "softplus", "silu", "elu", "leaky_relu", "log_sigmoid", "relu6", "celu", "selu", "hard_tanh", "soft_sign", "mish"]),
    *(f"lax.{f}({{n}})" for f in ["erf", "erf_inv", "lgamma", "digamma", "rsqrt", "logistic", "is_finite", "neg"]),
    "jax.scipy.special.erfc({n})", "jax.scipy.special.gammaln({n})", "jax.scipy.special.xlogy({n}, {n})", "lax.reduce_precision({n}, 5, 7)", "jnp.nan_to_num({n} / 0)", "jnp.frexp({n})[0]", "jnp.modf({n})[0]",
)  # fmt: skip
INTEGERS = templates(
    "iu", ANY, "{n} + {c}", "{n} // {c}", "{n} % {c}", "{n} << {k}", "{n} >> {k}", "~{n}", "lax.population_count({n})", "lax.clz({n})", "jnp.abs({n})", "-{n}", "lax.shift_right_logical({n}, {n}.dtype.type({k}))", "{n} ** 2", "{n} / {c}", "jnp.sqrt({n})", "{n} // ({n} | 1)", "{n} % ({n} | 1)", "jnp.bitwise_count({n})", "jnp.gcd({n}, {n}.dtype.type(6))", "lax.rem({n}, {n} | 1)", "lax.div({n}, {n} | 1)", "jnp.unpackbits({n}.astype(jnp.uint8), axis=None)", "{n} > {c}",
)  # fmt: skip
CONVERTED = templates("fiubc", lambda x: True, "{n}.astype(jnp.{t})", "lax.convert_element_type({n}, jnp.{t})", "jnp.asarray({n}, jnp.{t})", "({n} * 1).astype(jnp.{t})", "{n}.view({n}.dtype)")  # fmt: skip
BITS = templates("iu", lambda x: np.dtype(x.dtype).itemsize in (1, 2, 4), "lax.bitcast_convert_type(jnp.nan_to_num({n}), jnp.uint8)", "lax.bitcast_convert_type(jnp.nan_to_num({n}), {{1: jnp.int8, 2: jnp.int16, 4: jnp.int32}}[{n}.dtype.itemsize])")  # fmt: skip
REDUCED = templates(
    "fiu", FULL, *(f"jnp.{f}({{n}}, axis={{a}})" for f in ["sum", "max", "min", "prod", "argmax", "argmin", "cumsum", "cumprod", "mean", "var", "std", "median", "ptp", "sort", "argsort", "any", "all", "flip", "count_nonzero", "nansum", "nanmax", "nanmean", "cummax"] if hasattr(jnp, f)),
    "{n}.sum()", "{n}.max(keepdims=True)", "jnp.mean({n}, {a}, keepdims=True)", "jax.nn.logsumexp({n}, axis={a})", "jax.nn.softmax({n}, {a})", "jax.nn.log_softmax({n}, {a})", "jnp.linalg.norm({n}.ravel())", "jnp.quantile({n}, 0.3, axis={a})",
    "lax.cummax({n}, axis={n}.ndim - 1)", "lax.cumlogsumexp({n} * 1.0, axis=0)", "lax.top_k({n}, 1)[1]", "lax.argmax({n}, 0, jnp.int32)", "lax.reduce({n}, {n}.dtype.type(0), lax.add, (0,))", "lax.reduce_max({n}, (0,))", "jnp.average({n}, axis={a})", "lax.associative_scan(jnp.add, {n}, axis={a})", "lax.associative_scan(jnp.multiply, {n}, axis={a}, reverse=True)", "jnp.diff({n}, axis={a})", "jnp.trapezoid({n}, axis={a})", "jnp.digitize({n}.ravel(), jnp.array([0, 1], {n}.dtype))", "jnp.argpartition({n}, 0, axis={a})[..., :1] * 0", "jax.nn.standardize({n}, axis={a})", "jnp.unique({n}, size=3)", "jnp.nonzero({n}, size=3)[0]", "jnp.bincount(jnp.abs({n}).astype(int).ravel(), length=4)", "jnp.histogram({n}, bins=3, range=(-2, 2))[0]", "jnp.lexsort(({n},), axis={a})",
)  # fmt: skip
MOVED = templates(
    "fiubc", FULL, "{n}.T", "{n}.ravel()", "jnp.moveaxis({n}, {a}, 0)", "jnp.expand_dims({n}, {a})", "jnp.flip({n}, {a})", "jnp.roll({n}, {k}, {a})", "jnp.repeat({n}, 2, {a})", "jnp.tile({n}, 2)", "jnp.concatenate([{n}, {n}], {a})", "jnp.stack([{n}, {m}], {a})", "{n}[..., 0]", "{n}[::-1]", "{n}[-1]", "{n}[..., None]", "{n}[:, None] if {n}.ndim > 1 else {n}[None]", "{n}[jnp.array([0, -1, 1])]", "{n}[jnp.array([[0, 1], [5, -9]])]", "jnp.take({n}, jnp.array([0, 7]), axis={a})", 'jnp.take({n}, jnp.array([0, 7, -1]), axis={a}, mode="clip")', 'jnp.take({n}, jnp.array([0, 7]), axis={a}, mode="wrap")', "jnp.pad({n}, 1)", 'jnp.pad({n}, 1, mode="reflect") if min({n}.shape) > 1 else {n}', 'jnp.pad({n}, 1, mode="edge")', "lax.pad({n}, {n}.dtype.type(1), [(1, -1, 1)] * {n}.ndim)", "lax.dynamic_slice({n}, (5,) * {n}.ndim, (1,) * {n}.ndim)", "lax.dynamic_slice_in_dim({n}, {k}, 1, {a})", "lax.dynamic_update_slice({n}, {n}[:1], ({k},) + (0,) * ({n}.ndim - 1))", "lax.dynamic_index_in_dim({n}, {k}, {a}, keepdims=False)", "jnp.where({n} == {m}, {n}, {m})", "jnp.broadcast_to({n}, (2, *{n}.shape))", "lax.rev({n}, (0,))", "lax.squeeze({n}[None], (0,))", "lax.slice_in_dim({n}, 0, None, 2, {a})", "jnp.atleast_2d({n})", "jnp.swapaxes({n}, 0, -1)", "lax.expand_dims({n}, (0, 2))", "{n}.at[jnp.array([0, 0])].add({c})", "{n}.at[jnp.array([7, 0])].set({c})", '{n}.at[jnp.array([7])].set({c}, mode="clip")', "{n}.at[0].set({m}[0])", "{n}.at[..., 0].multiply({c})", '{n}.at[jnp.array([9])].get(mode="fill", fill_value=0)', "{n}.at[1:].set({m}[1:])", "{n}.at[jnp.array([0])].apply(lambda q: q)", "jnp.select([{n} == {m}, {n} != {m}], [{n}, {m}])", "jnp.take_along_axis({n}, jnp.argsort({m}, axis={a}), {a})", "jnp.split({n}, 1, {a})[0]", "jnp.array_split({n}, 2, {a})[1]", "jnp.delete({n}, 0, {a})", "jnp.insert({n}, 0, {c}, {a})", "jnp.append({n}, {m}, {a})", "jnp.rot90({n}) if {n}.ndim > 1 else {n}", "jnp.apply_along_axis(lambda q: q[::-1], {a}, {n})", "jnp.meshgrid({n}.ravel()[:2], {n}.ravel()[:3])[1]",
)  # fmt: skip
PRODUCTS = templates(
    "fic", FULL, "{n} @ {m}.T", "jnp.dot({n}, {n}.T)", 'jnp.einsum("...i,...i->...", {n}, {m})', 'jnp.einsum("i...,j...->ij", {n}, {m})', "jnp.vdot({n}, {m})", "jnp.outer({n}, {m})", "jnp.inner({n}, {m})", "jnp.tensordot({n}, {m}, ((0,), (0,)))", "lax.dot_general({n}, {m}, ((({n}.ndim - 1,), ({n}.ndim - 1,)), ((), ())))", "jnp.kron({n}.ravel(), {m}.ravel())", "jnp.convolve({n}.ravel(), {m}.ravel()[:2])", "lax.dot_general({n}, {m}, (((), ()), ((0,), (0,))))", "jnp.cross({n}[..., :2], {m}[..., :2]) if {n}.shape[-1] > 1 else {n}", "lax.dot_general({n}, {m}, ((({n}.ndim - 1,), ({n}.ndim - 1,)), ((), ())), preferred_element_type={n}.dtype)",
)  # fmt: skip
MATRICES = templates(
    "fi", MATRIX, "jnp.trace({n})", "jnp.tril({n}, -1)", "jnp.triu({n}, 1)", "jnp.diag({n})", "jnp.diagonal({n}, 1)", "lax.reduce_window({n}, {n}.dtype.type(0), lax.add, (2, 1), (1, 1), 'VALID')", "lax.reduce_window({n}, {n}.dtype.type(-128), lax.max, (2, 2), (1, 2), 'SAME')", "lax.conv_general_dilated(({n} * 1.0)[None, None], ({m} * 1.0)[None, None, :2, :2], (1, 1), 'SAME')", "lax.conv_general_dilated(({n} * 1.0)[None], ({m} * 1.0)[None, :, :1], (1,), [(1, 1)], lhs_dilation=(2,))", "jnp.cov({n})", "jnp.fill_diagonal({n}, {c}, inplace=False)", "jnp.matrix_transpose({n})", "jnp.block([[{n}, {m}], [{m}, {n}]])", "jax.ops.segment_sum({n}, jnp.zeros({n}.shape[0], int), 2)", "jax.ops.segment_max({n}, jnp.arange({n}.shape[0]), 4)", "jnp.searchsorted(jnp.sort({n}[0]), {m}[0])", "jnp.isin({n}, {m})", "jax.nn.one_hot({n}[:, 0].astype(int), 3)",
)  # fmt: skip
LINALG = templates(
    "f", SQUARE, "jnp.linalg.det({n})", "jnp.linalg.inv({n} + 5 * jnp.eye({n}.shape[0]))", "jnp.linalg.solve({n} + 5 * jnp.eye({n}.shape[0]), {m})", "jnp.linalg.cholesky({n} @ {n}.T + jnp.eye({n}.shape[0]))", "jnp.linalg.slogdet({n})[1]", "jnp.linalg.eigvalsh({n} + {n}.T)", "jnp.linalg.svd({n}, compute_uv=False)", "jnp.linalg.matrix_power({n}, 3)", "jax.scipy.linalg.solve_triangular({n} + 4 * jnp.eye({n}.shape[0]), {m}, lower=True)", "jax.scipy.linalg.expm({n} / 4)", "jnp.abs(jnp.linalg.qr({n})[1])", "jax.grad(lambda q: jnp.linalg.slogdet(q @ q.T + jnp.eye(q.shape[0]))[1])({n})", "jnp.linalg.pinv({n} + 4 * jnp.eye({n}.shape[0]))", "lax.linalg.lu({n} + 5 * jnp.eye({n}.shape[0]))[0]", "jax.scipy.linalg.cho_solve((jnp.linalg.cholesky({n} @ {n}.T + jnp.eye({n}.shape[0])), True), {m})", "jnp.fft.fft({n})", "jnp.fft.irfft(jnp.fft.rfft({n}))", "jnp.abs(jnp.fft.fft2({n}))",
)  # fmt: skip
COMPLEX = templates("c", ANY, "jnp.abs({n})", "jnp.angle({n})", "{n}.real", "{n}.imag", "jnp.conj({n})", "jnp.exp({n})", "{n} * {c}", "jnp.sin({n})", "jnp.sum({n})", "lax.complex({n}.real, {n}.imag)", "jnp.sqrt({n})", "{n} == {c}", "jnp.square({n})")  # fmt: skip
RANDOM = templates(
    "fiub", ANY, *(f"jax.random.{f}(jax.random.key({{s}}), {{n}}.shape)" for f in ["uniform", "normal", "exponential", "bernoulli", "gumbel", "laplace", "rademacher", "logistic", "cauchy"]),
    "jax.random.randint(jax.random.key({s}), (3,), 0, 9)", "jax.random.permutation(jax.random.key({s}), 4)", "jax.random.bits(jax.random.fold_in(jax.random.key({s}), {k}), (2,))", "jax.random.choice(jax.random.PRNGKey({s}), 5, (3,))", "jax.random.key_data(jax.random.split(jax.random.key({s}), 2))", "jax.random.categorical(jax.random.key({s}), jnp.zeros((2, 3)))", "jax.random.truncated_normal(jax.random.key({s}), -1, 1, (3,))", "jax.vmap(lambda k: jax.random.uniform(k))(jax.random.split(jax.random.key({s}), 3))", "jax.random.gamma(jax.random.key({s}), 2.0, (2,))",
)  # fmt: skip
TREES = templates(
    "fi", FULL, "lax.scan(lambda c, r: (c + r, c * r), {n}[0], {n})[1]", "lax.scan(lambda c, r: ({{'s': c['s'] + jnp.sum(r), 'n': c['n'] + 1}}, None), {{'s': jnp.zeros((), {n}.dtype), 'n': 0}}, {n})[0]['s']", "lax.scan(lambda c, r: (c * {k}, (c, r)), {n}[0], {n}, reverse=True)[1][0]", "lax.while_loop(lambda s: s[1] < 3, lambda s: (s[0] + s[1].astype({n}.dtype), s[1] + 1), ({n}, 0))[0]", "lax.scan(lambda c, _: (c + 1, c), 0, length=3)[1]", "lax.switch({k}, [lambda q: q + 1, lambda q: q * 2, lambda q: -q], {n})", "lax.switch(jnp.argmax({n}.ravel()), [lambda q: q + 1, lambda q: q * 2], {n})", "jax.tree.map(lambda p, q: p + q, {{'a': {n}, 'b': [{m}, None]}}, {{'a': {m}, 'b': [{n}, None]}})['b'][0]", "jax.vmap(lambda r, q: jnp.dot(r.ravel(), q.ravel()), in_axes=(0, None))({n}, {m})", "jax.vmap(lambda r: r - lax.psum(r, 'i'), axis_name='i')({n})", "jax.vmap(lambda r: lax.pmax(r, 'i') + lax.axis_index('i').astype(r.dtype), axis_name='i')({n})", "jax.vmap(lambda r: lax.all_gather(r, 'i'), axis_name='i')({n})", "jax.vmap(lambda r: lax.ppermute(r, 'i', [(0, 1), (1, 0)]) if {n}.shape[0] == 2 else r, axis_name='i')({n})", "jax.vmap(lambda r: lax.cond(jnp.sum(r) > 0, lambda q: q * 2, lambda q: -q, r))({n})", "jax.vmap(lambda r: lax.while_loop(lambda c: jnp.sum(jnp.abs(c)) < 9, lambda c: jnp.abs(c) * 2 + 1, r))({n})", "jax.vmap(lambda r: lax.dynamic_slice_in_dim(jnp.arange(6), jnp.argmax(r.ravel()), 2))({n})", "jax.vmap(lambda r: jnp.sort(r.ravel())[0], out_axes=0)({n})", "jax.vmap(jnp.add, in_axes=({a}, None), out_axes=-1)({n}, {c})", "lax.scan(lambda c, r: lax.cond(jnp.sum(r) > 0, lambda: (c + 1, r), lambda: (c - 1, -r)), 0, {n})[0]", "jax.vmap(lambda r: lax.scan(lambda c, q: (c + q, c), r * 0, jnp.stack([r, r]))[1])({n})", "lax.fori_loop(0, {n}.shape[0], lambda i, s: s.at[i].add({n}[i]), {n} * 2)", "lax.map(lambda r: r * 2, {n}, batch_size=2)",
)  # fmt: skip
DERIVATIVES = templates(
    "f", FULL, "jax.jacfwd(lambda q: jnp.sin(q) * q[::-1])({n})", "jax.jacrev(lambda q: jnp.cumsum(q * q, 0))({n})", "jax.hessian(lambda q: jnp.sum(q**3))({n})", "jax.value_and_grad(lambda q: jnp.sum(jnp.tanh(q) * {c}))({n})[1]", "jax.grad(lambda q: lax.scan(lambda c, r: (jnp.tanh(c + r), c), q[0] * 0, q)[0].sum())({n})", "jax.grad(lambda q: jnp.max(q) + jnp.sum(jnp.sort(q, axis=0)[0]))({n})", "jax.grad(lambda q: jnp.sum(q[jnp.array([0, 0, -1])] ** 2))({n})", "jax.grad(lambda q: jnp.sum(q.at[0].set(1) * q))({n})", "jax.vmap(jax.grad(lambda q: jnp.sum(jnp.exp(-q * q))))({n})", "jax.jvp(lambda q: lax.while_loop(lambda s: s[1] < 3, lambda s: (jnp.sin(s[0]), s[1] + 1), (q, 0))[0], ({n},), ({m},))[1]", "jax.grad(lambda q: jax.grad(lambda w: jnp.sum(jnp.sin(w) * q))(q).sum())({n})", "jax.grad(lambda q: jnp.sum(clipped(q) * scaled(q)))({n})", "jax.grad(lambda q: jnp.prod(q))({n})", "jax.grad(lambda q: jnp.linalg.norm(q.ravel()))({n})", "jax.grad(lambda q: jax.nn.logsumexp(q))({n})", "jax.grad(lambda q: jnp.sum(lax.cond(q.sum() > 0, jnp.sin, jnp.cos, q)))({n})", "jax.linear_transpose(lambda q: jnp.cumsum(2 * q, 0), {n})({n})[0]", "jax.grad(lambda q: jnp.sum(jax.checkpoint(lambda w: jnp.sin(jnp.sin(w)))(q)))({n})", "jax.vjp(lambda q: jnp.cumprod(q, 0), {n})[1]({m})[0]", "jax.grad(lambda q: jnp.var(q) + jnp.mean(q))({n})", "jax.grad(lambda q: (q @ q.T).sum())({n})", "jax.jvp(jax.grad(lambda q: jnp.sum(jnp.tanh(q))), ({n},), ({m},))[1]", "jax.grad(lambda q: jnp.sum(lax.associative_scan(jnp.multiply, q)))({n})", "jax.grad(lambda q: jnp.sum(lax.reduce_window(q, -jnp.inf, lax.max, (1,) * q.ndim, (1,) * q.ndim, 'VALID')))({n})", "jax.grad(lambda q: jnp.sum(jnp.where(q > 0, jnp.sqrt(q), 0.0)))({n})",
)  # fmt: skip

STATEMENTS += [(1.5, f) for f in (INTEGERS, CONVERTED, PRODUCTS, MATRICES)]
STATEMENTS += [(2.5, f) for f in (UNARY, REDUCED, DERIVATIVES, TREES)]
STATEMENTS += [(4.0, MOVED), (0.6, LINALG), (0.7, COMPLEX), (0.7, RANDOM), (0.5, BITS)]


@statement(2)
def created(d: Drawing) -> str:
    return d.new() if d.maybe(0.85) else f"number({d.one(0.5, 2, -3, 1.25, True)})"


@statement(5)
def nested(d: Drawing) -> str:
    n = d.find()
    return d.body(n, d.arrays[n], d.one(1, 2, 2, 3))


@statement(4)
def combined(d: Drawing) -> str:
    n = d.find("fiuc")
    x = d.arrays[n]
    m = d.find("fiubc", lambda y: broadcasts(x, y)) if d.maybe(0.7) else d.num(kind(x))
    if d.maybe(0.2) and kind(x) in "iu" and (m not in d.arrays or kind(d.arrays[m]) in "iu"):
        return f"{n} {d.one('//', '%')} ({m} | 1)"  # XLA's compiler divides constants on the host, and is killed by 0
    if d.maybe(0.7):
        return f"{n} {d.rng.choice(('+ - * / == < >= !=' if kind(x) in 'iu' else '+ - * / // % == < >= !=').split() if kind(x) != 'c' else ['+', '-', '*', '==', '!='])} {m}"
    return f"jnp.{d.one('maximum', 'minimum', 'arctan2', 'logaddexp', 'hypot', 'power', 'fmod' if kind(x) == 'f' else 'minimum', 'heaviside', 'nextafter', 'float_power', 'floor_divide' if kind(x) == 'f' else 'maximum')}({n}, {m})"


def broadcasts(x: Any, y: Any) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(x.shape, y.shape))) <= 100
    except ValueError:
        return False


class Jax(Kind):
    name = "jax"
    shares: ClassVar[dict[str, int]] = {"numpy": 1, "torch": 1, "tensorflow operations": 1, "tensorflow": 20}
    length = (4, 10)

    def names(self, subject: str) -> dict[str, Any]:
        made = lambda *args: jnp.asarray(data(*args))  # noqa: E731
        return {**MODULES, "data": made, "number": number}

    def statement(self, rng: random.Random, names: dict[str, Any]) -> str:
        d = Drawing(rng, names)
        if len(d.arrays) < 2:
            return f"v{d.next} = {d.new()}"
        while True:
            f = rng.choices([f for _, f in STATEMENTS], [w for w, _ in STATEMENTS])[0]
            try:
                return f"v{d.next} = {f(d)}"
            except Retry:
                continue

    def draw(self, seed: int) -> Program:
        drawn: list[Program] = []
        draw = super().draw

        def traced() -> int:
            drawn.append(draw(seed))
            return 0

        with jax.enable_x64(seed % 8 == 0):
            jax.make_jaxpr(traced)()
        program = drawn[0]
        if seed % 8 == 0:
            program = Program(self.name, ("x64 = True", *program.statements), seed)
        return program

    raising = 0.0
    shakes = 3

    def excuse(self, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
        if "JaxRuntimeError" in expected.raised.values():
            return "XLA refuses"
        if not self.differences(self.play(program, f"{REFERENCE} eagerly"), found, program):
            return "XLA's optimisations decide"
        exact, *others = self.by_other_roundings(program, 20)
        loose = Outcome(expected.raised)
        for n, leaves in expected.observed.items():
            moved = [slack(x, [o[n][i] for o in others]) for i, x in enumerate(exact[n])]
            loose.observed[n] = [Seen(seen.value, m) for seen, m in zip(leaves, moved, strict=True)]
        return None if self.differences(loose, found, program) else "rounding decides"

    def by_other_roundings(self, program: Program, times: int) -> list[dict[str, list[np.ndarray]]]:
        """As NumPy rounds, and so many times otherwise."""
        with jax.enable_x64(program.statements[0] == "x64 = True"):
            f, given = self.function(program)
            backends = [registry.get("numpy"), *map(Rounding, range(times))]
            return [self.by_operations(f, given, xp) for xp in backends]

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def function(program: Program) -> tuple[Callable[..., Any], list[Any]]:
        """The program as a function of its data, and the data."""
        names: dict[str, Any] = {**MODULES}
        inputs, body, results = [], [], []
        given = []
        for text in program.statements:
            target = text.split(" = ")[0]
            if INPUT.match(text):
                inputs.append(target)
                given.append(eval(text.split(" = ", 1)[1], {"data": data, "number": number}))
            elif target != "x64":
                body.append(f"    {text}")
            if target[0] == "v" and " = number(" not in text:
                results.append(target)
        # a name that a shrunken program has lost is not returned
        said = [
            f"def program({', '.join(inputs)}):",
            *body,
            f"    return {{{', '.join(f'{r!r}: {r}' for r in results)}}}",
        ]
        exec(compile("\n".join(said), "<program>", "exec"), names)
        return names["program"], given

    def play(self, program: Program, subject: str) -> Outcome:
        outcome = Outcome()
        with jax.enable_x64(program.statements[0] == "x64 = True"):
            f, given = self.function(program)
            try:
                if subject == "tensorflow operations":
                    outcome.observed = self.by_operations(f, given, registry.get("tensorflow"))
                    return outcome
                if not subject.startswith(REFERENCE):
                    found = tg.graft(f, onto=subject)(*[native(x, subject) for x in given])
                    outcome.observed = {n: flat(x) for n, x in found.items()}
                    return outcome
                with jax.disable_jit(subject != REFERENCE):
                    runs = self.rounded(f, given, self.shakes)
            except Exception as error:
                outcome.raised[0] = type(error).__name__
                return outcome
        for n, leaves in runs[0].items():
            outcome.observed[n] = [Seen(x, slack(x, [r[n][i] for r in runs[1:]])) for i, x in enumerate(leaves)]
        return outcome

    def rounded(self, f: Callable[..., Any], given: list[Any], shakes: int) -> list[dict[str, list[np.ndarray]]]:
        """Of the data, and of what is a few eps off."""
        shaken = [[moved(x, np.random.default_rng(seed)) for x in given] for seed in range(shakes)]
        if jax.config.jax_disable_jit:
            return [{n: flat(x) for n, x in f(*map(jnp.asarray, data)).items()} for data in ([*given], *shaken)]
        options: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1}
        lowered = traced(f, *given).lower()
        if "stablehlo.reverse" in lowered.as_text():  # a check of XLA's simplifier there ends the process
            options["xla_disable_hlo_passes"] = "algsimp"
        compiled: Callable[..., Any] = lowered.compile(options)
        return [{n: flat(x) for n, x in compiled(*data).items()} for data in ([*given], *shaken)]

    def by_operations(self, f: Callable[..., Any], given: list[Any], xp: Backend) -> dict[str, list[np.ndarray]]:
        """As a grafted function is computed where TensorFlow cannot compile it: without the seconds that XLA takes."""
        seen = traced(f, *given)
        with xp.scope():
            found = plan(seen.jaxpr)(
                xp, *[xp.asarray(np.asarray(x, a.dtype)) for x, a in zip(given, seen.jaxpr.in_avals, strict=True)]
            )
            leaves = [xp.to_numpy(x) for x in found]
        return {n: jax.tree.leaves(x) for n, x in jax.tree.unflatten(seen.out_tree, leaves).items()}

    def observe(self, names: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def differences(self, expected: Outcome, found: Outcome, program: Program) -> list[str]:
        if expected.raised or found.raised:
            if expected.raised == found.raised:
                return []
            return [f"{found.raised.get(0) or 'no exception'}, expected {expected.raised.get(0) or 'none'}"]
        lines = []
        for n, leaves in expected.observed.items():
            ours = found.observed[n]
            if len(ours) != len(leaves):
                lines.append(f"{n}: {len(ours)} leaves, expected {len(leaves)}")
                continue
            for seen, x in zip(leaves, ours, strict=True):
                if line := differs(seen, x):
                    lines.append(f"{n}: {line}")
        return lines


def traced(f: Callable[..., Any], *given: Any) -> Any:
    return jax.jit(f, keep_unused=True).trace(*given)  # which JAX keeps for a function


def flat(x: Any) -> list[np.ndarray]:
    return [host(leaf) for leaf in jax.tree.leaves(x)]


def host(x: Any) -> np.ndarray:
    if type(x).__module__.split(".")[0] == "torch":
        import torch

        x = x.detach().resolve_conj()
        if x.dtype == torch.bfloat16:
            return np.asarray(x.float().numpy()).astype(jnp.bfloat16)
        return np.asarray(x.numpy())
    return np.asarray(x.numpy() if hasattr(x, "numpy") else x)


def native(x: Any, subject: str) -> Any:
    if not isinstance(x, np.ndarray) or x.dtype == jnp.bfloat16:
        return x
    if subject == "torch":
        import torch

        return torch.from_numpy(x.copy())
    if subject == "tensorflow":
        import tensorflow as tf

        return tf.constant(x)
    return x


def moved(x: Any, rng: np.random.Generator) -> Any:
    if not isinstance(x, np.ndarray) or kind(x) not in "fc":
        return x
    wide = np.complex128 if kind(x) == "c" else np.float64
    return (x.astype(wide) * (1 + 4 * float(jnp.finfo(x.dtype).eps) * rng.uniform(-1, 1, x.shape))).astype(x.dtype)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex128 if kind(x) == "c" else np.float64)


def slack(x: np.ndarray, others: list[np.ndarray]) -> np.ndarray | None:
    if any(o.shape != x.shape for o in others):
        return None
    if kind(x) not in "fc":
        return np.where(np.logical_and.reduce([o == x for o in others]), 0.0, np.inf)
    eps = float(jnp.finfo(x.dtype).eps)
    with np.errstate(all="ignore"):
        a = wide(x)
        off = np.maximum.reduce(
            [np.where((a == wide(o)) | (np.isnan(a) & np.isnan(wide(o))), 0.0, np.abs(wide(o) - a)) for o in others]
        )
    off = np.where(np.isnan(off), np.inf, off)
    largest = np.max(np.abs(a[np.isfinite(a)]), initial=1.0)
    return 16 * off + eps * 64 * (np.abs(np.where(np.isfinite(a), a, 0)) + largest)


def differs(seen: Seen, x: np.ndarray) -> str | None:
    if x.dtype != seen.value.dtype or x.shape != seen.value.shape:
        return f"{x.dtype} {x.shape}, expected {seen.value.dtype} {seen.value.shape}"
    if seen.slack is None:
        return None
    if kind(x) in "fc":
        with np.errstate(all="ignore"):
            return compared(Seen(wide(seen.value), seen.slack), wide(x))
    return compared(seen, x)


KIND = Jax()
