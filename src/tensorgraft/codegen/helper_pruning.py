"""The helpers of a file, as the file needs them: what no call gives is no parameter, and branches that no call reaches
are gone.

    def norm(x, weight=None):                                def norm(x, weight):
        y = x - x.mean()                       becomes           y = x - x.mean()
        return y if weight is None else y * weight               return y * weight
"""

from __future__ import annotations

import ast
import copy
import inspect
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tensorgraft.codegen.targets import Target
from tensorgraft.codegen.targets.helpers import shared

_TESTS: dict[type, Any] = {ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le,
                           ast.Eq: operator.eq, ast.NotEq: operator.ne}  # fmt: skip

# what functions of the targets take where they are told nothing
_USUAL = {"feature_group_count": 1, "lhs_dilation": None, "rhs_dilation": None, "window_dilation": None,
          "reverse": False}  # fmt: skip


def helper_sources(target: Target) -> dict[str, str]:
    """The text of each helper of a target."""
    if target.helpers is None:
        return {}
    module = target.helpers
    named = {"xp": target.namespace, "Array": target.array}

    def text(f: Any) -> str:
        source = inspect.getsource(f).strip()
        return source if f.__module__ != shared.__name__ else re.sub(r"\b(xp|Array)\b", lambda m: named[m[0]], source)

    return {n: text(f) for n, f in vars(module).items()
            if inspect.isfunction(f) and f.__module__ in (module.__name__, shared.__name__)}  # fmt: skip


