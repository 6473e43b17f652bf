"""Pytrees as text: arrays by dtype and shape, modules as calls of their classes."""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any

from tensorgraft.arrays import describe, is_array


def tree_pformat(tree: Any, *, width: int = 80, indent: int = 2, short_arrays: bool = True) -> str:
    """Return the tree as text, in one line where it fits, else with a line for each child.

    Arguments:
        short_arrays: `f32[3,4]`, and `f32[3,4](torch)` for an array of a framework, instead of values.

    >>> import tensorgraft as tg, tensorgraft.array_api as xp
    >>> tg.transforms.tree_pformat({"w": xp.zeros((3, 4), device="numpy"), "depth": 2})
    "{'w': f64[3,4], 'depth': 2}"
    """
    return _text(tree, width, indent, 0, short_arrays)


def _text(x: Any, width: int, indent: int, at: int, short: bool) -> str:
    if is_array(x):
        return describe(x) if short else repr(x)
    parts = _parts(x)
    if parts is None:
        return _leaf(x)
    opening, children, closing = parts
    flat = opening + ", ".join(k + _text(v, 10**9, indent, 0, short) for k, v in children) + closing
    if "\n" not in flat and len(flat) <= width - at:
        return flat
    if not children:
        return opening + closing
    inner = at + indent
    lines = [" " * inner + k + _text(v, width - len(k) - 1, indent, inner, short) for k, v in children]
    return opening + "\n" + ",\n".join(lines) + "\n" + " " * at + closing


def _parts(x: Any) -> tuple[str, list[tuple[str, Any]], str] | None:
    """Return (what opens it, its children with what stands before each, what closes it); None for a leaf."""
    kind = type(x)
    if (shown_parts := getattr(kind, "__shown__", None)) is not None:
        return shown_parts(x)
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        names = [f.name for f in dataclasses.fields(x) if f.repr and hasattr(x, f.name)]
        return f"{kind.__name__}(", [(f"{n}=", getattr(x, n)) for n in names], ")"
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return f"{kind.__name__}(", [(f"{n}=", v) for n, v in zip(x._fields, x, strict=True)], ")"
    if kind is tuple:
        return "(", [("", v) for v in x], ",)" if len(x) == 1 else ")"
    if kind is list:
        return "[", [("", v) for v in x], "]"
    if isinstance(x, dict):
        opening, closing = ("{", "}") if kind is dict else (f"{kind.__name__}({{", "})")
        return opening, [(f"{k!r}: ", v) for k, v in x.items()], closing
    if isinstance(x, functools.partial):
        keywords = [(f"{k}=", v) for k, v in x.keywords.items()]
        return "partial(", [("", x.func), *(("", a) for a in x.args), *keywords], ")"
    return None


def _leaf(x: Any) -> str:
    if isinstance(x, types.FunctionType | types.BuiltinFunctionType):
        return f"<function {x.__name__}>"
    return repr(x)
