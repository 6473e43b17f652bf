"""NumPy as the standard's arrays: what the standard leaves open is `Undefined`, and rounding can be shaken.

`Namespace(rng)` multiplies what goes into functions that round, and what comes out, by 1 +- a few eps: where a program
gives another value then, its digits are not those of the program but of a library, and are not compared. So no
tolerance has to be guessed, however long the chain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.fuzz.program import Undefined

np.seterr(all="ignore")

# rounded once, or not at all, by every backend
EXACT = {
    "add",
    "subtract",
    "multiply",
    "divide",
    "negative",
    "positive",
    "absolute",
    "floor",
    "ceil",
    "trunc",
    "rint",
    "sign",
    "square",
    "reciprocal",
    "maximum",
    "minimum",
    "copysign",
    "nextafter",
    "fmin",
    "fmax",
    "floor_divide",
    "remainder",
    "isnan",
    "isinf",
    "isfinite",
    "signbit",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
    "conjugate",
}
# functions (no ufuncs) that compute with digits; the others move, compare or count
ROUNDING = {
    "sum",
    "prod",
    "mean",
    "std",
    "var",
    "cumulative_sum",
    "cumulative_prod",
    "matmul",
    "tensordot",
    "vecdot",
    "linspace",
    "diff",
    "round",
}
ARITHMETIC = {"add", "subtract", "multiply", "divide", "floor_divide", "remainder", "power", "maximum", "minimum"}
NAMES = {
    "acos": "arccos",
    "acosh": "arccosh",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atanh": "arctanh",
    "atan2": "arctan2",
}


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
        if out is not None:
            if rounds:
                plain(out[0])[...] = shaken(plain(out[0]))
            return out[0]
        return wrapped(shaken(found) if rounds else found)

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


def kind(x: Any) -> str:
    return str(x.dtype.kind) if isinstance(x, np.ndarray | np.generic) else ""


def base(x: Any) -> str:
    return "i" if kind(x) == "u" else kind(x)


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


def shaken(x: Any, few: float = 4) -> Any:
    rng = Reference.rng
    if rng is None or not isinstance(x, np.ndarray | np.generic) or x.dtype.kind not in "fc":
        return x
    return (x * (1 + np.finfo(x.dtype).eps * few * rng.uniform(-1, 1, x.shape))).astype(x.dtype)


COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}


def undecided(given: list[Any], found: Any) -> Any:
    """A comparison of what is nearly, and not quite, equal goes either way: other digits would be quite equal."""
    assert Reference.rng is not None
    a, b = (np.asarray(x) for x in given)
    eps = max(np.finfo(x.dtype).eps for x in (a, b) if x.dtype.kind in "fc")
    near = (a != b) & (np.abs(a - b) <= 64 * eps * np.maximum(np.abs(a), np.abs(b)))
    return np.where(near, Reference.rng.random(near.shape) < 0.5, found)


def counted(x: Any) -> bool:
    """Small whole numbers: sums and products of them do not round."""
    return (
        not isinstance(x, np.ndarray) or x.dtype.kind not in "fc" or bool(np.all((np.abs(x) < 32) & (x == np.rint(x))))
    )


def defined(name: str, given: list[Any], out: Any) -> None:
    """Raises Undefined for what the standard leaves open, or has each backend do as it can."""
    kinds = {base(x) for x in given} - {""}
    if out is not None and base(out[0]) not in kinds:
        raise Undefined("in place into another kind")
    if kinds - {"f", "c"} and len(kinds) > 1 and not (name == "multiply" and "b" in kinds):
        raise Undefined("integers and floats in one operation")
    if kinds == {"i"} and {str(x.dtype) for x in given if kind(x)} & {"uint64"} and {kind(x) for x in given} & {"i"}:
        raise Undefined("uint64 and signed integers")
    scalars = [x for x in given if isinstance(x, bool | int | float | complex)]
    arrays = [x for x in given if kind(x)]
    for s in scalars:
        allowed = {bool: "b", int: "iufc", float: "fc", complex: "c"}[type(s)]
        if not all(kind(x) in allowed for x in arrays):
            raise Undefined("a Python number of another kind")
        if type(s) is int and any(kind(x) in "iu" and not fits(s, x.dtype) for x in arrays):
            raise Undefined("a Python number beyond the dtype")
    if kinds == {"b"} and name in ARITHMETIC | {"negative", "absolute", "sign", "square", "reciprocal", "positive"}:
        raise Undefined("arithmetic of booleans")
    if kinds == {"i"} and name in ("floor_divide", "remainder", "divide") and np.any(np.asarray(given[1]) == 0):
        raise Undefined("an integer divided by 0")
    if name == "floor_divide" and kinds == {"f"} and any(np.isinf(x).any() for x in given):
        raise Undefined("NumPy has other values for infinities than the standard")
    if name in ("left_shift", "right_shift"):
        bits = min(x.dtype.itemsize * 8 for x in arrays)
        if np.any((np.asarray(given[1]) < 0) | (np.asarray(given[1]) >= bits)):
            raise Undefined("a shift beyond the bits")
    if name in ("signbit", "copysign") and any(np.isnan(x).any() for x in given[-1:]):
        raise Undefined("the sign of NaN")
    if "c" in kinds and name in ("floor_divide", "remainder", "maximum", "minimum", "less", "greater"):
        raise Undefined("an order of complex numbers")


def widened(x: Any, name: str) -> Any:
    return x.astype(np.float64) if name in ("mean", "std", "var") and x.dtype.kind in "iub" else x


def fits(value: int, dtype: Any) -> bool:
    info = np.iinfo(dtype)
    return bool(info.min <= value <= info.max)


def _function(name: str, f: Callable[..., Any], rounds: bool) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        options.pop("device", None)
        given, options = [plain(x) for x in args], {k: plain(v) for k, v in options.items()}
        if name in TWO:
            kinds = {base(x) for x in _arrays(given)}
            if len(kinds) > 1 and kinds - {"f", "c"}:
                raise Undefined("arrays of different kinds")
        if name in ORDERED and "c" in {kind(x) for x in _arrays(given)}:
            raise Undefined("an order of complex numbers")
        if rounds and not (name in COUNTING and all(counted(x) for x in _arrays(given))):
            given = [shaken(widened(x, name)) if isinstance(x, np.ndarray) else x for x in given]
            return wrapped(_shaken(f(*given, **options)))
        return wrapped(f(*given, **options))

    return call


COUNTING = {
    "sum",
    "prod",
    "cumulative_sum",
    "cumulative_prod",
    "matmul",
    "tensordot",
    "vecdot",
    "outer",
    "diff",
    "trace",
}
TWO = {"concat", "stack", "matmul", "tensordot", "vecdot", "isin", "searchsorted", "where", "outer", "cross"}
ORDERED = {"sort", "argsort", "max", "min", "argmax", "argmin", "searchsorted", "clip"}


def _arrays(given: list[Any]) -> list[Any]:
    flat = [y for x in given for y in (x if isinstance(x, list | tuple) else [x])]
    return [x for x in flat if isinstance(x, np.ndarray)]


def _shaken(x: Any) -> Any:
    if isinstance(x, tuple):
        return type(x)(*map(_shaken, x)) if hasattr(x, "_fields") else tuple(map(_shaken, x))
    return shaken(x)


def _sort(x: Any, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    if descending and x.dtype.kind == "f" and np.isnan(x).any():
        raise Undefined("NaN in a descending order")
    found = np.sort(x, axis=axis, stable=True)
    return np.flip(found, axis).copy() if descending else found


def _argsort(x: Any, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    if not descending:
        return np.argsort(x, axis=axis, stable=True)
    if x.dtype.kind == "f" and np.isnan(x).any():
        raise Undefined("NaN in a descending order")
    back = np.argsort(np.flip(x, axis), axis=axis, stable=True)
    return np.flip(x.shape[axis] - 1 - back, axis).copy()


def _astype(x: Any, dtype: Any, *, copy: bool = True) -> Any:
    dtype = np.dtype(dtype)
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        raise Undefined("a complex number as a real one")
    if x.dtype.kind == "f" and dtype.kind in "iu":
        info = np.iinfo(dtype)
        if not np.all(np.isfinite(x) & (np.trunc(x) >= float(info.min)) & (np.trunc(x) < float(info.max))):
            raise Undefined("a float beyond the integers")
    return x.astype(dtype, copy=copy)


def _diagonal(x: Any, *, offset: int = 0) -> Any:
    found = np.linalg.diagonal(x, offset=offset)
    if x.flags.writeable:
        found.setflags(write=True)
    return found


def _clip(x: Any, min: Any = None, max: Any = None) -> Any:
    defined("clip", [x, *(m for m in (min, max) if m is not None)], None)
    if base(x) == "b" or base(x) == "c":
        raise Undefined("an order of these")
    found = np.clip(x, min, max)
    if found.dtype != x.dtype:
        raise Undefined("bounds wider than what is clipped")
    return found


def _matmul(x: Any, y: Any) -> Any:
    if "b" in (base(x), base(y)):
        raise Undefined("a product of booleans")
    return np.matmul(x, y)


def _tensordot(x: Any, y: Any, *, axes: Any = 2) -> Any:
    if "b" in (base(x), base(y)):
        raise Undefined("a product of booleans")
    return np.tensordot(x, y, axes=axes)


def _vecdot(x: Any, y: Any, *, axis: int = -1) -> Any:
    if "b" in (base(x), base(y)):
        raise Undefined("a product of booleans")
    return np.vecdot(x, y, axis=axis)


def _where(condition: Any, x: Any, y: Any) -> Any:
    defined("where", [x, y], None)
    return np.where(condition, x, y)


def _checked(f: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, *, axis: Any = None, correction: float = 0, keepdims: bool = False) -> Any:
        axes = range(x.ndim) if axis is None else np.atleast_1d(axis)
        if f is not np.mean and int(np.prod([x.shape[a] for a in axes])) <= correction:
            raise Undefined("fewer elements than the correction")
        options = {} if f is np.mean else {"correction": correction}
        return f(x, axis=axis, keepdims=keepdims, **options)

    return call


def _unstack(x: Any, *, axis: int = 0) -> Any:
    moved = np.moveaxis(x, axis, 0)
    return tuple(moved[i, ...] for i in range(len(moved)))


def _copied(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: np.array(f(*args), copy=True)


OWN: dict[str, Callable[..., Any]] = {
    "sort": _sort,
    "argsort": _argsort,
    "astype": _astype,
    "clip": _clip,
    "matmul": _matmul,
    "tensordot": _tensordot,
    "vecdot": _vecdot,
    "where": _where,
    "mean": _checked(np.mean),
    "std": _checked(np.std),
    "var": _checked(np.var),
    "unstack": _unstack,
    "flip": lambda x, *, axis=None: np.flip(x, axis) if x.ndim else x[...],
    "real": _copied(np.real),
    "imag": _copied(np.imag),
}


class Namespace:
    """`xp` of a program on the reference."""

    def __init__(self) -> None:
        self.linalg, self.fft = _Linalg(), _Fft()

    def __getattr__(self, name: str) -> Any:
        if name in ("float32", "float64", "float16", "complex64", "complex128", "bool") or (
            name[-1].isdigit() and "int" in name
        ):
            return np.dtype(name)
        f = OWN.get(name) or getattr(np, name)
        if isinstance(f, np.ufunc):  # arrays of this class are shaken by themselves
            made: Any = f
        elif callable(f) and not isinstance(f, type):
            made = _function(name, f, name in ROUNDING)
        else:
            made = f
        self.__dict__[name] = made
        return made


def _solvable(f: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        try:
            return f(*args, **options)
        except np.linalg.LinAlgError as error:
            if "Singular" in str(error) or "positive definite" in str(error):
                raise Undefined("a matrix that is singular or not positive definite") from None
            raise

    return call


class _Linalg:
    def __getattr__(self, name: str) -> Any:
        f = _diagonal if name == "diagonal" else getattr(np.linalg, name)
        made = _function(name, _solvable(f), name not in ("diagonal", "matrix_transpose"))
        self.__dict__[name] = made
        return made


class _Fft:
    def __getattr__(self, name: str) -> Any:
        made = _function(name, getattr(np.fft, name), name not in ("fftshift", "ifftshift"))
        self.__dict__[name] = made
        return made
