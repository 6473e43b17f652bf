"""Rules of words that several targets have."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from tensorgraft.codegen.output import expressions
from tensorgraft.codegen.targets import Block, Rule, Var, Writing, rules


def resize(w: Writing, x: Any, size: Any, method: str = "nearest", corners: bool = False) -> ast.expr:
    operands = [w(x), w(tuple(size))] + ([] if method == "nearest" else [w(method)])
    return expressions.call("resize", *operands, corners=w(True) if corners else None)


def arange(name: str) -> Callable[..., ast.expr]:
    """Write `name(stop)`, `name(start, stop)` or `name(start, stop, step)`; of ints these make int64."""

    def rule(w: Writing, start: Any, stop: Any, step: Any, dtype: Any) -> ast.expr:
        numbers = [stop] if rules.equal_sizes(step, 1) and rules.equal_sizes(start, 0) else [start, stop]
        numbers = [start, stop, step] if not rules.equal_sizes(step, 1) else numbers
        plain = dtype.name == "int64" and all(isinstance(n, int) for n in numbers)
        return expressions.call(name, *map(w, numbers), dtype=None if plain else w(dtype))

    return rule


def einsum(name: str) -> Callable[..., ast.expr]:
    return lambda w, equation, operands: expressions.call(name, w(equation), *map(w, operands))


def index_of(indices: Any) -> list[Any]:
    return [slice(None) if i is None else i for i in indices]


def index(w: Writing, x: Var, indices: Any) -> ast.expr:
    return rules.indexed(w, x, index_of(indices))


# ---- operations of the hub -------------------------------------------------------------------------------------------


def _last(axis: int) -> int | None:
    return None if axis == -1 else axis


def sort_with_indices(w: Writing, x: Var, axis: int = -1, descending: bool = False) -> ast.expr:
    return w.fill("sort_with_indices(x, axis=axis, descending=descending)", x=x, axis=_last(axis),
                  descending=descending or None)  # fmt: skip


def dynamic_slice(w: Writing, x: Var, start: Any, sizes: Any) -> ast.expr:
    return w.fill("dynamic_slice(x, start, sizes)", x=x, start=tuple(start), sizes=tuple(sizes))


def dynamic_update_slice(w: Writing, x: Var, update: Var, start: Any) -> ast.expr:
    return w.fill("dynamic_update_slice(x, update, start)", x=x, update=update, start=tuple(start))


def triangular_solve(
    w: Writing, a: Var, b: Var, lower: bool, left: bool = True, transpose: bool = False, adjoint: bool = False,
    unit_diagonal: bool = False,
) -> ast.expr:  # fmt: skip
    return w.fill(
        "triangular_solve(a, b, lower=lower, left=left, transpose=transpose, adjoint=adjoint, unit_diagonal=unit)",
        a=a, b=b, lower=lower, left=None if left else False, transpose=transpose or None, adjoint=adjoint or None,
        unit=unit_diagonal or None,
    )  # fmt: skip


_CONVOLUTION = (
    "convolution(x, weight, strides, padding, lhs_dilation=lhs, rhs_dilation=rhs, groups=groups,"
    " batch_groups=batch_groups)"
)


def convolution(
    to: Writing, x: Var, w: Var, strides: Any, padding: Any, lhs_dilation: Any, rhs_dilation: Any, groups: int = 1,
    batch_groups: int = 1, template: str = _CONVOLUTION,
) -> ast.expr:  # fmt: skip
    """Write a convolution as a call of the helper, or of a function of the framework (`template`)."""
    return to.fill(
        template, x=x, weight=w, strides=tuple(strides), lhs=rules.gaps(lhs_dilation), rhs=rules.gaps(rhs_dilation),
        padding=padding if isinstance(padding, str) else tuple(map(tuple, padding)),
        groups=None if groups == 1 else groups, batch_groups=None if batch_groups == 1 else batch_groups,
    )  # fmt: skip


def reduce_window(reductions: dict[str, str]) -> Rule:
    """Make a rule for a call that takes the framework's function for "sum", "max" or "min"."""

    def rule(
        w: Writing, x: Var, kind: str, window: Any, strides: Any, padding: Any, window_dilation: Any
    ) -> ast.expr:  # fmt: skip
        return w.fill(
            f"reduce_window({reductions[kind]}, x, initial, window, strides, padding, dilation=dilation)",
            x=x, initial=rules.identity(kind, x.dtype), window=tuple(window), strides=tuple(strides),
            padding=tuple(map(tuple, padding)), dilation=rules.gaps(window_dilation),
        )  # fmt: skip

    return rule


def branches(w: Writing, true_fn: Block, false_fn: Block, operands: Any) -> list[ast.expr]:
    """Calls of the two branches of a condition."""
    arguments = [w(x) for x in operands]
    named = ((true_fn, "true_branch"), (false_fn, "false_branch"))
    return [ast.Call(w.body(fn, name), list(arguments), []) for fn, name in named]


def cond(w: Writing, predicate: Any, true_fn: Block, false_fn: Block, operands: Any = ()) -> ast.expr:
    true, false = branches(w, true_fn, false_fn, operands)
    return ast.IfExp(w(predicate), true, false)


def while_loop(w: Writing, condition: Block, body: Block, init: Any) -> ast.expr:
    return w.fill("while_loop(condition, body, init)", condition=w.body(condition, "condition"),
                  body=w.body(body, "body"), init=tuple(init))  # fmt: skip


def scan(zeros: Callable[..., ast.expr] | None = None) -> Rule:
    """Make a rule for a loop over `xs`. A loop without steps cannot determine the shapes of its stacked results: these
    are then written by `zeros(w, shape=..., dtype=...)`."""

    def rule(w: Writing, body: Block, init: Any, xs: Any, length: Any, reverse: bool = False) -> ast.expr:
        if zeros is not None and rules.equal_sizes(length, 0):
            _, stacked = w.call_outcome()
            return w((tuple(init), tuple(zeros(w, shape=v.shape, dtype=v.dtype) for v in stacked)))
        return w.fill("scan(step, init, xs, length, reverse=reverse)", step=w.body(body, "step"), init=tuple(init),
                      xs=tuple(xs), length=length, reverse=reverse or None)  # fmt: skip

    return rule
