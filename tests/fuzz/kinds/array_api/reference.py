"""NumPy's arrays as the standard's: what that leaves open is `Undefined`, and rounding can be shaken.

While `Reference.rng` is set, what goes into functions that round, and what comes out, is multiplied by 1 +- a few eps:
where a program gives another value then, its digits are not those of the program but of a library, and are not compared.
So no tolerance has to be guessed, however long the chain.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from tests.fuzz.kinds.array_api.left_open import base, defined, kind
from tests.fuzz.program import Undefined

np.seterr(all="ignore")

# rounded once, or not at all, by every backend
EXACT = {"add", "subtract", "multiply", "divide", "negative", "positive", "absolute", "floor", "ceil", "trunc", "rint"}
EXACT |= {"sign", "square", "reciprocal", "maximum", "minimum", "copysign", "nextafter", "fmin", "fmax", "floor_divide"}
EXACT |= {"remainder", "isnan", "isinf", "isfinite", "signbit", "equal", "not_equal", "less", "less_equal", "greater"}
EXACT |= {"greater_equal", "logical_and", "logical_or", "logical_xor", "logical_not", "conjugate"}
COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}


class Reference(np.ndarray):
    """Without NumPy's scalars: `x[0]` is a view, `x[0] + x[1]` an array."""

    rng: np.random.Generator | None = None  # of the play that is going on
    everywhere: bool = False  # whether products and sums are shaken, too (compiled programs contract them)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        given = [plain(x) for x in inputs]
        defined(ufunc.__name__, given, out)
        rounds = ufunc.__name__ not in EXACT or Reference.everywhere or any(kind(x) == "c" for x in given)
        if rounds:
            given = [shaken(x) for x in given]
        if out is not None:
            options["out"] = tuple(plain(x) for x in out)
        found = getattr(ufunc, method)(*given, **options)
        if ufunc.__name__ == "nextafter" and np.any((np.abs(found) < np.finfo(found.dtype).tiny) & (found != 0)):
            raise Undefined("a subnormal number")
        if Reference.rng is not None and ufunc.__name__ in COMPARISONS and any(kind(x) in "fc" for x in given):
            found = undecided(given, found)
        elif Reference.rng is not None and any(kind(x) == "c" for x in given):
            found = anything(given, found)
        if out is not None:
            if rounds:
                plain(out[0])[...] = shaken(plain(out[0]))
            return out[0]
        return wrapped(fresh(shaken(found) if rounds else found, given))

    def __getitem__(self, key: Any) -> Any:
        found = np.ndarray.__getitem__(self.view(np.ndarray), plain(key))
        if isinstance(found, np.generic) and not any(isinstance(k, np.ndarray) for k in keys(plain(key))):
            found = np.ndarray.__getitem__(self.view(np.ndarray), (*keys(key), ...))
        return wrapped(found)

    def __setitem__(self, key: Any, value: Any) -> None:
        value = plain(value)
        if isinstance(value, np.ndarray) and "bifc".index(base(value)) > "bifc".index(base(self)):
            raise Undefined("a value of another kind")
        key = tuple(k.copy() if isinstance(k, np.ndarray) else k for k in keys(plain(key)))  # may be what is written
        self.view(np.ndarray)[key if len(key) != 1 else key[0]] = value

    def __iter__(self) -> Any:
        return iter([self[i] for i in range(len(self))])

    def to_device(self, device: Any) -> Any:
        return self  # of the one device that there is


def keys(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def plain(x: Any) -> Any:
    if isinstance(x, Reference):
        return x.view(np.ndarray)
    if isinstance(x, tuple | list):
        return type(x)(plain(y) for y in x)
    return x


def wrapped(x: Any) -> Any:
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x).view(Reference)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(wrapped(y) for y in x))
    if isinstance(x, tuple | list):
        return type(x)(wrapped(y) for y in x)
    return x


def fresh(x: Any, given: Any) -> Any:
    """What is new lies in C order, as ours does: NumPy keeps the order of operands, by which `reshape` is a view or a
    copy (which the standard leaves open)."""
    if isinstance(x, np.ndarray) and not any(isinstance(g, np.ndarray) and np.may_share_memory(x, g) for g in given):
        return np.asarray(x, order="C")
    return x


def shaken(x: Any, few: float = 4) -> Any:
    rng = Reference.rng
    if rng is None or not isinstance(x, np.ndarray | np.generic) or x.dtype.kind not in "fc":
        return x
    return (x * (1 + np.finfo(x.dtype).eps * few * rng.uniform(-1, 1, x.shape))).astype(x.dtype)


def undecided(given: list[Any], found: Any) -> Any:
    """A comparison of what is nearly, and not quite, equal goes either way: other digits would be quite equal."""
    assert Reference.rng is not None
    a, b = (np.asarray(x) for x in given)
    eps = max(np.finfo(x.dtype).eps for x in (a, b) if x.dtype.kind in "fc")
    near = (a != b) & (np.abs(a - b) <= 64 * eps * np.maximum(np.abs(a), np.abs(b)))
    if "c" in (a.dtype.kind, b.dtype.kind):
        near |= ~(np.isfinite(a) & np.isfinite(b))  # NaN in another's arithmetic
    return np.where(near, Reference.rng.random(near.shape) < 0.5, found)


def anything(given: list[Any], found: Any) -> Any:
    """Complex arithmetic with infinities and NaN (docs/differences.md): C++, NumPy and XLA differ."""
    assert Reference.rng is not None
    odd = functools.reduce(np.logical_or, [~np.isfinite(x) for x in given])
    if not np.any(odd) or not isinstance(found, np.ndarray | np.generic):
        return found
    odd = np.broadcast_to(odd, found.shape) & (Reference.rng.random(found.shape) < 0.5)
    return np.where(odd, ~found if found.dtype == bool else np.asarray(np.nan, found.dtype), found)


def shaken_whole(x: Any) -> Any:
    """As of factorisations and transforms, whose errors are relative to the largest element: a zero has either sign."""
    rng = Reference.rng
    if rng is None or not isinstance(x, np.ndarray) or x.dtype.kind not in "fc":
        return x
    noise: Any = rng.uniform(-1, 1, x.shape)
    if x.dtype.kind == "c":
        noise = noise + 1j * rng.uniform(-1, 1, x.shape)
    largest = np.max(np.abs(x[np.isfinite(x)]), initial=0.0)
    return np.where(np.isfinite(x), x + np.finfo(x.dtype).eps * largest * noise, x).astype(x.dtype)


def merged(x: Any) -> Any:
    """With what is nearly equal quite equal, as other digits may be."""
    rng = Reference.rng
    if rng is None or x.dtype.kind != "f" or rng.random() < 0.5:
        return x
    order = np.argsort(x, axis=None)
    values = x.ravel()[order]
    near = np.abs(np.diff(values)) <= 64 * np.finfo(x.dtype).eps * np.abs(values[1:])
    first = np.maximum.accumulate(np.where(np.concatenate([[False], near]), 0, np.arange(values.size)))
    found = np.empty_like(values)
    found[order] = values[first]
    return found.reshape(x.shape)
