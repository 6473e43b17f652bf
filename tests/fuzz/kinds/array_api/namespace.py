"""`xp` of a program on the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.fuzz.kinds.array_api.left_open import base, defined, kind
from tests.fuzz.kinds.array_api.reference import fresh, merged, plain, shaken, shaken_whole, wrapped
from tests.fuzz.program import Undefined

# functions (no ufuncs) that compute with digits; the others move, compare or count
ROUNDING = {"sum", "prod", "mean", "std", "var", "cumulative_sum", "cumulative_prod", "matmul", "tensordot", "vecdot"}
ROUNDING |= {"linspace", "diff", "round"}
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


def counted(x: Any) -> bool:
    """Small whole numbers: sums and products of them do not round."""
    return (
        not isinstance(x, np.ndarray) or x.dtype.kind not in "fc" or bool(np.all((np.abs(x) < 32) & (x == np.rint(x))))
    )


def widened(x: Any, name: str) -> Any:
    return x.astype(np.float64) if name in ("mean", "std", "var") and x.dtype.kind in "iub" else x


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
            return wrapped(fresh(_shaken(f(*given, **options)), given))
        return wrapped(fresh(f(*given, **options), given))

    return call


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


def _merging(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: f(merged(x))


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
    **{f"unique_{what}": _merging(getattr(np, f"unique_{what}")) for what in ("all", "counts", "inverse", "values")},
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


def _factoring(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **options: f(*(shaken_whole(x) for x in args), **options)


FACTORING = {"cholesky", "eigh", "eigvalsh", "inv", "pinv", "qr", "solve", "svd", "svdvals"}


class _Linalg:
    def __getattr__(self, name: str) -> Any:
        f = _diagonal if name == "diagonal" else _solvable(getattr(np.linalg, name))
        if name in FACTORING:
            f = _factoring(f)
        made = _function(name, f, name not in ("diagonal", "matrix_transpose"))
        self.__dict__[name] = made
        return made


class _Fft:
    def __getattr__(self, name: str) -> Any:
        f = getattr(np.fft, name)
        if "shift" not in name:
            made = _function(name, lambda x, **options: shaken_whole(f(x, **options)), True)
        else:
            made = _function(name, f, False)
        self.__dict__[name] = made
        return made
