"""Ways out for a program that needs the value of a traced array, in the program's own names."""

from __future__ import annotations

import ast
import linecache
import types
from types import CodeType, FrameType
from typing import Any, NamedTuple

Ways = list[tuple[str, str]]  # (what to do, how)

_OPERATORS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.USub: "-",
    ast.UAdd: "+", ast.Invert: "~",
}  # fmt: skip
_IN_PYTHON = {"maximum": "max", "minimum": "min", "abs": "abs"}
_UNNAMED = "its argument"
UNSEEN = "what decides"  # a condition that is not written in the program
_OF_PYTHON = {"max": "maximum", "min": "minimum", "all": "array_api.all", "any": "array_api.any"}
_CONVERSIONS = ("asarray", "astype")
# functions whose results can be made larger, and masked
_MASKED = {
    "bernoulli", "bits", "empty", "exponential", "full", "gumbel", "normal", "ones", "rademacher", "randint",
    "truncated_normal", "uniform", "zeros",
}  # fmt: skip
_TRUTHS = {"bernoulli"}
OF_SHAPE = {*_MASKED, "broadcast_to", "categorical", "reshape"}  # with an argument of that name


class Static(NamedTuple):
    """How the value of an array could be known while tracing."""

    expression: str | None  # in Python's own arithmetic
    argument: bool  # it is an argument of the traced function itself
    ints: tuple[str, ...] = ()  # names of the program that are Python ints, or have a shape
    elsewhere: bool = False  # it is not on the device of arrays that are made without `device=`

    def way(self, target: str, bound: str | None = None) -> tuple[str, str]:
        if self.argument:
            return "keep it static", f"pass {target} as a Python int: each value is compiled"
        if self.expression is None:
            what = "it" if target == _UNNAMED else target
            return "know it before", f"compute {what} outside, and pass it as a Python int: each value is compiled"
        expression = self.expression
        if bound is not None and not expression.startswith("min("):
            expression = f"min({expression}, {bound})"
        if not target.isidentifier():
            return "keep it static", f"{expression} in its place, of Python ints"
        return "keep it static", f"{target} = {expression}"

    @property
    def bound(self) -> str | None:
        """What the value is at most, by the program's own `minimum` or `clip`."""
        outer: Any = ast.parse(self.expression or "0", mode="eval").body
        return ast.unparse(outer.args[-1]) if isinstance(outer, ast.Call) and short_name(outer.func) == "min" else None

    def note(self) -> str | None:
        """What the way needs of the arguments."""
        if self.argument or self.expression is None:
            return None
        names = {part.id: None for part in ast.walk(ast.parse(self.expression)) if isinstance(part, ast.Name)}
        given = " and ".join(name for name in names if name not in ("max", "min", "abs", *self.ints))
        return f"  (the first with {given} passed as a Python int: each value is compiled)" if given else None


def of_shape(
    frame: FrameType | None, node: Any, literal: Any, at: int, ndim: int, expression: str, static: Static
) -> Ways:
    """Of a call whose extent `at`, written as `expression`, is traced; `literal`: its shape, where it is written in the
    call."""
    bound = static.bound or bound_in(frame)
    found = [static.way(expression, bound)]
    most = bound or "n"
    name = short_name(node.func) if node is not None else ""
    if name not in _MASKED or (literal is None and ndim > 1):
        found.append(("bound and mask", "a size that is always enough, and a mask of what counts"))
        return found
    mask = _mask(expression, most + _device_of(node, expression, static), "<", ndim - 1 - at)
    joint = "&" if name in _TRUTHS else "*"
    larger = f"{_with(frame, node, expression, most)} {joint} {mask}"
    said = "" if bound else f", where {expression} <= n"
    found.append(("bound and mask", f"{_assigned(node)}{larger}{said}"))
    return found


def of_slice(frame: FrameType | None, node: ast.Subscript, part: Any, expression: str, static: Static) -> Ways:
    """Of `x[:k]` and the like, of which `part` is traced."""
    whole = source(frame, node.value)
    axis, bounds = 0, node.slice
    if isinstance(bounds, ast.Tuple):
        axis = next((i for i, b in enumerate(bounds.elts) if _mentions(b, expression)), 0)
        bounds = bounds.elts[axis]
    found = [static.way(expression)]
    if not isinstance(bounds, ast.Slice) or bounds.step is not None:
        return [*found, ("stay an array", f"take({whole}, {expression}, axis={axis})")]
    if bounds.lower is not None and bounds.upper is not None:
        low = source(frame, bounds.lower)
        return [
            *found,
            ("keep the length", f"take({whole}, {low} + arange(length{_device_of(None, whole, static)}), axis={axis})"),
        ]
    extent = f"{whole}.shape[{axis}]"
    mask = _mask(
        expression,
        extent + _device_of(None, whole, static),
        "<" if bounds.upper is not None else ">=",
        _behind(frame, node, axis),
    )
    return [*found, ("bound and mask", f"{_assigned(node)}{whole} * {mask}")]


