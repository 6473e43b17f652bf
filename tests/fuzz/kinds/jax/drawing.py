"""What statements are drawn from: the live arrays of a program, choices among them, and bodies of functions."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from tests.fuzz.kinds.array_api import Retry

import jax
import jax.numpy as jnp

SHAPES = [(), (2,), (3,), (3,), (2, 3), (2, 3), (3, 3), (3, 2), (1, 3), (2, 2, 3), (0,), (4,), (2, 0)]


DTYPES = (
    ["float32"] * 8 + ["int32"] * 3 + ["bool", "uint8", "int8", "uint32", "bfloat16", "float16", "complex64", "int16"]
)


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


def broadcasts(x: Any, y: Any) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(x.shape, y.shape))) <= 100
    except ValueError:
        return False
