"""Errors for a program that reads a value while it is being traced.

The message begins with the program's line, followed by where the value became traced and by remedies for this kind of
read.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch

from tensorgraft.compiled.source_location import is_ours, place_of
from tensorgraft.compiled.traced_value_errors import Ways, in_extent, ways_out
from tensorgraft.errors import ShapeError, TracedValueError
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.located_errors import current_line, location_words
from tensorgraft.frontends.torch.core.source_location import program_frame, program_place, source_line
from tensorgraft.frontends.torch.core.tensors import cell_of

Tensor = torch.Tensor

CONDITION: Ways = (
    ("choose by value", "torch.where(condition, a, b)"),
    ("branch by value", "torch.cond(condition, f, g, operands)"),
    ("decide outside", "before the call, and pass a Python bool: either way is compiled"),
)
LOOP: Ways = (
    ("bound and mask", "for i in range(most): x = torch.where(i < n, step(x), x)"),
    ("loop by value", "torch.while_loop(condition, body, operands)"),
    ("decide outside", "before the call, and pass a Python int: each value is compiled"),
)
NUMBER: Ways = (
    ("stay a tensor", "use the tensor itself instead of its value"),
    ("look at it later", "return it, and call .item() outside"),
    ("know it before", "pass it as a Python number: each value is compiled"),
)
MOVED: Ways = (
    ("stay on the device", "use the tensor itself instead of its values"),
    ("look at it later", "return it, and take it to the host outside"),
)
SIZE: Ways = (
    ("keep the shape", "torch.where(mask, x, 0), or multiply by the mask"),
    ("bound and mask", "a size that is always enough, and a mask of what counts"),
    ("do it outside", "before the call, and pass the result"),
)
EXTENT: Ways = (
    ("keep it static", "Python ints, with min and max: each value is compiled"),
    ("bound and mask", "a size n that is always enough, and torch.arange(n) < k"),
)


def asked_for_value(x: Tensor) -> TracedValueError:
    """Return the error for `bool(x)`, `if x:`, `int(x)`; ShapeError for counts, extents and slice bounds."""
    text = source_line(program_place())
    problem = f"needs the value of a {_name(x)} now"
    if text.startswith(("for ", "while ")) and x.dtype is not torch.bool:
        return _error(problem, [x], LOOP, ShapeError)
    if x.dtype is torch.bool or text.startswith(("if ", "elif ", "while ", "assert ")):
        return _error(problem, [x], CONDITION)
    frame = program_frame()
    if frame is not None and in_extent(place_of(frame).node):
        return _error(problem, [x], EXTENT, ShapeError)
    return _error(problem, [x], NUMBER)


def asked_for_values(x: Tensor) -> TracedValueError:
    """Return the error for `.cpu()`, `.tolist()` and whatever else takes all values to the host."""
    return _error(f"takes the values of a {_name(x)} to the host", [x], MOVED)


def unraised(x: Tensor) -> bool | None:
    """Return the truth value of `x` with which a check in PyTorch's own code raises no error, since a compiled function
    cannot raise there. Return None if the value is used otherwise."""
    if x.dtype is not torch.bool:
        return None
    if state.now.unraised is not None:
        return state.now.unraised
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (is_ours(frame.f_code.co_filename) or frame.f_code.co_filename.startswith(_PLUMBING)):
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.startswith(_PYTORCH) or _CHECKERS in frame.f_code.co_filename:
        return None
    node: Any = place_of(frame).node
    answer = True  # the value of this part for which the whole condition is True
    while not isinstance(node, ast.If | ast.Assert):
        parent = getattr(node, "parent", None)
        if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
            answer = not answer
        elif isinstance(parent, ast.If | ast.Assert):
            if node is not parent.test:
                return None
        elif not isinstance(parent, ast.BoolOp | ast.Call | ast.Attribute):
            return None
        node = parent
    if node is place_of(frame).node:  # the last part of a condition may have the location of the whole
        signs = _signs(node.test, True)
        if len(signs) > 1:
            return None
        (answer,) = signs
    if isinstance(node, ast.Assert):
        return answer
    constraint = frame.f_code.co_filename.endswith(_CONSTRAINTS) and _only_says(node.body)
    raises = constraint or _only_raises(node.body), _only_raises(node.orelse)
    return None if raises[0] == raises[1] else answer is raises[1]


def _signs(condition: ast.expr, sign: bool) -> set[bool]:
    """Return the truths that the parts of a condition have where all of it is `sign`."""
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        return _signs(condition.operand, not sign)
    if isinstance(condition, ast.BoolOp):
        return set().union(*(_signs(part, sign) for part in condition.values))
    return {sign}


def _only_raises(body: Sequence[ast.stmt]) -> bool:
    simple = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)
    return bool(body) and isinstance(body[-1], ast.Raise) and all(isinstance(line, simple) for line in body[:-1])


def _only_says(body: Sequence[ast.stmt]) -> bool:
    """Return whether a part of a constraint of `torch.distributions` only hands on that it does not hold."""
    return len(body) == 1 and isinstance(body[0], ast.Return) and isinstance(body[0].value, ast.Name)


_PYTORCH = os.path.dirname(torch.__file__) + os.sep
_PLUMBING = tuple(
    _PYTORCH + name
    for name in ("_ops.py", "overrides.py", "_tensor.py", "_compile.py", "_dynamo" + os.sep, "utils" + os.sep)
)
_CONSTRAINTS = os.path.join("distributions", "constraints.py")
_CHECKERS = os.sep + "testing" + os.sep  # `assert_close` reads values on behalf of its caller


def asked_for_shape(operator: str, tensors: Sequence[Tensor]) -> ShapeError:
    """Return the error for operators whose results have data-dependent shapes."""
    tensors = sorted(tensors, key=lambda t: t.dtype is not torch.bool)  # a mask is what decides
    name = operator.partition(".")[0].lstrip("_")
    problem = f"needs the values of a {_name(tensors[0])} now, for the shape of {name}()"
    return _error(problem, tensors, SIZE, ShapeError)


def _error(problem: str, tensors: Sequence[Tensor], remedies: Ways, kind: type[Any] = TracedValueError) -> Any:
    lines = [f"{current_line()} {problem}."]
    origin = next(filter(None, map(_origin, tensors)), None)
    if origin is not None:
        lines.append(f"  {origin}")
    lines.append("Inside a compiled function a tensor has no value yet.")
    return kind("\n".join([*lines, *ways_out(remedies)]))


def _name(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} tensor of shape {tuple(x.shape)}"


def _origin(x: Tensor) -> str | None:
    capture = state.now.capture
    cell = cell_of(x)
    if capture is None or cell.capture is not capture:
        return None
    location = capture.origins.get(id(cell))
    if location is None:
        return "It is an argument of the function, or a tensor from outside."
    return f"It became traced in {location_words(location)}"
