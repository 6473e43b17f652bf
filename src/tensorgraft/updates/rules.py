"""Rules for updates of every kind: a value broadcasts into what is updated; one that would lose something is
refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.hub import dtypes


def check_value(name: str, value: Any) -> None:
    """Raises TypeError for what is neither a number nor an array, nor a sequence that may become one."""
    if isinstance(value, bool | int | float | complex | list | tuple) or hasattr(value, "dtype"):
        return
    if isinstance(value, str | bytes) or not (hasattr(value, "__array__") or hasattr(value, "__dlpack__")):
        raise TypeError(f"{name}: expected a number or an array as the value, got a {_type_of(value)}")


def check_index(name: str, index: Any) -> None:
    """Raise IndexError for an object that cannot index any array. Bounds are checked by the indexed array."""
    for part in index if isinstance(index, tuple) else (index,):
        dtype = getattr(part, "dtype", None)
        if dtype is not None:
            kind = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
            if kind.startswith(("float", "bfloat", "complex", "str", "object")):
                raise IndexError(f"{name}: expected an index array of integers or booleans, got {kind}")
        elif not (part is None or part is ... or isinstance(part, slice | list) or hasattr(part, "__index__")):
            raise IndexError(
                f"{name}: expected an integer, a slice, ..., None or an array of integers or booleans as an index,"
                f" got a {_type_of(part)}"
            )


def _type_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def check_shape(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    """Raises ValueError where a value of `shape` does not broadcast to `target`."""
    lead = len(target) - len(shape)
    if lead < 0 or any(n not in (1, m) for n, m in zip(shape, target[lead:], strict=True)):
        raise ValueError(f"a value of shape {shape} does not broadcast to {target}, the shape of the updated elements")


def check_dtype(value: Any, target: np.dtype) -> None:
    """Raises TypeError where a dtype, or a Python number, does not fit into the dtype `target`."""
    if isinstance(value, bool | int | float | complex):
        kinds = {bool: "bifc", int: "ifc", float: "fc", complex: "c"}[value.__class__]
        if _kind(target) in kinds and not (
            _kind(target) == "i" and value.__class__ is int and not _can_hold(target, value)
        ):
            return
        raise TypeError(f"the Python number {value!r} does not fit into {target} (keep_dtype=True converts it)")
    if not lossless(value, target):
        raise TypeError(f"values of {value} do not all fit into {target} (keep_dtype=True converts them)")


def lossless(source: np.dtype, target: np.dtype) -> bool:
    """Return True if every value of `source` is one of `target`, except integers that exceed a float's digits."""
    if source == target:
        return True
    a, b = _kind(source), _kind(target)
    if "bifc".index(a) > "bifc".index(b):
        return False
    if a == b == "i":
        low, high = np.iinfo(source), np.iinfo(target)
        return high.min <= low.min and low.max <= high.max
    if a in "fc":
        return _digits(source) <= _digits(target) and _range(source) <= _range(target)
    return True


def _kind(dtype: np.dtype) -> str:
    return "f" if dtypes.is_floating(dtype) else {"u": "i"}.get(dtype.kind, dtype.kind)


def _can_hold(dtype: np.dtype, value: int) -> bool:
    return int(np.iinfo(dtype).min) <= value <= int(np.iinfo(dtype).max)


def _digits(dtype: np.dtype) -> int:
    return int(dtypes.finfo(dtypes.real_dtype(dtype)).nmant)


def _range(dtype: np.dtype) -> int:
    return int(dtypes.finfo(dtypes.real_dtype(dtype)).maxexp)
