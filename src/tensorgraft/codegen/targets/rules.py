"""Rules that targets share: infix signs, indexing by slices, products as `@` and `einsum`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tensorgraft.codegen.output import expressions
from tensorgraft.codegen.structure.size_merging import equal_sizes, joined, values_of
from tensorgraft.codegen.targets import Rule, Var, Writing
from tensorgraft.hub import dtypes

INFIX = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "remainder": "%", "bitwise_and": "&",
    "bitwise_or": "|", "bitwise_xor": "^", "logical_and": "&", "logical_or": "|", "logical_xor": "^", "equal": "==",
    "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}  # fmt: skip
NUMPY_NAMES = {  # names of functions of one array that differ from the hub's
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan", "atanh": "arctanh",
}  # fmt: skip
UNARY = ("abs", "sign", "cos", "cosh", "sin", "sinh", "tan", "tanh", "exp", "exp2", "expm1", "log", "log1p", "log2",
         "log10", "sqrt", "square", "cbrt", "ceil", "floor", "trunc", "isnan", "isinf", "isfinite",
         "signbit")  # fmt: skip
NARROW_INTEGERS = tuple(t for t in dtypes.INTEGER if t.itemsize < 8)


def infix() -> dict[str, Rule]:
    return {
        name: _of_bool(name, sign) if name in ("add", "multiply") else f"x {sign} y" for name, sign in INFIX.items()
    }


def _of_bool(name: str, sign: str) -> Rule:
    """Return the rule for `add` or `multiply`: a sum of bool is an or, a product an and."""
    logical = "x | y" if name == "add" else "x & y"
    return lambda w, x, y: w.fill(logical if dtype_of(x, y) == np.bool_ else f"x {sign} y", x=x, y=y)


def dtype_of(*operands: Any) -> np.dtype:
    """Return the dtype of the first array among the operands."""
    return next(x.dtype for x in operands if isinstance(x, Var))


def arrays(tree: Any) -> Iterator[Var]:
    """Yield the arrays in tuples, lists and dictionaries."""
    if isinstance(tree, Var):
        yield tree
    elif isinstance(tree, tuple | list | dict):
        for x in tree.values() if isinstance(tree, dict) else tree:
            yield from arrays(x)


def mapped(fn: Callable[[Any], Any], tree: Any) -> Any:
    return type(tree)([mapped(fn, x) for x in tree]) if isinstance(tree, tuple | list) else fn(tree)


def plus(*numbers: Any) -> Any:
    """Return the sum of sizes, at every size of the program."""
    n = max((len(x.values) for x in numbers if hasattr(x, "values")), default=1)
    return joined([sum(at) for at in zip(*(values_of(x, n) for x in numbers), strict=True)])


def axes_of(x: Var, axis: Any) -> tuple[int, ...]:
    """Axes that are not negative."""
    if axis is None:
        return tuple(range(x.ndim))
    return tuple(a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis))


def unpacked(node: ast.expr) -> ast.expr:
    """Rewrite `x.reshape((a, b))` to `x.reshape(a, b)`."""
    assert isinstance(node, ast.Call)
    if len(node.args) == 1 and isinstance(node.args[0], ast.Tuple) and node.args[0].elts:
        node.args = node.args[0].elts
    return node


def unpacked_arguments(template: str) -> Rule:
    """Make a rule from the template of a method call whose only argument is a tuple, which is written as several
    arguments."""

    def rule(w: Writing, **arguments: Any) -> ast.expr:
        return unpacked(w.fill(template, **arguments))

    return rule


def pad(template: str) -> Rule:
    """Make a rule from a template with `widths`, (before, after) for each axis, for the word's `pads` of the last
    axes."""

    def rule(w: Writing, x: Var, pads: Any) -> ast.expr:
        return w.fill(template, x=x, widths=(*((0, 0) for _ in range(x.ndim - len(pads))), *map(tuple, pads)))

    return rule


def minus(number: Any, *subtrahends: Any) -> Any:
    """Return the difference of sizes, at every size of the program."""
    n = max((len(x.values) for x in (number, *subtrahends) if hasattr(x, "values")), default=1)
    rows = zip(*(values_of(x, n) for x in (number, *subtrahends)), strict=True)
    return joined([a - sum(rest) for a, *rest in rows])


# ---- indexing --------------------------------------------------------------------------------------------------------


def indexed(w: Writing, x: Any, index: Sequence[Any]) -> ast.expr:
    """Return the expression `x[index]`, without trailing full slices (which count if an Ellipsis comes before them)."""
    index = list(index)
    while index and index[-1] == slice(None) and not any(i is Ellipsis for i in index):
        index.pop()
    if not index:
        return w(x)
    parts = [slice_expression(w, i) if isinstance(i, slice) else w(i) for i in index]
    value = parts[0] if len(parts) == 1 else ast.Tuple(parts, ast.Load())
    return ast.Subscript(w(x), value, ast.Load())


def slice_expression(w: Writing, s: slice) -> ast.expr:
    return ast.Slice(*(None if v is None else w(v) for v in (s.start, s.stop, s.step)))


def slice_of(n: Any, start: Any, stop: Any, step: Any = 1) -> slice:
    """Return `start:stop:step` for an axis of `n` elements, in its shortest form."""
    return slice(
        None if equal_sizes(start, 0) else start,
        None if equal_sizes(stop, n) else stop,
        None if equal_sizes(step, 1) else step,
    )


def last_first(x: Var, index: list[Any]) -> list[Any]:
    """Rewrite `x[:, :, :, 1:]` to `x[..., 1:]`."""
    lead = 0
    while lead < len(index) and index[lead] == slice(None):
        lead += 1
    is_last_only = len(index) == x.ndim and index[-1:] != [slice(None)]
    return [Ellipsis, *index[lead:]] if lead > 1 and is_last_only else index


def slice_(w: Writing, x: Var, start: Any, stop: Any, step: Any) -> ast.expr:
    return indexed(
        w, x, last_first(x, [slice_of(n, a, b, c) for n, a, b, c in zip(x.shape, start, stop, step, strict=True)])
    )


def region(x: Var, update: Var, start: Any, step: Any) -> list[Any]:
    """Return the index at which `slice_update` writes."""
    index = []
    for n, m, a, by in zip(x.shape, update.shape, start, step, strict=True):
        is_full_axis = equal_sizes(n, m) and equal_sizes(a, 0) and equal_sizes(by, 1)
        # the last of them, not the least multiple: m = 0 writes nothing
        index.append(slice(None) if is_full_axis else slice_of(n, a, _end(a, m, by), by))
    return last_first(x, index) if x.ndim else [Ellipsis]


def _end(start: Any, count: Any, step: Any) -> Any:
    """Return one past the last of `count` places; `start` if there are none."""
    n = max((len(x.values) for x in (start, count, step) if hasattr(x, "values")), default=1)
    rows = zip(*(values_of(x, n) for x in (start, count, step)), strict=True)
    return joined([a + (m - 1) * by + 1 if m else a for a, m, by in rows])


def take_slice(w: Writing, x: Var, axis: int, start: Any, stop: Any, step: Any) -> ast.expr:
    axis %= x.ndim
    n = x.shape[axis]
    index: list[Any] = [slice(None)] * x.ndim
    beyond = not hasattr(n, "values") and not hasattr(stop, "values") and stop > n
    index[axis] = slice_of(n, start, n if beyond else stop, step)
    return indexed(w, x, last_first(x, index))


def getitem(w: Writing, x: Var, index: Any) -> ast.expr:
    return indexed(w, x, index if isinstance(index, tuple) else (index,))


def gather(w: Writing, x: Var, indices: Any) -> ast.expr:
    return indexed(w, x, list(indices))


def expand_dims(module: str) -> Rule:
    """Write `x[:, None]` or `x[..., None]`, and further inside a call by name."""

    def rule(w: Writing, x: Var, axis: int) -> ast.expr:
        at = axis % (x.ndim + 1)
        if at in (0, 1) and (axis >= 0 or at == 0):
            return ast.Subscript(w(x), _index(["None"] if at == 0 else [":", "None"]), ast.Load())
        if at == x.ndim:
            return ast.Subscript(w(x), _index(["...", "None"]), ast.Load())
        return w.fill(module, x=x, axis=axis)

    return rule


def _index(parts: list[str]) -> ast.expr:
    node = expressions.name(f"x[{', '.join(parts)}]")
    assert isinstance(node, ast.Subscript)
    return node.slice


def matrix_transpose(w: Writing, x: Var) -> ast.expr:
    return w.fill("x.T" if x.ndim == 2 else "x.mT", x=x)


# ---- products --------------------------------------------------------------------------------------------------------


def contraction(a: Var, b: Var, contract: Any, batch: Any) -> tuple[str | None, str]:
    """Return (a template of `@` where there is one, the letters of an einsum)."""
    ca, cb = ([i % v.ndim for i in axes] for v, axes in zip((a, b), contract, strict=True))
    ba, bb = ([i % v.ndim for i in axes] for v, axes in zip((a, b), batch, strict=True))
    return _as_matmul(a, b, ca, cb, ba, bb), _letters(a, b, ca, cb, ba, bb)


def _as_matmul(a: Var, b: Var, ca: list[int], cb: list[int], ba: list[int], bb: list[int]) -> str | None:
    lead = list(range(len(ba)))
    if len(ca) != 1 or ba != lead or bb != lead:
        return None
    if not lead:
        if b.ndim <= 2 and ca == [a.ndim - 1]:
            if cb == [max(b.ndim - 2, 0)]:
                return "a @ b"
            return "a @ b.T"
        return "a.T @ b" if a.ndim == 2 and ca == [0] and b.ndim <= 2 and cb == [0] else None
    if a.ndim != len(lead) + 2 or b.ndim != len(lead) + 2:
        return None
    left = "a" if ca == [a.ndim - 1] else "a.mT"
    return f"{left} @ b" if cb == [b.ndim - 2] else f"{left} @ b.mT"


def _letters(a: Var, b: Var, ca: list[int], cb: list[int], ba: list[int], bb: list[int]) -> str:
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    of_a, of_b = [""] * a.ndim, [""] * b.ndim
    for i, j in zip(ba, bb, strict=True):
        of_a[i] = of_b[j] = next(letters)
    shared = "".join(of_a[i] for i in ba)
    summed = iter("kxyzuvw")
    for i, j in zip(ca, cb, strict=True):
        of_a[i] = of_b[j] = next(summed)
    free = ""
    outer = iter("ijlmnopqrst" if len(ba) + len(ca) < 9 else "")
    for names in (of_a, of_b):
        for i, letter in enumerate(names):
            if not letter:
                names[i] = next(outer)
                free += names[i]
    return f"{''.join(of_a)},{''.join(of_b)}->{shared}{free}"


# ---- reductions ------------------------------------------------------------------------------------------------------


def is_plain_zero_or_one(value: Any) -> bool:
    """Return True for a number that `zeros` or `ones` can stand for; not -0.0."""
    return isinstance(value, bool | int | float) and value in (0, 1) and not str(value).startswith("-")


def part_as_long(x: Var, indices: Var, axis: int) -> list[Any]:
    """Return the part of `x` that is as long as the indices on the axes that they go along, as an index."""
    return [
        slice(None) if a == axis % x.ndim or equal_sizes(n, m) else slice(None, m)
        for a, (n, m) in enumerate(zip(x.shape, indices.shape, strict=True))
    ]


def without_defaults(arguments: dict[str, Any]) -> dict[str, Any]:
    """Replace arguments that people leave out of a call by None."""
    usual = {"keepdims": False, "correction": 0}
    return {k: None if k in usual and not isinstance(v, Var) and v == usual[k] else v for k, v in arguments.items()}


def is_empty(x: Var) -> bool:
    return 0 in x.shape


def sizes_of_split(x: Var, sizes: Sequence[Any], axis: int) -> tuple[bool, list[Any], bool]:
    """Return (the pieces have equal lengths, the ends of all pieces but the last, elements remain after the last
    piece)."""
    ends: list[Any] = []
    at: Any = 0
    for n in sizes:
        at = plus(at, n)
        ends.append(at)
    rest = not equal_sizes(at, x.shape[axis % x.ndim])
    return all(equal_sizes(n, sizes[0]) for n in sizes) and not rest, ends if rest else ends[:-1], rest


# ---- windows ---------------------------------------------------------------------------------------------------------


def gaps(dilation: Any) -> Any:
    """Return the dilation as a tuple, or None if there are no gaps."""
    return None if all(d == 1 for d in dilation) else tuple(dilation)


def identity(kind: str, dtype: np.dtype) -> Any:
    """Return the value with which a windowed reduction pads its operand."""
    return 0 if kind == "sum" else dtypes.lowest(dtype) if kind == "max" else dtypes.highest(dtype)
