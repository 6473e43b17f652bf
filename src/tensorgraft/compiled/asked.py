"""What to say where a program needs the value of an array that is only being traced.

First what the program calls and what that needs, then where the array became traced, then ways out that fit this
program: of the errors `ShapeError` for shapes, extents, bounds of slices and counts, else `TracedValueError`. What is
said depends on the program's source alone, so it is the same on every backend.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

from tensorgraft.compiled import ways
from tensorgraft.compiled.places import Place, is_ours, place_of, spelled
from tensorgraft.errors import ShapeError, TracedValueError

_LONG = 60


class TracedArray(NamedTuple):
    """An array that is only being traced, of this or another front end."""

    value: Any  # as the program holds it
    dtype: Any
    shape: tuple[int, ...]
    origin: Any  # where it became traced: a place, or (its role, the function), None where that is not known
    elsewhere: bool  # it is not on the device of arrays that are made without `device=`
    trace: str  # what traces


def value_needed(frame: FrameType | None, x: TracedArray, how: str) -> TracedValueError:
    """For Python's own questions: `bool(x)`, `if x:`, `int(x)`, `x.item()`, `range(x)`, `values[:x]`. `how`: bool,
    index (what is counted, or an extent), or any other word for a number. `frame`: of the program, which asks."""
    node = None if frame is None else place_of(frame).node
    if how == "bool":
        call, test = _condition(node)
        expression = _text(frame, test) if test is not None else ways.UNSEEN
        truth = expression if x.dtype == bool or test is None else f"{expression} != 0"
        found = ways.of_condition(frame, node, truth)
        return _error(TracedValueError, _text(frame, call), "its condition", expression, x, found)
    if isinstance(node, ast.Subscript):
        part = _asked_in(frame, node.slice, x)
        expression = _text(frame, part) if part is not None else "the index"
        known = static(frame, x)
        found = ways.of_slice(frame, node, part, expression, known)
        return _error(ShapeError, _text(frame, node), expression, expression, x, found, known)
    part = _asked_in(frame, node, x)
    expression = _text(frame, part) if part is not None else "its argument"
    if how == "index":
        known = static(frame, x)
        found = ways.of_count(node, expression, known)
        return _error(ShapeError, _text(frame, node), expression, expression, x, found, known)
    if how in ("int", "item") and ways.in_extent(node):
        known = static(frame, x)
        found = ways.of_extent(expression, known)
        return _error(ShapeError, _text(frame, node), f"the value of {expression}", expression, x, found, known)
    return _error(TracedValueError, _text(frame, node), f"the value of {expression}", expression, x, ways.of_number())


def shape_needed(frame: FrameType | None, name: str, shape: Any, x: TracedArray) -> ShapeError:
    """For `name(shape=...)`, of which `x` is an extent."""
    place = None if frame is None else place_of(frame)
    node: Any = None if place is None else place.node
    if not isinstance(node, ast.Call) or ways.short_name(node.func) != name:
        node = None  # what was called is ours, by way of another function of ours
    given = shape if isinstance(shape, tuple | list) else (shape,)
    at = next(i for i, n in enumerate(given) if n is x.value)
    literal = _literal(frame, node, given, at) if isinstance(shape, tuple | list) else None
    if literal is not None:
        expression, shown = _text(frame, literal.elts[at]), _text(frame, literal)
    else:
        whole = frame and spelled(frame, place and place.node, shape)
        expression = (frame and spelled(frame, place and place.node, x.value)) or (
            f"{whole or 'shape'}[{at}]" if shape is not x.value else "the size"
        )
        inside = ", ".join(expression if n is x.value else str(n) for n in given)
        shown = f"({inside})" if isinstance(shape, tuple | list) and len(given) > 1 else inside
    known = static(frame, x)
    found = ways.of_shape(frame, node, literal, at, len(given), expression, known)
    call = f"{name}(shape={shown})" if node is None or name in ways.OF_SHAPE else _text(frame, node)
    return _error(ShapeError, call, expression, expression, x, found, known)


def result_shape_needed(frame: FrameType | None, x: TracedArray, more: Sequence[tuple[str, str]] = ()) -> ShapeError:
    """For what has as many elements as the values of `x` say: masks as indices, `nonzero`, the functions of sets.
    `more` ways out."""
    node = None if frame is None else place_of(frame).node
    part = _asked_in(frame, node.slice if isinstance(node, ast.Subscript) else node, x)
    expression = _text(frame, part) if part is not None else "its argument"
    return _error(
        ShapeError,
        _text(frame, node),
        f"the values of {expression}",
        expression,
        x,
        [*more, *ways.of_result(frame, node, expression)],
        for_what=", for the shape of its result",
    )


# ---- the message -----------------------------------------------------------------------------------------------------


def _error(
    kind: type[Any], call: str, needs: str, expression: str, x: TracedArray, found: Sequence[tuple[str, str]],
    known: ways.Static | None = None, for_what: str = "",
) -> Any:  # fmt: skip
    what = f"{x.dtype} scalar" if not x.shape else f"{x.dtype} array of shape {x.shape}"
    lines = [f"{call or 'this line'} needs {needs} now{for_what}, but {expression} is a traced {what}."]
    lines += _origin(x, expression)
    lines.append(f"Inside {x.trace} an array has no value yet.")
    width = max((len(label) for label, _ in found), default=0) + 5
    lines += [f"  {label + ':':<{width}}{way}" for label, way in found]
    if (note := known.note() if known is not None else None) is not None:
        lines.append(note)
    return kind("\n".join(lines[:10]))


def _origin(x: TracedArray, expression: str) -> list[str]:
    """Where the array became traced."""
    origin = x.origin
    if isinstance(origin, Place):
        how = ways.operation(origin.node)
        return [f"  {expression} became traced in {how}        {origin.text}       {origin}   <- here"]
    if origin is None:
        return []
    role, fn = origin
    for _ in range(16):  # partial functions, methods, decorated ones
        fn = getattr(fn, "__wrapped__", getattr(fn, "func", getattr(fn, "__func__", fn)))
    code = getattr(fn, "__code__", getattr(vars(type(fn)).get("__call__"), "__code__", None))
    said = f"  {expression} became traced as {role} {getattr(fn, '__name__', type(fn).__name__)}"
    if code is None or is_ours(code.co_filename):
        return [said]
    return [f"{said}        {ways.definition(code)}       {os.path.basename(code.co_filename)}:"
            f"{ways.definition_line(code)}   <- here"]  # fmt: skip


def static(frame: FrameType | None, x: TracedArray) -> ways.Static:
    """How the value of `x` could be known while tracing, going by what made it."""
    origin = x.origin
    if not isinstance(origin, Place):
        return ways.Static(None, argument=origin is not None, elsewhere=x.elsewhere)
    values = {} if frame is None else frame.f_locals
    ints = [name for name, v in values.items() if isinstance(v, int) or (type(v) is type(x.value) and v.ndim > 0)]
    return ways.Static(ways.in_python(origin.node), argument=False, ints=tuple(ints), elsewhere=x.elsewhere)


# ---- what was asked --------------------------------------------------------------------------------------------------


def _text(frame: FrameType | None, node: ast.AST | None) -> str:
    text = "" if node is None else ways.source(frame, node)
    return text if len(text) <= _LONG else text[: _LONG - 3] + "..."


def _condition(node: Any) -> tuple[ast.AST | None, ast.AST | None]:
    """(what decides, its condition) of the expression whose truth is asked for."""
    if node is None or isinstance(node, ast.Constant):  # as in `case 1:`
        return None, None
    if isinstance(node, ast.If | ast.While | ast.Assert | ast.IfExp):
        return node, node.test
    if isinstance(node, ast.UnaryOp):
        return node, node.operand
    if isinstance(node, ast.BoolOp):
        return node, node.values[0]
    if isinstance(node, ast.Call):
        return node, node.args[0] if ways.short_name(node.func) == "bool" and node.args else None
    outer = getattr(node, "parent", None)
    while isinstance(outer, ast.BoolOp):
        outer = outer.parent  # type: ignore[attr-defined]
    return (outer, node) if isinstance(outer, ast.If | ast.While | ast.Assert | ast.IfExp) else (node, node)


def _asked_in(frame: FrameType | None, node: Any, x: TracedArray) -> ast.AST | None:
    """The part of an expression whose value is asked for."""
    if frame is None or node is None:
        return None
    name = spelled(frame, node, x.value)
    if name is not None:
        return ast.Name(name)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and not node.args:  # x.item()
            return node.func.value
        given = [*node.args, *(k.value for k in node.keywords)]
        return given[0] if len(given) == 1 else None
    if isinstance(node, ast.Slice):
        bounds = [b for b in (node.lower, node.upper, node.step) if b is not None and not isinstance(b, ast.Constant)]
        return bounds[0] if len(bounds) == 1 else None
    return node if isinstance(node, ast.expr) and not isinstance(node, ast.Tuple) else None


def _literal(frame: FrameType | None, node: Any, given: Sequence[Any], at: int) -> Any:
    """The tuple that a call is given for a shape, where it is written there."""
    if node is None:
        return None
    parts = [p for p in (*node.args, *(k.value for k in node.keywords)) if isinstance(p, ast.Tuple | ast.List)]
    parts = [p for p in parts if len(p.elts) == len(given) and not isinstance(p.elts[at], ast.Constant)]
    named = [p for p in parts if frame is not None and spelled(frame, p.elts[at], given[at]) is not None]
    return next(iter(named or parts), None)