def of_count(node: Any, expression: str, static: Static) -> Ways:
    """Of `range(k)` and other counts."""
    found = [static.way(expression)]
    if isinstance(node, ast.Call) and short_name(node.func) == "range":
        start = ast.unparse(node.args[0]) if len(node.args) > 1 else "0"
        found.append(("loop by value", f"tg.transforms.fori_loop({start}, {expression}, step, state)"))
        found.append(("bound and mask", f"for i in range(n): state = where(i < {expression}, step(i, state), state)"))
    return found


def of_extent(expression: str, static: Static) -> Ways:
    """Of a number that becomes a shape, a count or the bound of a slice."""
    return [static.way(expression), ("bound and mask", "a size that is always enough, and a mask of what counts")]


def of_condition(frame: FrameType | None, node: Any, expression: str) -> Ways:
    outer = node
    while outer is not None and not isinstance(outer, ast.stmt):
        outer = getattr(outer, "parent", None)
    if isinstance(outer, ast.Assert):
        simple = isinstance(ast.parse(expression, mode="eval").body, ast.Call | ast.Name)
        holds = expression if simple else f"({expression})"
        return [("check it later", f"x = tg.transforms.error_if(x, ~{holds}, message)")]
    if isinstance(outer, ast.While) and (outer is node or _within(node, outer.test)):
        return [
            ("loop by value", "tg.transforms.while_loop(condition, step, state)"),
            ("bound and mask", f"for _ in range(n): state = where({expression}, step(state), state)"),
        ]
    if isinstance(node, ast.Call) and short_name(node.func) in _OF_PYTHON:
        name = _OF_PYTHON[short_name(node.func)]
        given = ", ".join(source(frame, a) for a in node.args)
        return [("stay an array", f"{name}({given})"), ("keep it static", f"{source(frame, node)} of Python numbers")]
    if expression == UNSEEN:
        return [("stay an array", "functions of array_api instead of Python's")]
    return [
        ("choose by value", f"where({expression}, a, b)"),
        ("branch by value", f"tg.transforms.cond({expression}, f, g, *operands)"),
        ("decide outside", "pass a Python bool: each is compiled"),
    ]


def of_number() -> Ways:
    return [
        ("stay an array", "use it itself in the place of its value"),
        ("look at it later", "return it, and ask for its value outside"),
        ("know it before", "pass it as a Python number: each value is compiled"),
    ]


def of_result(frame: FrameType | None, node: Any, expression: str) -> Ways:
    """Of what has as many elements as values say."""
    kept = "a mask of what counts, instead of positions"
    if isinstance(node, ast.Subscript):
        kept = f"{_assigned(node)}where({expression}, {source(frame, node.value)}, 0)"
    return [("keep the shape", kept), ("do it outside", "before the call, and pass the result")]


# ---- source ----------------------------------------------------------------------------------------------------------


def source(frame: FrameType | None, node: ast.AST) -> str:
    """An expression as it is written, of functions of modules the last name; of a statement its head."""
    if isinstance(node, ast.If | ast.While | ast.Assert):
        return f"{type(node).__name__.lower()} {source(frame, node.test)}"
    if isinstance(node, ast.Slice | ast.Starred):  # which are no expressions by themselves
        return ast.unparse(node)
    fresh = ast.parse(ast.unparse(node))
    text = ast.unparse(_Shortened(frame).visit(fresh))
    return text if "\n" not in text else text.partition("\n")[0]


class _Shortened(ast.NodeTransformer):
    """Functions of modules by their last name."""

    def __init__(self, frame: FrameType | None) -> None:
        self.frame = frame

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        base: Any = node
        while isinstance(base, ast.Attribute):
            base = base.value
        if self.frame is not None and isinstance(base, ast.Name):
            held = self.frame.f_locals.get(base.id, self.frame.f_globals.get(base.id))
            if isinstance(held, types.ModuleType):
                return ast.Name(node.attr)
        return self.generic_visit(node)


