"""NumPy's functions of an `Array`: those of the standard, on the device of the array.

NumPy calls methods of its operands instead of computing itself (`__array_ufunc__` of NEP 13, `__array_function__` of
NEP 18). A function that the standard has, under NumPy's name or another, is the standard's; some others are composed of
functions of the standard (`numpy_composites`). Promotion, default dtypes and errors are the standard's, not NumPy's.
The remaining functions, and arguments that the standard's function lacks, are computed by NumPy on the host, counted
and with a warning, and the results are moved to the device, as for operators without a kernel in the PyTorch front end.
NumPy arrays among the arguments are moved to the device as well.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optree

import tensorgraft.array_api as namespace
from tensorgraft.errors import FallbackError, FallbackWarning
from tensorgraft.frontends.array_api.core import indexing
from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.frontends.array_api.core.calls import SCALARS, not_an_array, of_python
from tensorgraft.frontends.array_api.core.fallbacks import counts
from tensorgraft.frontends.array_api.core.promotion import STANDARD
from tensorgraft.frontends.array_api.extensions import numpy_composites

Function = Callable[..., Any]

# {NumPy's name: the standard's}
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
    """Return the result of `__array_ufunc__`. Raises TypeError for arrays of other frameworks."""
    like = _first((tuple(inputs), options.get("out")))
    inputs = [_on_device_of(of_python(x), like) for x in inputs]
    for x in inputs:
        if not isinstance(x, (Array, *SCALARS)):
            if type(x).__module__.partition(".")[0] != "numpy" and hasattr(x, "__array_ufunc__"):
                return NotImplemented
            not_an_array(f"np.{ufunc.__name__}", x)
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    passed = {k: v for k, v in options.items() if not (v is None and k != "axis") and v is not True}
    if method == "__call__":
        target = _own_function(name) or _of_standard(UFUNCS.get(name, name))
        arguments = inputs
    else:
        table = {"reduce": REDUCTIONS, "accumulate": ACCUMULATIONS}.get(method, {})
        target = _of_standard(table.get(ufunc.__name__, ""))
        arguments, axis = inputs[:1], inputs[1] if len(inputs) > 1 else 0
        passed.setdefault("axis", axis)
    if target is not None and _has_parameters(target, passed):
        return target(*arguments, **passed)
    return _on_host(name, getattr(ufunc, method), tuple(inputs), dict(options), like)


def of_function(like: Array, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of `__array_function__`. `like`: the array whose method NumPy has called."""
    module = function.__module__.removeprefix("numpy").lstrip(".")
    name = f"{module}.{function.__name__}".lstrip(".")
    target = _own_function(name) or _of_standard(FUNCTIONS.get(name, name))
    if target is not None:
        call: Any = (tuple(args), dict(kwargs))
        moved_call: Any = optree.tree_map(lambda x: _on_device_of(x, like), call)
        arguments, named = _bound(function, target, *moved_call)
        if name in CREATION:
            named.setdefault("device", like.device)
        if _has_parameters(target, named):
            return target(*arguments, **named)
    return _on_host(name, function, tuple(args), dict(kwargs), like)


def _first(operands: Any) -> Any:
    return next((x for x in optree.tree_leaves(operands) if isinstance(x, Array)), None)


def _on_device_of(x: Any, like: Array) -> Any:
    """Move an array of NumPy to the device of an `Array`; return anything else unchanged."""
    return indexing.from_host(like._cell.backend, x) if type(x) is np.ndarray and x.dtype in STANDARD else x


def _on_host(name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], like: Array) -> Any:
    """Call NumPy's function with copies of the arrays. Raises TypeError for an `Array` as `out=`, FallbackError if the
    user forbids fallbacks, TracedValueError in a trace."""
    if _first(kwargs.get("out")) is not None:
        raise TypeError(f"np.{name} cannot write to an Array given as out=: use x[...] = np.{name}(...) does")
    call: Any = (args, kwargs)
    values: Any = optree.tree_map(lambda x: np.asarray(x) if isinstance(x, Array) else x, call)
    if os.environ.get("TENSORGRAFT_FALLBACK", "") == "error":
        raise FallbackError(
            f"np.{name} is not of the Array API standard, and computing on the host is forbidden"
            " (TENSORGRAFT_FALLBACK=error)"
        )
    if not counts[name]:
        warnings.warn(
            f"np.{name} is not of the Array API standard, or not with these arguments: it is computed on the host,"
            " with its arguments copied there and its results copied back. tensorgraft.array_api.fallbacks()"
            " counts the calls.",
            FallbackWarning,
            stacklevel=4,
        )
    counts[name] += 1
    out = function(*values[0], **values[1])
    if "out" in kwargs:  # NumPy has written it
        return out
    return optree.tree_map(lambda x: _on_device_of(np.asarray(x) if isinstance(x, np.generic) else x, like), out)


def _has_parameters(target: Function, named: Mapping[str, Any]) -> bool:
    """Return True if a function has parameters of these names."""
    known = _signature(target).parameters
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values()) or all(k in known for k in named)


def _own_function(name: str) -> Function | None:
    return numpy_composites.FUNCTIONS.get(name)


def _of_standard(name: str) -> Function | None:
    """Return the function of the namespace with this name, such as `linalg.inv`, or None."""
    found: Any = namespace
    for part in name.split("."):
        found = getattr(found, part) if part in found.__all__ else None
        if found is None:
            return None
    return found if callable(found) else None


@functools.cache
def _signature(function: Function) -> inspect.Signature:
    return inspect.signature(function)


def _bound(
    function: Function, target: Function, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Convert arguments of NumPy's function to (positional, keyword) arguments of the target. Arguments that equal
    NumPy's defaults are omitted."""
    numpy_parameters = _signature(function).parameters
    bound = _signature(function).bind(*args, **kwargs).arguments
    target_parameters = _signature(target).parameters
    positional_only = sum(p.kind is inspect.Parameter.POSITIONAL_ONLY for p in target_parameters.values())
    arguments: list[Any] = []
    named: dict[str, Any] = {}
    for at, (key, parameter) in enumerate(numpy_parameters.items()):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            arguments += bound.get(key, ())
        elif key in bound and at < positional_only:
            arguments.append(bound[key])
        elif key in bound and not _is_default(bound[key], parameter.default):
            named[key if key in target_parameters else ARGUMENTS.get(key, key)] = bound[key]
    return arguments, named


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and isinstance(value, str | int) and value == default)


__all__ = ["of_function", "of_ufunc"]
