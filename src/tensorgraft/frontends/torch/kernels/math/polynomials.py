"""Orthogonal polynomials of degree n, a tensor like x: by their recurrences, and in closed form where PyTorch does so.

P_0 = 1, P_1 as in the table, gamma_k P_{k+1} = alpha_k(x) P_k - beta_k P_{k-1}.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorgraft.frontends.torch.core.promotion import PROMOTION
from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import Value, with_operators


@dataclass(frozen=True)
class Recurrence:
    first: Callable[[Value], Value]  # x -> P_1
    alpha: Callable[[Value, Value], Value]  # (x, k) -> alpha_k(x)
    beta: Callable[[Value], Any]  # k -> beta_k
    gamma: Callable[[Value], Value] | None = None  # k -> gamma_k; 1 where None


def _chebyshev(shift: float) -> Recurrence:
    return Recurrence(lambda x: x * 2.0 + shift, lambda x, k: x * 2.0, lambda k: 1)


TABLE = {
    "chebyshev_polynomial_t": Recurrence(lambda x: x, lambda x, k: x * 2.0, lambda k: 1),
    "chebyshev_polynomial_u": _chebyshev(0.0),
    "chebyshev_polynomial_v": _chebyshev(-1.0),
    "chebyshev_polynomial_w": _chebyshev(1.0),
    "hermite_polynomial_h": Recurrence(lambda x: x * 2.0, lambda x, k: x * 2.0, lambda k: k * 2.0),
    "hermite_polynomial_he": Recurrence(lambda x: x, lambda x, k: x, lambda k: k),
    "laguerre_polynomial_l": Recurrence(
        lambda x: 1.0 - x, lambda x, k: k * 2.0 + 1.0 - x, lambda k: k, lambda k: k + 1.0
    ),
    "legendre_polynomial_p": Recurrence(lambda x: x, lambda x, k: (k * 2.0 + 1.0) * x, lambda k: k, lambda k: k + 1.0),
}


def _recur(xp: Any, x: Value, n: Value, rule: Recurrence) -> Value:
    """Compute P_n(x) by recurrence; n is int64, and the number of steps that of the greatest n whose polynomial is
    finite."""
    dtype = x.dtype

    def not_done(carry: tuple[Value, Value, Value]) -> Value:
        return xp.any((carry[0] < n) & ~xp.isnan(carry[2]))

    def step(carry: tuple[Value, Value, Value]) -> tuple[Value, Value, Value]:
        at, before, last = carry
        k = xp.astype(at, dtype)
        value = rule.alpha(x, k) * last - rule.beta(k) * before
        if rule.gamma is not None:
            value = value / rule.gamma(k)
        is_active = at < n
        return at + 1, xp.where(is_active, last, before), xp.where(is_active, value, last)

    start = (xp.full((), 1, dtypes.int64), xp.ones_like(x), rule.first(x))
    last = xp.while_loop(not_done, step, start)[2]
    return xp.where(n < 0, xp.zeros_like(x), xp.where(n == 0, xp.ones_like(x), last))


def _by_angle(xp: Any, name: str, x: Value, n: Value) -> Value:
    """Compute the Chebyshev polynomials inside (-1, 1) as functions of acos(x)."""
    angle = xp.acos(x)
    n = xp.astype(n, x.dtype)
    half = angle * 0.5
    middle = (n + 0.5) * angle
    kind = name[-1]
    if kind == "t":
        return xp.cos(n * angle)
    if kind == "u":
        return xp.sin((n + 1.0) * angle) / xp.sin(angle)
    if kind == "v":
        return xp.cos(middle) / xp.cos(half)
    return xp.sin(middle) / xp.sin(half)


# from which degree on PyTorch uses the angle
_ANGLE = {"t": 6, "u": 8, "v": 8, "w": 8}
# beyond which degree PyTorch gives up: the numbers are out of range
_HERMITE = {dtypes.float32: 128, dtypes.float64: 512}


def _polynomial(name: str) -> Callable[..., Array]:
    rule = TABLE[name.removeprefix("shifted_")]
    chebyshev = "chebyshev" in name

    @with_operators
    def fn(xp: Any, x: Value, n: Value) -> Value:
        dtype = x.dtype
        shape = (x + n).shape
        x, n = xp.broadcast_to(x, shape), xp.astype(xp.broadcast_to(n, shape), dtypes.int64)
        if name.startswith("shifted_"):
            x = x * 2.0 - 1.0
        if not math.prod(shape):
            return x
        if chebyshev:
            in_interval = (n > _ANGLE[name[-1]]) & (abs(x) < 1)
            direct = _recur(xp, x, xp.where(in_interval, xp.zeros_like(n), n), rule)

            def by_angle(x: Value, n: Value, direct: Value) -> Value:
                return xp.where(in_interval, _by_angle(xp, name, xp.where(in_interval, x, 0.5), n), direct)

            return xp.cond(xp.any(in_interval), by_angle, lambda x, n, direct: direct, x, n, direct)
        if name.startswith("hermite"):
            limit = _HERMITE.get(dtype, 128)
            beyond = n > limit
            out = _recur(xp, x, xp.minimum(n, limit), rule)
            return xp.where(beyond, xp.full_like(x, math.nan), out)
        return _recur(xp, x, n, rule)

    return fn


NAMES = (*TABLE, *(f"shifted_chebyshev_polynomial_{kind}" for kind in "tuvw"))
for _name in NAMES:
    _op = f"special_{_name}"
    kernel(_op, f"{_op}.x_scalar", f"{_op}.n_scalar", promotion=PROMOTION.INT_TO_FLOAT, promote=("x", "n"))(
        _polynomial(_name)
    )
