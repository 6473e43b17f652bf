"""The containers around arrays, as data: a template is a nested tuple that is hashable, and JSON as it stands.

{"x": array, "n": 3}   <->   ("dict", (("n", ("int", "3")), ("x", ("array",))))  and  [array]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tensorgraft.hub.array import Array
from tensorgraft.hub.sparse_arrays import SparseArray

Template = tuple[Any, ...]

_ARRAY = ("array",)
_STATIC: dict[str, Callable[[str], Any]] = {
    "NoneType": lambda _: None,
    "bool": lambda s: s == "True",
    "int": int,
    "float": float,
    "complex": complex,
    "str": str,
}


def flatten(
    tree: Any, as_array: Callable[[Any], Array | SparseArray | None], label: str
) -> tuple[Template, list[Array]]:
    """Return (the template, the arrays in it). Named tuples are treated as tuples. `as_array` returns None for a leaf
    that is no array, and the parts of a sparse one.

    Raises TypeError for leaves that are neither arrays nor None, numbers or strings, and for keys that are no strings.
    """
    arrays: list[Array] = []

    def take(x: Any) -> Template:
        array = x if isinstance(x, SparseArray) else as_array(x)
        if array is not None and not isinstance(array, SparseArray):
            arrays.append(array)
            return _ARRAY
        if array is not None:
            return ("sparse", *map(take, array))
        if isinstance(x, tuple):
            return ("tuple", *[take(v) for v in x])
        if type(x) is list:
            return ("list", *[take(v) for v in x])
        if isinstance(x, dict):
            for key in x:
                if not isinstance(key, str):
                    raise TypeError(f"{label}: keys of dictionaries must be strings, got {key!r}")
            return ("dict", tuple((key, take(x[key])) for key in sorted(x)))
        kind = type(x).__name__
        if kind not in _STATIC or type(x).__module__ != "builtins":
            raise TypeError(
                f"{label}: expected arrays, None, numbers, strings, and tuples, lists and dictionaries of them, got a"
                f" {type(x).__module__}.{type(x).__qualname__}"
            )
        return kind, x if kind == "str" else repr(x)

    return take(tree), arrays


def unflatten(template: Template, arrays: Iterable[Any], sparse: Callable[..., Any] = SparseArray) -> Any:
    """Return the tree of a template, in which `sparse` makes sparse arrays of the fields of `SparseArray`. Raises
    ValueError for an invalid template."""
    remaining = iter(arrays)

    def build(t: Template) -> Any:
        if t == _ARRAY:
            for array in remaining:
                return array
            raise ValueError("there are fewer arrays than the structure has leaves")  # StopIteration would end `map`
        kind, *parts = t
        if kind == "tuple":
            return tuple(map(build, parts))
        if kind == "list":
            return list(map(build, parts))
        if kind == "dict":
            return {key: build(v) for key, v in parts[0]}
        if kind == "sparse":
            return sparse(*map(build, parts))
        if kind not in _STATIC:
            raise ValueError(f"{kind!r} is not a kind of container")
        return _STATIC[kind](parts[0])

    return build(template)


def from_json(data: Any) -> Any:
    """Lists as tuples."""
    return tuple(map(from_json, data)) if isinstance(data, list) else data


def template_text(template: Template, names: Iterator[str]) -> str:
    """Return a template as text for error messages: `names` are those of the arrays."""
    if template == _ARRAY:
        return next(names)
    kind, *parts = template
    if kind == "tuple":
        return f"({', '.join(template_text(t, names) for t in parts)}{',' * (len(parts) == 1)})"
    if kind == "list":
        return f"[{', '.join(template_text(t, names) for t in parts)}]"
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {template_text(t, names)}" for key, t in parts[0]) + "}"
    if kind == "sparse":
        layout, shape, _, (_, *arrays) = parts
        parts_text = ", ".join(template_text(t, names) for t in arrays)
        return f"sparse {unflatten(layout, ())} of shape {unflatten(shape, ())}: {parts_text}"
    return repr(unflatten(template, ()))
