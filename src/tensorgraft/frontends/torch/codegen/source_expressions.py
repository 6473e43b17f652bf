"""Names that the user's program gives to results, and their places, found by the expression that Python evaluates."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import NamedTuple

import torch

from tensorgraft.codegen.trace import SourceLine
from tensorgraft.compiled.source_location import Place
from tensorgraft.frontends.torch.core.source_location import in_library

_TORCH = os.path.dirname(torch.__file__) + os.sep
_LAYERS = os.path.join(_TORCH, "nn", "modules") + os.sep


class Spot(NamedTuple):
    """A position in the user's program, and the names that the program assigns to values computed there."""

    place: str
    names: tuple[str, ...]


NOWHERE = Spot("", ())
# calls the program: frames outside of it are not the program's
_TRACING = os.path.join(os.path.dirname(__file__), "tracing.py")
_WRITTEN = os.path.join(os.path.dirname(__file__), "multihead.py")  # a layer of PyTorch's, in words of our own
_known: dict[tuple[CodeType, int, bool], Spot] = {}


def spot() -> Spot:
    """Return the spot of the current call, with names only if the user's own code makes it, not a layer of PyTorch."""
    frame: FrameType | None = sys._getframe(1)
    in_layer, names = False, None
    while frame is not None and in_library(frame.f_code.co_filename):
        file = frame.f_code.co_filename
        if file == _WRITTEN and names is None:
            names = _spot(frame, False).names
        in_layer = in_layer or file.startswith(_LAYERS)
        frame = None if file == _TRACING else frame.f_back
    if frame is None:
        return NOWHERE if names is None else Spot("", names)
    call_spot = _spot(frame, in_layer)
    place = SourceLine.of([call_spot.place, *_callers(frame.f_back)])
    return Spot(place, call_spot.names if names is None else names)


def _callers(frame: FrameType | None) -> Iterator[str]:
    """Yield the lines of the program from a frame outwards."""
    while frame is not None and frame.f_code.co_filename != _TRACING:
        if not in_library(frame.f_code.co_filename):
            yield _spot(frame, False).place
        frame = frame.f_back


def _spot(frame: FrameType, in_layer: bool) -> Spot:
    key = frame.f_code, frame.f_lasti, in_layer
    known = _known.get(key)
    if known is None:
        location = Place(frame.f_code, frame.f_lasti)
        known = _known[key] = Spot(str(location), () if in_layer else _names(location.node))
    return known


def spot_of_call() -> Spot:
    """Return the spot of a call of a module."""
    return spot_of(sys._getframe(1))


def spot_of(frame: FrameType | None) -> Spot:
    """Return the spot of a call of a function, in the first of the program's frames from `frame` outwards."""
    while frame is not None and in_library(frame.f_code.co_filename):
        if frame.f_code.co_filename == _TRACING:
            return NOWHERE
        frame = frame.f_back
    return NOWHERE if frame is None else _spot(frame, False)


def _names(node: ast.AST | None) -> tuple[str, ...]:
    """Return the targets of the assignment whose whole right-hand side the expression is."""
    if node is None:
        return ()
    parent = getattr(node, "parent", None)
    while isinstance(parent, ast.IfExp) and node is not parent.test:
        node, parent = parent, getattr(parent, "parent", None)  # y = x if plain else f(x)
    outer = getattr(parent, "parent", None)
    if isinstance(parent, ast.Tuple) and isinstance(outer, ast.Assign) and outer.value is parent:
        target = outer.targets[0]  # q, k = rotate(q), rotate(k)
        if isinstance(target, ast.Tuple | ast.List) and len(target.elts) == len(parent.elts):
            at = target.elts[parent.elts.index(node)]  # type: ignore[arg-type]
            return tuple(_name(part) for part in (at.elts if isinstance(at, ast.Tuple | ast.List) else [at]))
        return ()
    if isinstance(node, ast.AugAssign):
        targets: list[ast.expr] = [node.target]
    elif isinstance(parent, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and parent.value is node:
        targets = [parent.target]
    elif isinstance(parent, ast.Assign) and parent.value is node:
        targets = parent.targets[:1]
    else:
        return ()
    (target,) = targets
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return tuple(_name(part) for part in parts)


def _name(target: ast.expr) -> str:
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Attribute):
        return target.attr
    return ""