def helpers_of(target: Target, parts: Sequence[str], others: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """The text of the helpers that `parts` of a file name, and of those that they name, in the order of their file.
    `others`: names that some have in the file in the place of their own."""
    available = {others.get(n, n): source for n, source in helper_sources(target).items()}
    for n, other in others.items():
        call = re.compile(rf"(?<![.\w]){n}(?=\()")
        available = {k: call.sub(other, source) for k, source in available.items()}
    trees = {n: ast.parse(source) for n, source in available.items()}
    program = [ast.parse(part) for part in parts]
    needed = _reached(program, trees)
    left: dict[str, ast.Module] = {}
    for n in _callers_first(needed, trees):
        left[n] = _pruned(trees[n], program, list(left.values()), set(needed))
    reached = _reached(program, left)
    changed = {n for n in reached if ast.dump(left[n]) != ast.dump(ast.parse(available[n]))}
    return [_unparsed(left[n]) if n in changed else available[n] for n in available if n in reached]


def _callers_first(needed: Sequence[str], trees: dict[str, ast.Module]) -> list[str]:
    order: dict[str, None] = {}

    def visit(n: str) -> None:
        for m in needed:
            if m != n and m not in order and n in global_names(trees[m]):
                visit(m)
        order[n] = None

    for n in needed:
        if n not in order:
            visit(n)
    return list(order)


def _unparsed(tree: ast.Module) -> str:
    """Tuples that are returned without parentheses."""
    source = ast.unparse(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) > 1:
            source = source.replace(ast.unparse(node), f"return {ast.unparse(node.value)[1:-1]}")
    return source


def _reached(program: Iterable[ast.AST], trees: dict[str, ast.Module]) -> list[str]:
    queue = [n for tree in program for n in global_names(tree)]
    reached: dict[str, None] = {}
    while queue:
        n = queue.pop()
        if n in trees and n not in reached:
            reached[n] = None
            queue += global_names(trees[n])
    return list(reached)


def global_names(tree: ast.AST) -> set[str]:
    """Names that are looked at, and not made in the same function."""
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    if isinstance(tree, ast.Module) and len(tree.body) == 1 and isinstance(tree.body[0], ast.FunctionDef):
        return names - _stored(tree) - {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    return names


def _stored(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}


# ---- one helper ------------------------------------------------------------------------------------------------------


def _pruned(tree: ast.Module, program: Sequence[ast.AST], helpers: Sequence[ast.AST], names: set[str]) -> ast.Module:
    """Return a helper without what no call needs. `helpers`: those that may call it, whose calls are changed with it;
    `names`: of all helpers."""
    tree = copy.deepcopy(tree)  # calls in it may still change
    f = tree.body[0]
    assert isinstance(f, ast.FunctionDef)
    if f.args.vararg or f.args.kwarg or f.args.kwonlyargs or f.args.posonlyargs:
        return tree
    named = [n for t in [*program, *helpers] for n in ast.walk(t) if isinstance(n, ast.Name) and n.id == f.name]
    ours = [c for t in program for c in _calls(t, f.name)]
    theirs = [c for t in helpers for c in _calls(t, f.name)]
    given = [_given(c, f) for c in [*ours, *theirs]]
    if len(named) != len(given) or any(g is None for g in given):
        return tree
    for a in list(f.args.args):
        default = _default(f, a)
        if not isinstance(default, ast.Constant) or _shadowed(f, a):
            continue
        values = [g[a.arg] for g in given if g is not None and a.arg in g]
        usual = [v for g in given[len(ours) :] if g is not None and isinstance(v := g.get(a.arg), ast.Constant)
                 and v.value is default.value]  # fmt: skip
        if len(values) == len(usual):
            other = _fold(f, a, None, names)
            if other is not None:
                for call in theirs:
                    _without(call, f, a)
                index = f.args.args.index(a)
                f.args.defaults.pop(index - len(f.args.args))
                f.args.args.pop(index)
                f.body = other
        elif default.value is None and len(values) == len(given) and not theirs and not any(map(_is_none, values)):
            other = _fold(f, a, default, names)
            if other is not None:
                f.body = other
            if len(f.args.defaults) == len(f.args.args) - f.args.args.index(a):
                f.args.defaults.pop(0)
                if isinstance(a.annotation, ast.BinOp) and _is_none(a.annotation.right):
                    a.annotation = a.annotation.left
    return ast.fix_missing_locations(tree)


def _calls(tree: ast.AST, name: str) -> list[ast.Call]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == name]


def _given(call: ast.Call, f: ast.FunctionDef) -> dict[str, ast.expr] | None:
    """Parameter -> what a call gives for it; None where that is not to be seen."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return None
    by_place = dict(zip((a.arg for a in f.args.args), call.args, strict=False))
    return {**by_place, **{k.arg: k.value for k in call.keywords if k.arg}}


def _without(call: ast.Call, f: ast.FunctionDef, a: ast.arg) -> None:
    place = f.args.args.index(a)
    after = [ast.keyword(p.arg, v) for p, v in zip(f.args.args[place + 1 :], call.args[place + 1 :], strict=False)]
    call.args, call.keywords = call.args[:place], [*after, *(k for k in call.keywords if k.arg != a.arg)]


def _default(f: ast.FunctionDef, a: ast.arg) -> ast.expr | None:
    place = f.args.args.index(a) - len(f.args.args) + len(f.args.defaults)
    return f.args.defaults[place] if place >= 0 else None


def _shadowed(f: ast.FunctionDef, a: ast.arg) -> bool:
    return a.arg in _stored(f) or any(n is not a and n.arg == a.arg for n in ast.walk(f) if isinstance(n, ast.arg))


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _fold(f: ast.FunctionDef, a: ast.arg, is_given: Any, names: set[str]) -> list[ast.stmt] | None:
    """The body where the parameter has its default (`is_given` is None), or is an array; None where it would not get
    simpler by that. It may be passed on to helpers, of these `names`."""
    default = _default(f, a)
    assert isinstance(default, ast.Constant)
    folder = _Folder(a.arg, None if is_given is not None else default)
    body = folder.statements(copy.deepcopy(f.body))
    passed = [x for s in body for n in names for c in _calls(s, n) for x in [*c.args, *(k.value for k in c.keywords)]]
    if any(n in folder.put and n not in passed for s in body for n in ast.walk(s)) or not folder.hits:
        return None
    return _used(body)


class _Folder(ast.NodeTransformer):
    """Knows one parameter: its value, or (`value` is None) that it is not None."""

    def __init__(self, name: str, value: ast.Constant | None) -> None:
        self.name, self.value = name, value
        self.put: list[ast.AST] = []  # constants in the place of the parameter
        self.hits = 0

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in body:
            new = self.visit(statement)
            result += new if isinstance(new, list) else [] if new is None else [new]
            if result and isinstance(result[-1], ast.Return | ast.Raise):
                break
        return result

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id != self.name or self.value is None:
            return node
        self.hits += 1
        constant = ast.Constant(self.value.value)
        self.put.append(constant)
        return constant

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        left, (op,), (right,) = node.left, node.ops[:1], node.comparators[:1]
        asks = isinstance(op, ast.Is | ast.IsNot) and _is_none(right)
        if asks and isinstance(left, ast.Name) and left.id == self.name:
            self.hits += 1
            is_none = self.value is not None and self.value.value is None
            return ast.Constant(is_none == isinstance(op, ast.Is))
        self.generic_visit(node)
        test = _TESTS.get(type(op))
        left, right = node.left, node.comparators[0]
        if test and len(node.ops) == 1 and isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
            return ast.Constant(test(left.value, right.value))
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.keywords = [k for k in node.keywords if not (k.arg in _USUAL and isinstance(k.value, ast.Constant)
                                                          and k.value.value is _USUAL[k.arg])]  # fmt: skip
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Constant):
            return ast.Constant(not node.operand.value)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        ends = isinstance(node.op, ast.Or)  # the truth that ends it
        values: list[ast.expr] = []
        for value in node.values:
            if isinstance(value, ast.Constant) and bool(value.value) != ends and value is not node.values[-1]:
                continue
            values.append(value)
            if isinstance(value, ast.Constant) and bool(value.value) == ends:
                break
        return values[0] if len(values) == 1 else ast.BoolOp(node.op, values)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        node.test = self.visit(node.test)
        if isinstance(node.test, ast.Constant):
            return self.visit(node.body if node.test.value else node.orelse)
        node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        node.test = self.visit(node.test)
        if isinstance(node.test, ast.Constant):
            return self.statements(node.body if node.test.value else node.orelse)
        node.body, node.orelse = self.statements(node.body), self.statements(node.orelse)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = self.statements(node.body)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        self.generic_visit(node)
        target = node.targets[0]
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Name) and target.id == node.value.id:
            return None
        return node


def _used(body: list[ast.stmt]) -> list[ast.stmt]:
    """Drop assignments to names that are never read."""
    while True:
        loads = {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}

        def unused(s: ast.stmt, loads: set[str] = loads) -> bool:
            target = s.targets[0] if isinstance(s, ast.Assign) and len(s.targets) == 1 else None
            return isinstance(target, ast.Name) and target.id not in loads

        kept = [s for s in body if not unused(s)]
        if len(kept) == len(body):
            break
        body = kept
    match body:
        case [*before, ast.Assign([ast.Name(x)], value), ast.Return(ast.Name(y))] if x == y:
            return [*before, ast.Return(value)]
    return body


__all__ = ["global_names", "helper_sources", "helpers_of"]
