"""NumPy's functions of an `Array`: those of the standard, on the device of the array.

NumPy asks its operands before it computes (`__array_ufunc__` of NEP 13, `__array_function__` of NEP 18). What the
standard has, by NumPy's name for it or by another, is that function; a few of NumPy's own are lines of it (`numpy_own`).
All else, and every argument that the standard's function lacks, is a TypeError: no array goes to the host without a
word. Promotion, default dtypes and errors are the standard's, not NumPy's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from tensorgraft.frontends.array_api import numpy_own
from tensorgraft.frontends.array_api.array import Array
from tensorgraft.frontends.array_api.calls import SCALARS, not_an_array, of_python

Function = Callable[..., Any]

# NumPy's name -> the standard's
UFUNCS = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "conjugate": "conj",
    "fabs": "abs",
    "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "power": "pow",
    "right_shift": "bitwise_right_shift",
    "rint": "round",
    "true_divide": "divide",
}
FUNCTIONS = {"amax": "max", "amin": "min"}
REDUCTIONS = {
    "add": "sum",
    "logical_and": "all",
    "logical_or": "any",
    "maximum": "max",
    "minimum": "min",
    "multiply": "prod",
}
ACCUMULATIONS = {"add": "cumulative_sum", "multiply": "cumulative_prod"}
ARGUMENTS = {"a_max": "max", "a_min": "min", "ddof": "correction"}
CREATION = ("arange", "array", "asarray", "empty", "eye", "full", "linspace", "ones", "zeros")  # with like=


def of_ufunc(ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What `__array_ufunc__` answers. Raises TypeError for arrays of other libraries, and for what is not there."""
    inputs = [of_python(x) for x in inputs]
    for x in inputs:
        if not isinstance(x, (Array, *SCALARS)):
            if type(x).__module__.partition(".")[0] != "numpy" and hasattr(x, "__array_ufunc__"):
                return NotImplemented
            not_an_array(f"np.{ufunc.__name__}", x)
    named = f"{ufunc.__name__}.{method}"
    given = {k: v for k, v in options.items() if not (v is None and k != "axis") and v is not True}
    if method == "__call__":
        target = _own(ufunc.__name__) or _of_standard(UFUNCS.get(ufunc.__name__, ufunc.__name__))
        return _call(ufunc.__name__, target, inputs, given)
    table = {"reduce": REDUCTIONS, "accumulate": ACCUMULATIONS}.get(method, {})
    if ufunc.__name__ not in table:
        _missing(named)
    x, *rest = inputs
    axis = given.pop("axis", rest[0] if rest else 0)
    return _call(named, _of_standard(table[ufunc.__name__]), (x,), {"axis": axis, **given})


def of_function(like: Array, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What `__array_function__` answers. `like`: the array that NumPy asked."""
    module = function.__module__.removeprefix("numpy").lstrip(".")
    name = f"{module}.{function.__name__}".lstrip(".")
    target = _own(name) or _of_standard(FUNCTIONS.get(name, name))
    if target is None:
        _missing(name)
    arguments, given = _bound(name, function, target, args, kwargs)
    if name in CREATION:
        given.setdefault("device", like.device)
    return _call(name, target, arguments, given)


def _own(name: str) -> Function | None:
    return numpy_own.FUNCTIONS.get(name)


def _of_standard(name: str) -> Function | None:
    """A function of the namespace, `linalg.inv` too."""
    import tensorgraft.array_api as namespace

    at: Any = namespace
    for part in name.split("."):
        at = getattr(at, part) if part in at.__all__ else None
        if at is None:
            return None
    return at if callable(at) else None


@functools.cache
def _signature(function: Function) -> inspect.Signature:
    return inspect.signature(function)


def _bound(
    name: str, function: Function, target: Function, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of NumPy's function as those of another: the first ones by place, the others by name; those that are
    NumPy's defaults are not given."""
    theirs = _signature(function).parameters
    bound = _signature(function).bind(*args, **kwargs).arguments
    ours = _signature(target).parameters
    places = sum(p.kind is inspect.Parameter.POSITIONAL_ONLY for p in ours.values())
    arguments: list[Any] = []
    given: dict[str, Any] = {}
    for at, (key, parameter) in enumerate(theirs.items()):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            arguments += bound.get(key, ())
        elif key in bound and at < places:
            arguments.append(bound[key])
        elif key in bound and not _is_default(bound[key], parameter.default):
            given[key if key in ours else ARGUMENTS.get(key, key)] = bound[key]
    return arguments, given


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and isinstance(value, str | int) and value == default)


def _call(name: str, target: Function | None, arguments: Sequence[Any], given: Mapping[str, Any]) -> Any:
    if target is None:
        _missing(name)
    known = _signature(target).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
    if not takes_all and (unknown := [key for key in given if key not in known]):
        takes = ", ".join(k for k, p in known.items() if p.kind is not inspect.Parameter.POSITIONAL_ONLY) or "no other"
        raise TypeError(f"np.{name} of an Array takes {takes}, and not {', '.join(unknown)}")
    return target(*arguments, **given)


def _missing(name: str) -> NoReturn:
    raise TypeError(
        f"np.{name}: the Array API standard has no such function, and arrays stay on their device:"
        f" np.{name.partition('.')[0]}(np.asarray(x)) computes on the host"
    )


__all__ = ["of_function", "of_ufunc"]
