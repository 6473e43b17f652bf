"""Objects among the arguments of a compiled function (dataclasses, namespaces, objects of any class), whose contents
are leaves of the call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from tensorgraft.compiled.captured_objects import slots_of
from tensorgraft.compiled.function import Boxed, Expanded, Flattened
from tensorgraft.compiled.values import exact, is_plain

_MOST = 1024  # parts of one object


def expanding(
    flatten: Callable[[Any], Flattened],
    atoms: Collection[type],
    is_whole: Callable[[Any], bool],
    is_array: Callable[[Any], bool],
    part: Callable[[Any], Any] = lambda x: x,
) -> Callable[[Any], Flattened]:
    """Return a function that flattens arguments, including objects that contain arrays: the parts of objects follow the
    other leaves.

    Arguments:
        flatten: flattens containers.
        atoms: classes whose instances are leaves.
        is_whole: tells which objects are not entered.
        is_array: tells arrays.
        part: makes the leaf for a part that is no array.
    """

    def flatten_arguments(tree: Any) -> Flattened:
        leaves, structure = flatten(tree)
        parts: list[Any] = []
        objects = []
        for k, leaf in enumerate(leaves):
            if leaf.__class__ not in atoms and not is_whole(leaf) and not is_plain(leaf):
                members: list[Any] = []
                form = _form(leaf, members, {}, is_whole)
                if form is not None and (leaf.__class__.__hash__ is None or any(map(is_array, members))):
                    objects.append((k, form))
                    leaves[k] = Boxed(leaf)
                    parts += (x if is_array(x) else part(x) for x in members)
        if not objects:
            return leaves, structure
        return leaves + parts, Expanded(structure, len(leaves), tuple(objects))

    return flatten_arguments


def contents_in_key(x: Any, is_whole: Callable[[Any], bool]) -> set[int]:
    """Return the identities of an object among the arguments and of the objects in it whose contents are leaves of the
    call."""
    parts: list[Any] = []
    numbers: dict[int, int] = {}
    _form(x, parts, numbers, is_whole)
    return numbers.keys() - set(map(id, parts))


def _form(x: Any, parts: list[Any], numbers: dict[int, int], is_whole: Callable[[Any], bool]) -> Any:
    """Add the contents of an object to `parts`, and return its form: types, names of attributes, and keys. None for an
    object that is too large, or has keys that are no plain values."""
    if is_plain(x) or is_whole(x):
        parts.append(x)
        return "leaf"
    if id(x) in numbers:
        return "again", numbers[id(x)]
    numbers[id(x)] = len(numbers)
    if len(parts) > _MOST:
        return None
    kind = type(x)
    forms: list[Any] = []
    if isinstance(x, dict):
        if not all(map(is_plain, x)):
            return None
        forms.append(tuple(map(exact, x)))
        forms += (_form(v, parts, numbers, is_whole) for v in x.values())
    elif isinstance(x, list | tuple | deque):
        forms += (_form(v, parts, numbers, is_whole) for v in x)
    elif isinstance(x, set | frozenset):
        if not all(map(is_plain, x)):
            return None
        forms.append(frozenset(map(exact, x)))
    own = getattr(x, "__dict__", None)
    names = [*(own or ()), *(n for n in slots_of(kind) if hasattr(x, n))]
    if names:
        forms.append(tuple(names))
        forms += (_form(getattr(x, n), parts, numbers, is_whole) for n in names)
    elif not forms and not isinstance(x, dict | list | tuple | deque | set | frozenset):
        parts.append(x)
        return "leaf"
    return None if None in forms else (kind, *forms)
