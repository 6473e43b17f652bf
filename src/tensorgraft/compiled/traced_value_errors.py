"""Errors for a program that needs the value of an array which is only being traced.

A message has the program's line and what it needs, then where the array became traced, then ways out with the program's
own names. For shapes, extents, bounds of slices and counts the error is a `ShapeError`, else a `TracedValueError`.
Messages depend on the program's source alone, so they are the same on every backend.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

from tensorgraft.compiled.source_location import Place, expression_of, is_ours, place_of
from tensorgraft.errors import ShapeError, TracedValueError

Ways = Sequence[tuple[str, str]]  # (what to do, how)

_LONG = 60
_BOUND = ("bound and mask", "a size n that is always enough, and a mask of what counts: arange(n) < {}")
_DECIDING = (ast.If, ast.While, ast.Assert, ast.IfExp)
_OF_PYTHON = {"max": "maximum", "min": "minimum", "all": "array_api.all", "any": "array_api.any"}
_OF_NUMBER: Ways = (
    ("stay an array", "use the array itself instead of its value"),
    ("look at it later", "return it, and read its value outside"),
    ("know it before", "pass it as a Python number: each value is compiled"),
)
_NO_VALUE = "an array has no value yet"
_OF_DERIVATIVE: Ways = (
    ("look at it later", "return it beside the value (has_aux=True), and read its values outside"),
    ("a derivative of zero", "tg.transforms.custom_vjp(f) with a rule, where f needs the values"),
)
# functions of PyTorch and of arrays that take extents as ints
_OF_EXTENTS = {
    "arange", "bernoulli", "bits", "broadcast_to", "categorical", "empty", "expand", "exponential", "eye", "fori_loop",
    "full", "gumbel", "linspace", "narrow", "new_empty", "new_full", "new_ones", "new_zeros", "normal", "ones",
    "permutation", "rademacher", "rand", "randint", "randn", "randperm", "range", "repeat", "reshape", "split", "tile",
    "truncated_normal", "unflatten", "uniform", "view", "zeros",
}  # fmt: skip


class TracedArray(NamedTuple):
    """An array that is only being traced, of this or another front end."""

    value: Any  # the value in the program
    dtype: Any
    shape: tuple[int, ...]
    origin: Any  # where it became traced: a location, or (its role, the function); None if that is not known
    trace: str  # the name of the transform


def value_needed(frame: FrameType | None, x: TracedArray, conversion: str) -> TracedValueError:
    """Return the error for Python's own questions: `bool(x)`, `if x:`, `int(x)`, `x.item()`, `range(x)`, `values[:x]`.
    `conversion`: bool, index (what is counted, or an extent), or any other word for a number. `frame`: the program's
    that asks."""
    node = _node(frame)
    if conversion == "bool":
        decides, test = _condition(node, frame is not None and place_of(frame).calls)
        name = "what decides" if test is None else _text(test)
        return _error(TracedValueError, frame, "its condition now", name, x, _of_condition(decides, test, name, x))
    if isinstance(node, ast.Subscript):
        name = _needed_expression(frame, node.slice, x, "the index")
        return _error(ShapeError, frame, f"{name} now", name, x, [_static(name, x), _of_slice(node, name)])
    name = _needed_expression(frame, node, x, "its argument")
    if conversion == "index" and short_name(node) == "range":
        start = _text(node.args[0]) if len(node.args) > 1 else "0"
        loops = [
            ("loop by value", f"tg.transforms.fori_loop({start}, {name}, step, state)"),
            ("bound and mask", f"for i in range(n): state = where(i < {name}, step(i, state), state)"),
        ]
        return _error(ShapeError, frame, f"{name} now", name, x, [_static(name, x), *loops])
    if conversion == "index" or in_extent(node):
        needs = f"{name} now" if conversion == "index" else f"the value of {name} now"
        return _error(ShapeError, frame, needs, name, x, [_static(name, x), _bound(name)])
    return _error(TracedValueError, frame, f"the value of {name} now", name, x, _OF_NUMBER)


def derivative_lost(frame: FrameType | None, x: TracedArray, conversion: str) -> TracedValueError:
    """Return the error for an array that is differentiated, where its values alone (`conversion`: float, tolist,
    __array__) would have a derivative of zero."""
    node = _node(frame)
    name = _needed_expression(frame, node, x, "its argument")
    fixes = [("stay an array", "use functions of tensorgraft.array_api"), *_OF_DERIVATIVE]
    needs = f"the values of {name} now ({conversion})"
    return _error(TracedValueError, frame, needs, name, x, fixes, "they would have no derivative, and it would be zero")


def shape_needed(frame: FrameType | None, name: str, shape: Any, x: TracedArray) -> ShapeError:
    """Return the error for `name(shape=...)`, of which `x` is an extent."""
    node, is_sequence = _node(frame), isinstance(shape, tuple | list)
    at = next(i for i, n in enumerate(shape) if n is x.value) if is_sequence else 0
    shape_text = (frame and expression_of(frame, node, shape)) or "shape"
    extent = (frame and expression_of(frame, node, x.value)) or (f"{shape_text}[{at}]" if is_sequence else "the size")
    needs = f"{extent} now, for the shape of {name}()"
    return _error(ShapeError, frame, needs, extent, x, [_static(extent, x), _bound(extent)])


def result_shape_needed(frame: FrameType | None, x: TracedArray, extra_remedies: Ways = ()) -> ShapeError:
    """Return the error for a result with as many elements as the values of `x` say: masks as indices, `nonzero`, the
    functions of sets. `extra_remedies`: further ways out."""
    node = _node(frame)
    name = _needed_expression(frame, node.slice if isinstance(node, ast.Subscript) else node, x, "its argument")
    suggestion = "a mask of what counts, instead of positions"
    if isinstance(node, ast.Subscript):
        suggestion = f"where({name}, {_text(node.value)}, 0)"
    remedies = [
        *extra_remedies,
        ("keep the shape", suggestion),
        ("do it outside", "before the call, and pass the result"),
    ]
    return _error(ShapeError, frame, f"the values of {name} now, for the shape of its result", name, x, remedies)


def in_extent(node: Any) -> bool:
    """Return True if an expression is, or is part of, a shape, a count or a bound of a slice."""
    while isinstance(node, ast.expr | ast.keyword | ast.Slice):
        if isinstance(node, ast.Slice) or (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)):
            return True
        if short_name(node) in _OF_EXTENTS:
            return True
        node = getattr(node, "parent", None)
    return False


def ways_out(remedies: Ways) -> list[str]:
    """Return the lines that end a message."""
    width = max((len(label) for label, _ in remedies), default=0) + 2
    return [f"  {label + ':':<{width}} {remedy}" for label, remedy in remedies]


# ---- the message -----------------------------------------------------------------------------------------------------


def _error(
    kind: type[Any],
    frame: FrameType | None,
    needs: str,
    name: str,
    x: TracedArray,
    remedies: Ways,
    reason: str = _NO_VALUE,
) -> Any:
    location = None if frame is None else place_of(frame)
    at = "This line" if location is None else location.quoted
    description = f"{x.dtype} scalar" if not x.shape else f"{x.dtype} array of shape {x.shape}"
    lines = [f"{at} needs {needs}, but {name} is a traced {description}."]
    if (origin := _origin(x.origin)) is not None:
        lines.append(f"  {name} became traced {origin}")
    lines += [f"Inside {x.trace} {reason}.", *ways_out(remedies)]
    return kind("\n".join(lines[:10]))


def _origin(origin: Any) -> str | None:
    """Return in words where an array became traced; None where that is not known."""
    if origin is None or isinstance(origin, Place):
        return None if origin is None else f"in {origin.quoted}"
    role, fn = origin
    for _ in range(16):  # partial functions, methods, decorated ones
        fn = getattr(fn, "__wrapped__", getattr(fn, "func", getattr(fn, "__func__", fn)))
    code = getattr(fn, "__code__", getattr(vars(type(fn)).get("__call__"), "__code__", None))
    origin_text = f"as {role} {getattr(fn, '__name__', type(fn).__name__)}"
    if code is None or is_ours(code.co_filename):
        return origin_text
    return f"{origin_text}, {os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def _static(name: str, x: TracedArray) -> tuple[str, str]:
    if isinstance(x.origin, tuple) and not isinstance(x.origin, Place):
        return "keep it static", f"pass {name} as a Python int: each value is compiled"
    return "keep it static", f"make {name} of Python ints, with min and max, and pass those: each value is compiled"


def _bound(name: str) -> tuple[str, str]:
    return _BOUND[0], _BOUND[1].format(name)


def _of_slice(node: ast.Subscript, name: str) -> tuple[str, str]:
    """Return the advice for `x[:k]` and the like: (what to do, how)."""
    text, axis, bounds = _text(node.value), 0, node.slice
    if isinstance(bounds, ast.Tuple):
        axis = next((i for i, b in enumerate(bounds.elts) if _mentions(b, name)), 0)
        bounds = bounds.elts[axis]
    if not isinstance(bounds, ast.Slice) or bounds.step is not None:
        return "stay an array", f"take({text}, {name}, axis={axis})"
    if bounds.lower is not None and bounds.upper is not None:
        return "keep the length", f"take({text}, {_text(bounds.lower)} + arange(length), axis={axis})"
    relation = "<" if bounds.upper is not None else ">="
    return "bound and mask", f"by axis {axis}: {text} * (arange({text}.shape[{axis}]) {relation} {name})"


def _of_condition(decides: Any, test: Any, name: str, x: TracedArray) -> Ways:
    predicate = name if x.dtype == bool or test is None else f"{name} != 0"
    outer = decides
    while outer is not None and not isinstance(outer, ast.stmt):
        outer = getattr(outer, "parent", None)
    if isinstance(outer, ast.Assert):
        return [("check it later", f"x = tg.transforms.error_if(x, ~({predicate}), message)")]
    if isinstance(outer, ast.While) and any(part is decides for part in (outer, *ast.walk(outer.test))):
        return [
            ("loop by value", "tg.transforms.while_loop(condition, step, state)"),
            ("bound and mask", f"for _ in range(n): state = where({predicate}, step(state), state)"),
        ]
    if (of_arrays := _OF_PYTHON.get(short_name(decides))) is not None:
        arguments = ", ".join(map(_text, decides.args))
        return [
            ("stay an array", f"{of_arrays}({arguments})"),
            ("keep it static", f"{_text(decides)} of Python numbers"),
        ]
    if test is None:
        return [("stay an array", "functions of array_api instead of Python's")]
    return [
        ("choose by value", f"where({predicate}, a, b)"),
        ("branch by value", f"tg.transforms.cond({predicate}, f, g, *operands)"),
        ("decide outside", "pass a Python bool: each is compiled"),
    ]


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(part, ast.expr) and _text(part) == name for part in ast.walk(node))


# ---- what was asked --------------------------------------------------------------------------------------------------


def _node(frame: FrameType | None) -> Any:
    return None if frame is None else place_of(frame).node


def _text(node: ast.AST) -> str:
    text = ast.unparse(node).partition("\n")[0]
    return text if len(text) <= _LONG else text[: _LONG - 3] + "..."


def short_name(node: Any) -> str:
    """Return the last name of the function that is called."""
    function_node = node.func if isinstance(node, ast.Call) else None
    return (
        function_node.attr
        if isinstance(function_node, ast.Attribute)
        else function_node.id
        if isinstance(function_node, ast.Name)
        else ""
    )


def _condition(node: Any, is_call: bool) -> tuple[Any, Any]:
    """Return (the deciding value, the condition) of the expression whose truth value is needed; for `bool`, `all` and
    `any` the expression is their argument."""
    if node is None or isinstance(node, ast.Constant):  # such as in `case 1:`
        return None, None
    if isinstance(node, _DECIDING):
        return node, node.test
    if isinstance(node, ast.Call) and is_call:
        return node, node.args[0] if short_name(node) == "bool" and node.args else None
    value = node.operand if isinstance(node, ast.UnaryOp) else node.values[0] if isinstance(node, ast.BoolOp) else node
    outer = node
    while isinstance(outer, ast.BoolOp | ast.UnaryOp) or outer is node:
        outer = getattr(outer, "parent", None)
    return (outer if isinstance(outer, _DECIDING) else node), value


def _needed_expression(frame: FrameType | None, node: Any, x: TracedArray, unnamed: str) -> str:
    """Return the part of an expression whose value is needed."""
    if frame is None or node is None:
        return unnamed
    if (name := expression_of(frame, node, x.value)) is not None:
        return name
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and not node.args:  # x.item()
            return _text(node.func.value)
        parts: list[ast.AST] = [*node.args, *(k.value for k in node.keywords)]
    elif isinstance(node, ast.Slice):
        parts = [b for b in (node.lower, node.upper, node.step) if b is not None and not isinstance(b, ast.Constant)]
    else:
        parts = [node] if isinstance(node, ast.expr) and not isinstance(node, ast.Tuple) else []
    return _text(parts[0]) if len(parts) == 1 else unnamed
