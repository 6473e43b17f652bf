"""Attributes that subclasses have to have: `AbstractVar`, `AbstractClassVar`."""

from __future__ import annotations

import inspect
import re
import sys
import types
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

_T = TypeVar("_T")


class _Var:
    """`name: AbstractVar[type]` in a `Module`: subclasses are to have a field or a property of that name."""

    def __class_getitem__(cls, item: Any) -> types.GenericAlias:
        return types.GenericAlias(cls, (item,))


class _ClassVar(_Var):
    """`name: AbstractClassVar[type]` in a `Module`: subclasses are to have a class attribute of that name."""


if TYPE_CHECKING:
    AbstractVar = Annotated[_T, "AbstractVar"]
    AbstractClassVar = Annotated[_T, "AbstractClassVar"]
else:
    AbstractVar, AbstractClassVar = _Var, _ClassVar
    _Var.__name__ = _Var.__qualname__ = "AbstractVar"
    _ClassVar.__name__ = _ClassVar.__qualname__ = "AbstractClassVar"


_HEAD = re.compile(r"\s*([\w.]+)\s*\[")


def _kind(annotation: Any, module: str) -> type | None:
    """Return which of the two an annotation is, as an object or as text; None for any other."""
    if isinstance(annotation, str):
        head = _HEAD.match(annotation)
        if head is None:
            return None
        names = head.group(1).split(".")
        kind: Any = vars(sys.modules.get(module, types)).get(names[0])
        for name in names[1:]:
            kind = getattr(kind, name, None)
        if kind is None and names[-1] in ("AbstractVar", "AbstractClassVar"):  # imported where the class is, locally
            kind = _Var if names[-1] == "AbstractVar" else _ClassVar
    else:
        kind = getattr(annotation, "__origin__", None)
    return kind if isinstance(kind, type) and issubclass(kind, _Var) else None


def collect(cls: type) -> dict[str, type]:
    """Return the attributes that `cls` lacks; annotations that ask for some are taken off it, for they are no
    fields."""
    annotations = dict(inspect.get_annotations(cls))
    abstract = {name: kind for name, a in annotations.items() if (kind := _kind(a, cls.__module__)) is not None}
    if abstract:
        for name in abstract:
            if name in cls.__dict__:
                raise TypeError(
                    f"{cls.__qualname__}.{name} is declared abstract, but has a value: remove one of the two"
                )
            del annotations[name]
        cls.__annotations__ = annotations
    lacking: dict[str, type] = {}
    for base in reversed(cls.__mro__[1:]):
        lacking.update(base.__dict__.get("__abstract_asked__", {}))
    cls.__abstract_asked__ = abstract  # type: ignore[attr-defined]
    for base in reversed(cls.__mro__):
        annotated = annotations if base is cls else inspect.get_annotations(base)
        for name, kind in list(lacking.items()):
            inherited = base.__dict__.get("__abstract_asked__", {})
            if name in inherited:
                continue
            if name in base.__dict__ or (kind is _Var and name in annotated):
                del lacking[name]
    return {**lacking, **abstract}