def short_name(node: ast.AST) -> str:
    """The last name of a function."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


# functions of PyTorch and of arrays of which an int among the arguments is an extent
_OF_EXTENTS = OF_SHAPE | {
    "arange", "expand", "eye", "fori_loop", "linspace", "narrow", "new_empty", "new_full", "new_ones", "new_zeros",
    "permutation", "rand", "randn", "randperm", "range", "repeat", "split", "tile", "unflatten", "view",
}  # fmt: skip


def in_extent(node: Any) -> bool:
    """An expression is, or is in, a shape, a count or the bound of a slice."""
    while isinstance(node, ast.expr | ast.keyword | ast.Slice):
        if isinstance(node, ast.Slice) or (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)):
            return True
        if isinstance(node, ast.Call) and short_name(node.func) in _OF_EXTENTS:
            return True
        node = getattr(node, "parent", None)
    return False


def operation(node: Any) -> str:
    """What an expression does, in a word."""
    if isinstance(node, ast.Call):
        return short_name(node.func) or "a call"
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.UnaryOp):
        return _OPERATORS.get(type(node.op), "this line")
    if isinstance(node, ast.Compare):
        return _OPERATORS.get(type(node.ops[0]), "a comparison")
    return "indexing" if isinstance(node, ast.Subscript) else "this line"


def in_python(node: Any) -> str | None:
    """An expression of array functions in Python's own arithmetic, None where that has no such thing."""
    if isinstance(node, ast.Name | ast.Constant):
        return ast.unparse(node)
    if isinstance(node, ast.Subscript | ast.Attribute):
        return ast.unparse(node) if ".shape" in ast.unparse(node) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = in_python(node.operand)
        return inner and f"-{inner}"
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = in_python(node.left), in_python(node.right)
        return f"{left} {_OPERATORS[type(node.op)]} {right}" if left and right else None
    if not isinstance(node, ast.Call):
        return None
    given = [in_python(a) for a in node.args]
    name = short_name(node.func)
    if not given or given[0] is None:
        return None
    if name in _CONVERSIONS:
        return given[0]
    if None in given or (node.keywords and name != "clip"):
        return None
    if name in _IN_PYTHON:
        return f"{_IN_PYTHON[name]}({', '.join(map(str, given))})"
    if name == "clip":
        bounds = {k.arg: in_python(k.value) for k in node.keywords}
        low, high = ([*given[1:], None, None])[:2]
        low, high = low or bounds.get("min"), high or bounds.get("max")
        held = f"max({given[0]}, {low})" if low else str(given[0])
        return f"min({held}, {high})" if high else held
    return None


def bound_in(frame: FrameType | None) -> str | None:
    """A Python int of the program that is the extent of one of its arrays, by its name."""
    if frame is None:
        return None
    values = frame.f_locals
    extents = {n for x in values.values() if hasattr(x, "dtype") for n in getattr(x, "shape", ())}
    names = [name for name, v in values.items() if type(v) is int and v in extents]
    return "n" if "n" in names else names[0] if names else None


def definition_line(code: CodeType) -> int:
    """The line of `def`, which is below the decorators."""
    lines = linecache.getlines(code.co_filename)
    for number in range(code.co_firstlineno, min(code.co_firstlineno + 20, len(lines) + 1)):
        if lines[number - 1].lstrip().startswith(("def ", "async def ")) or "lambda" in lines[number - 1]:
            return number
    return code.co_firstlineno


def definition(code: CodeType) -> str:
    return linecache.getline(code.co_filename, definition_line(code)).strip()


# ---- parts of ways ---------------------------------------------------------------------------------------------------


def _mask(expression: str, extent: str, relation: str, behind: int) -> str:
    """Which of `extent` positions count, to be multiplied with an array that has `behind` axes more."""
    return f"(arange({extent}) {relation} {expression})" + (f"[:{', None' * behind}]" if behind else "")


def _device_of(node: Any, expression: str, static: Static) -> str:
    """The argument of a call that says where its array is, where one is needed."""
    for keyword in getattr(node, "keywords", ()):
        if keyword.arg == "device":
            return f", device={ast.unparse(keyword.value)}"
    return f", device={expression}.device" if static.elsewhere else ""


def _behind(frame: FrameType | None, node: ast.Subscript, axis: int) -> int:
    held: Any = None
    if frame is not None and isinstance(node.value, ast.Name):
        held = frame.f_locals.get(node.value.id, frame.f_globals.get(node.value.id))
    return max(len(getattr(held, "shape", ())) - 1 - axis, 0)


def _with(frame: FrameType | None, node: ast.AST, expression: str, bound: str) -> str:
    """A call with a bound in the place of an expression."""
    fresh = ast.parse(source(frame, node), mode="eval").body
    for part in ast.walk(fresh):
        for field, value in ast.iter_fields(part):
            if isinstance(value, ast.AST) and ast.unparse(value) == expression:
                setattr(part, field, ast.Name(bound))
            elif isinstance(value, list):
                value[:] = [ast.Name(bound) if isinstance(v, ast.expr) and ast.unparse(v) == expression else v
                            for v in value]  # fmt: skip
    return ast.unparse(fresh)


def _assigned(node: Any) -> str:
    """ "y = " where the program gives the expression the name y."""
    outer = getattr(node, "parent", None)
    if isinstance(outer, ast.Assign) and len(outer.targets) == 1 and isinstance(outer.targets[0], ast.Name):
        return f"{outer.targets[0].id} = "
    return ""


def _mentions(node: ast.AST, expression: str) -> bool:
    return any(isinstance(part, ast.expr) and ast.unparse(part) == expression for part in ast.walk(node))


def _within(node: Any, tree: ast.AST) -> bool:
    return any(part is node for part in ast.walk(tree))
