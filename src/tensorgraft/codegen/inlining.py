"""A helper that one function does nothing but call, and that has this function's name, is its body.

def _norm(x, weight, axes=1):
    over = tuple(range(-axes, 0))                        def norm(p, x):
    return x / x.std(over) * weight          becomes         return x / x.std(-1) * p["weight"]

def norm(p, x):
    return _norm(x, p["weight"])
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Mapping, Sequence

MOST = 6  # statements of a helper that is no function of its own


def inlined(
    parts: Sequence[str], helpers: Sequence[str], names: Collection[str], others: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Return (`parts`, `helpers`), texts of functions and classes. `names` of the helpers that may go; `others`: what
    may call them, too."""
    trees = [ast.parse(part) for part in parts]
    left = {_name(tree): (tree, source) for source in helpers for tree in [ast.parse(source)]}
    changed: set[int] = set()
    for name in [n for n in left if n in names]:
        helper = left[name][0].body[0]
        elsewhere = [*(tree for n, (tree, _) in left.items() if n != name), *map(ast.parse, others)]
        if not isinstance(helper, ast.FunctionDef) or any(_uses(tree, name) for tree in elsewhere):
            continue
        callers = [(i, f) for i, tree in enumerate(trees) for f in ast.walk(tree) if _only_calls(f, name)]
        if len(callers) != 1 or sum(_uses(tree, name) for tree in trees) != 1:
            continue
        i, caller = callers[0]
        assert isinstance(caller, ast.FunctionDef)
        body = _body(helper, caller.body[-1].value)  # type: ignore[attr-defined]
        if body is None:
            continue
        caller.body[-1:] = body
        changed.add(i)
        del left[name]
    new = [ast.unparse(ast.fix_missing_locations(t)) if i in changed else parts[i] for i, t in enumerate(trees)]
    return new, [source for _, source in left.values()]


def _name(tree: ast.Module) -> str:
    return getattr(tree.body[0], "name", "")


def _uses(tree: ast.AST, name: str) -> int:
    return sum(isinstance(n, ast.Name) and n.id == name for n in ast.walk(tree))


def _only_calls(f: ast.AST, name: str) -> bool:
    if not isinstance(f, ast.FunctionDef) or len(f.body) - _has_doc(f) != 1:
        return False
    last = f.body[-1]
    call = last.value if isinstance(last, ast.Return) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == name


def _has_doc(f: ast.FunctionDef) -> bool:
    return ast.get_docstring(f) is not None


def _body(helper: ast.FunctionDef, call: ast.Call) -> list[ast.stmt] | None:
    """The statements of a helper with what it is called with in the place of its arguments; None where they are not
    simple enough."""
    statements = helper.body[_has_doc(helper) :]
    a = helper.args
    if len(statements) > MOST or a.vararg or a.kwarg or a.kwonlyargs or a.posonlyargs:
        return None
    if any(isinstance(n, ast.FunctionDef | ast.Lambda) for s in statements for n in ast.walk(s)):
        return None
    names = [arg.arg for arg in a.args]
    given: dict[str, ast.expr] = dict(zip(names[len(names) - len(a.defaults) :], a.defaults, strict=True))
    given |= dict(zip(names, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
    stores = [n.id for s in statements for n in ast.walk(s) if isinstance(n, ast.Name) and _is_stored(n)]
    stored = set(stores)
    if given.keys() != set(names) or not all(map(_is_simple, given.values())):
        return None
    used = {n.id for e in given.values() for n in ast.walk(e) if isinstance(n, ast.Name)}
    if any(not (isinstance(given[n], ast.Name) and given[n].id == n) for n in stored & set(names)):  # type: ignore[attr-defined]
        return None
    if (stored - set(names)) & used:
        return None
    result: list[ast.stmt] = []
    for statement in statements:
        new = _Given(given).visit(copy.deepcopy(statement))
        target = new.targets[0] if isinstance(new, ast.Assign) else None
        if isinstance(target, ast.Name) and _is_number(new.value) and stores.count(target.id) == 1:
            given[target.id] = new.value  # a name for a number that is known
            continue
        result.append(new)
    return result


def _is_stored(n: ast.Name) -> bool:
    return not isinstance(n.ctx, ast.Load)


def _is_simple(e: ast.expr) -> bool:
    while isinstance(e, ast.Attribute | ast.Subscript):
        e = e.value
    return isinstance(e, ast.Name) or _is_number(e)


def _is_number(e: ast.expr) -> bool:
    return isinstance(e, ast.Constant) or (isinstance(e, ast.UnaryOp) and isinstance(e.operand, ast.Constant))


class _Given(ast.NodeTransformer):
    def __init__(self, given: Mapping[str, ast.expr]) -> None:
        self.given = given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self.given.get(node.id, node)) if isinstance(node.ctx, ast.Load) else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Replace `tuple(range(-1, 0))` by -1, longer ranges by a tuple."""
        self.generic_visit(node)
        inner = node.args[0] if isinstance(node.func, ast.Name) and node.func.id == "tuple" and node.args else None
        if not isinstance(inner, ast.Call) or not isinstance(inner.func, ast.Name) or inner.func.id != "range":
            return node
        if not all(map(_is_number, inner.args)):
            return node
        numbers = list(range(*map(ast.literal_eval, inner.args)))
        elements: list[ast.expr] = [ast.parse(str(n), mode="eval").body for n in numbers]
        return elements[0] if len(elements) == 1 else ast.Tuple(elements, ast.Load())
