"""Source for TensorFlow whose sizes may be unknown until the program runs.

Written source reads sizes as numbers, `x.shape[0]`. In a graph with open sizes such a number is a tensor, and a number
computed from it has no dtype of its own, as a Python number has none.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


class Real:
    """A real number that depends on sizes. It takes the dtype of the tensor that it is combined with."""

    def __init__(self, value: Any) -> None:
        self.value: Any = tf.cast(value.value if isinstance(value, Real) else value, tf.float64)


tf.register_tensor_conversion_function(
    Real, lambda x, dtype=None, name=None, as_ref=False: tf.cast(x.value, dtype or tf.float32)
)


def symbolic(text: str) -> str:
    """Return source in which shapes and arithmetic are calls of the functions in `NAMES`."""
    return ast.unparse(ast.fix_missing_locations(_Symbolic().visit(ast.parse(text))))


class _Symbolic(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.arg:
        return node  # an annotation is no expression

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        returns, node.returns = node.returns, None
        self.generic_visit(node)
        node.returns = returns
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if f"_{node.attr}" in ("_broadcast_shapes", "_abs"):
            return ast.Name(f"_{node.attr}", ast.Load())
        return _call("_shape", node.value) if node.attr == "shape" else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        key = node.slice
        parts = ast.Tuple([_slice(k) for k in key.elts], ast.Load()) if isinstance(key, ast.Tuple) else _slice(key)
        return _call("_item", node.value, parts)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        return _call("_in", node.left, node.comparators[0]) if isinstance(node.ops[0], ast.In) else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        kind = type(node.op)
        return _call(f"_{kind.__name__}", node.left, node.right) if kind in _OPERATORS else node


def _slice(key: ast.expr) -> ast.expr:
    if not isinstance(key, ast.Slice):
        return key
    return _call("slice", *(ast.Constant(None) if k is None else k for k in (key.lower, key.upper, key.step)))


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [*args], [])


def _shape(x: Any) -> tuple[Any, ...]:
    """Return the extents of an array: numbers, and tensors of those that are unknown."""
    if not isinstance(x, tf.Tensor):
        return tuple(x.shape)
    unknown = tf.shape(x) if None in x.shape else None
    return tuple(unknown[i] if n is None else n for i, n in enumerate(x.shape))  # type: ignore[index]


def _in(x: Any, container: Any) -> bool:
    """Return `x in container`; extents that are unknown are taken to be others than any number."""
    if isinstance(container, tuple | list):
        return any(not isinstance(y, tf.Tensor) and x == y for y in container)
    return x in container


def _abs(x: Any) -> Any:
    """Return `tf.abs(x)`. LiteRT has none for integers."""
    return tf.maximum(x, -x) if x.dtype.is_integer else tf.abs(x)


def _item(x: Any, key: Any) -> Any:
    """Return `x[key]`. LiteRT has no slices of booleans, and none with new axes, where extents are unknown."""
    if not isinstance(x, tf.Tensor) or None not in x.shape:
        return x[key]
    keys = key if isinstance(key, tuple) else (key,)
    existing = [k for k in keys if k is not None]
    new, axis = [], 0
    for k in keys:
        if k is None:
            new.append(axis)
        axis += len(x.shape) - len(existing) + 1 if k is Ellipsis else k is None or isinstance(k, slice)
    if any(k is not Ellipsis and k != slice(None) for k in existing):
        x = tf.cast(tf.cast(x, tf.int32)[(*existing,)], tf.bool) if x.dtype == tf.bool else x[(*existing,)]
    for axis in new:
        x = tf.expand_dims(x, axis)
    return x


def _is_size(x: Any) -> bool:
    return isinstance(x, tf.Tensor) and x.dtype == tf.int32 and x.shape.rank == 0


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float | Real) or _is_size(x)


def _combined(fn: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Return `fn(a, b)`, where a number that depends on sizes has the dtype of the tensor beside it."""
    if not isinstance(a, Real | tf.Tensor) and not isinstance(b, Real | tf.Tensor):
        return fn(a, b)
    if _is_number(a) and _is_number(b):
        is_real = fn in (operator.truediv, operator.pow) or any(isinstance(x, Real | float) for x in (a, b))
        return Real(fn(Real(a).value, Real(b).value)) if is_real else fn(a, b)
    return fn(_as_dtype_of(b, a), _as_dtype_of(a, b))


def _as_dtype_of(tensor: Any, x: Any) -> Any:
    """Return a number that depends on sizes as a tensor of the dtype of another; other operands as they are."""
    if isinstance(tensor, tf.Tensor) and (isinstance(x, Real) or _is_size(x)):
        return tf.cast(x.value if isinstance(x, Real) else x, tensor.dtype)
    return x


def _extreme(of_numbers: Callable[..., Any], of_tensors: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def extreme(*values: Any, **options: Any) -> Any:
        if len(values) == 2 and any(isinstance(x, Real | tf.Tensor) for x in values):
            if any(isinstance(x, Real | float) for x in values):
                return Real(of_tensors(Real(values[0]).value, Real(values[1]).value))
            return of_tensors(*values)
        return of_numbers(*values, **options)

    return extreme


def _broadcast_shapes(*shapes: Sequence[Any]) -> tuple[Any, ...]:
    """Return the shape to which arrays are broadcast. Of two extents that are unknown, one may be 1."""
    reverse = itertools.zip_longest(*(reversed(s) for s in shapes), fillvalue=1)
    return tuple(_broadcast_extent([n for n in extents if not isinstance(n, int) or n != 1]) for extents in reverse)[
        ::-1
    ]


def _broadcast_extent(extents: list[Any]) -> Any:
    known = [n for n in extents if isinstance(n, int)]
    if known or not extents:
        return known[0] if known else 1
    result = extents[0]
    for n in extents[1:]:
        result = tf.maximum(result, n)
    return result


def real(x: Any = 0.0) -> Any:
    """Return `float(x)`; of a size, a number that depends on it."""
    return Real(x) if isinstance(x, Real) or _is_size(x) else float(x)


NAMES: dict[str, Any] = {
    "_shape": _shape,
    "_item": _item,
    "_in": _in,
    "_abs": _abs,
    "_broadcast_shapes": _broadcast_shapes,
    "float": real,
    "max": _extreme(max, tf.maximum),
    "min": _extreme(min, tf.minimum),
    **{f"_{kind.__name__}": lambda a, b, fn=fn: _combined(fn, a, b) for kind, fn in _OPERATORS.items()},
}
