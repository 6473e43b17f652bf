"""Rewriting of recorded programs into idiomatic calls: rules are applied until none matches.

A rule is a function of a `Rewriting` and a step. It returns None (it does not apply), a `New` call that replaces the
step, or a `Var` or number that equals the step's only result. Patterns (`idiom`) are rules that are written as
expressions:

    idiom("softmax(x, axis=a)", "divide((e := exp(subtract(x, max(x, a, True)))), sum(e, a, True))")

Names in a pattern match arrays and static values; a name that occurs twice matches equal ones. Matched calls whose
results are not used any more are removed with all other unused calls.
"""

from __future__ import annotations

import ast
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorgraft.codegen.recorders.calls import bound as bound_arguments
from tensorgraft.codegen.recorders.calls import parameters
from tensorgraft.codegen.words import definition
from tensorgraft.hub import dtypes
from tensorgraft.hub.abstract import AbstractBackend
from tensorgraft.hub.recorded.block import Block, Call, Var, leaves, mapped, variables
from tensorgraft.hub.recorded.tracing import ProgramBackend, spec_of

Number = bool | int | float | complex
COMMUTATIVE = frozenset(
    [
        "add",
        "multiply",
        "maximum",
        "minimum",
        "equal",
        "not_equal",
        "logical_and",
        "logical_or",
        "logical_xor",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
    ]
)


@dataclass
class New:
    """A call in the place of another one: it gives the same results."""

    method: str
    arguments: dict[str, Any]


Rule = Callable[["Rewriting", Call], "New | Var | Number | None"]


def bound(call: Call) -> dict[str, Any]:
    """Return the arguments of a call by name, with defaults."""
    return bound_arguments(call.method, call.args, call.kwargs)


def unbound(method: str, named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return (args, kwargs) of a call: arrays and positional-only arguments by position, others by name unless they
    equal the default."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    by_name = False
    for p in parameters(method):
        if p.kind is p.VAR_POSITIONAL:
            args.extend(named[p.name])
            continue
        value = named.get(p.name, p.default)
        if value is p.empty:
            raise TypeError(f"{method} is missing the argument {p.name}")
        is_default = p.default is not p.empty and value is not None and _is_same(value, p.default)
        if is_default or (value is None and p.default is None):
            by_name = True
        elif not by_name and (p.default is p.empty or isinstance(value, Var)):
            args.append(value)
        else:
            kwargs[p.name] = value
            by_name = True
    return tuple(args), kwargs


def _is_same(x: Any, y: Any) -> bool:
    if isinstance(x, Var) or isinstance(y, Var):
        return x is y
    if isinstance(x, bool) != isinstance(y, bool):
        return False
    if isinstance(x, float) and isinstance(y, int | float):
        return x == y or math.isclose(x, y, rel_tol=1e-6)
    return type(x) is type(y) and bool(x == y)


@dataclass
class Rewriting:
    """The state that rules see: the call that made each array, and how often the array is used."""

    xp: ProgramBackend  # records what a rule adds before its step
    maker: dict[Var, Call] = field(default_factory=dict)
    uses: Counter[Var] = field(default_factory=Counter)
    protected: frozenset[Var] = frozenset()

    def made_by(self, x: Any, *methods: str) -> dict[str, Any] | None:
        """Return the arguments of the call that made `x`, if it is one of these."""
        call = self.maker.get(x) if type(x) is Var else None
        return bound(call) if call is not None and call.method in methods else None

    def number(self, x: Any) -> Number | None:
        """Return the number that all elements of `x` are known to be."""
        if isinstance(x, bool | int | float | complex):
            return x
        if type(x) is not Var:
            return None
        if x.value is not None:
            return number_of(x.value.reshape(())) if x.value.size == 1 else None
        call = self.maker.get(x)
        if call is None:
            return None
        if call.method in ("full", "full_like"):
            named = bound(call)
            value = named["value"]
            return number_of(np.asarray(value, x.dtype)) if isinstance(value, bool | int | float | complex) else None
        if call.method in ("zeros", "zeros_like", "ones", "ones_like"):
            return number_of(np.asarray(call.method.startswith("ones"), x.dtype))
        if call.method in ("broadcast_to", "reshape"):
            return self.number(call.args[0])
        return None


def number_of(value: np.ndarray) -> Number:
    """Return a 0-d array as a Python number; of a narrow float the shortest one that rounds to it and that it can
    hold."""
    if dtypes.is_floating(value.dtype) and value.dtype.itemsize < 8 and np.isfinite(value):
        short = float(str(value.item() if value.dtype.name == "bfloat16" else value[()]))
        return short if abs(short) <= float(dtypes.finfo(value.dtype).max) else float(value)
    return value.item()


def say(xp: ProgramBackend, name: str, *args: Any, **kwargs: Any) -> Any:
    """Record a word of `tensorgraft.codegen.words`."""
    plain_args, plain_kwargs = mapped(spec_of, (args, kwargs))
    return xp._append(name, args, kwargs, definition(name)(_ABSTRACT, *plain_args, **plain_kwargs))


_ABSTRACT = AbstractBackend()


# ---- rewriting ----------------------------------------------------


@dataclass
class Rewritten:
    """Replacements of arrays that are no longer computed."""

    instead: dict[Var, Any] = field(default_factory=dict)

    def __call__(self, tree: Any) -> Any:
        """Return the tree with these arrays replaced; blocks are changed in place."""
        if type(tree) is Var:
            while tree in self.instead:
                tree = self.instead[tree]
                if type(tree) is not Var:
                    break
            return tree
        if type(tree) is tuple:
            return tuple([self(x) for x in tree])
        if type(tree) is list:
            return [self(x) for x in tree]
        if type(tree) is dict:
            return {k: self(x) for k, x in tree.items()}
        if type(tree) is Block:
            for call in tree.calls:
                call.args, call.kwargs = self(call.args), self(call.kwargs)
            tree.result = self(tree.result)
        return tree


def rewrite(
    xp: ProgramBackend,
    calls: list[Call],
    results: Any,
    rules: dict[str, list[Rule]],
    outer_calls: dict[Var, Call] | None = None,
) -> tuple[list[Call], Rewritten]:
    """Return (the calls rewritten by rules, which are looked up by the method of the call; replacements of results)."""
    replaced = Rewritten()
    for _ in range(30):
        uses: Counter[Var] = Counter(_used(calls))
        uses.update(variables(replaced(results)))
        state = Rewriting(xp, dict(outer_calls or {}), uses)
        changed = False
        with xp.recording() as new_calls:
            for call in calls:
                call.args, call.kwargs = replaced(call.args), replaced(call.kwargs)
                for x in leaves([call.args, call.kwargs]):
                    if type(x) is Block:
                        x.calls, inner = rewrite(xp, x.calls, x.result, rules, state.maker)
                        x.result = tuple_of_arrays(xp, inner(x.result))
                before = len(new_calls)
                new = next((n for rule in rules.get(call.method, ()) if (n := rule(state, call)) is not None), None)
                for extra in new_calls[before:]:
                    _take_place(extra, call)
                    for v in variables(extra.results):
                        state.maker[v] = extra
                if isinstance(new, New):
                    call.method = new.method
                    call.args, call.kwargs = unbound(new.method, new.arguments)
                elif new is not None:
                    replaced.instead[call.results] = new
                    changed = True
                    continue
                changed = changed or new is not None
                new_calls.append(call)
                if call.method == "frame":  # a stand-in for the contents of a frame, which rules do not match
                    continue
                for v in variables(call.results):
                    state.maker[v] = call
        alive = without_unused(new_calls, replaced(results))
        changed = changed or len(alive) < len(calls)
        calls = alive
        if not changed:
            break
    return calls, replaced


def tuple_of_arrays(xp: ProgramBackend, tree: Any) -> Any:
    """Results of a block: numbers as constants."""
    if type(tree) is tuple:
        return tuple([tuple_of_arrays(xp, x) for x in tree])
    return tree if type(tree) is Var else xp.variable(tree)


def _take_place(call: Call, of: Call) -> None:
    for name in ("place", "scope"):
        if hasattr(of, name):
            setattr(call, name, getattr(of, name))


def _used(calls: Iterable[Call]) -> Iterable[Var]:
    for call in calls:
        yield from variables([call.args, call.kwargs])


def without_unused(calls: list[Call], results: Any) -> list[Call]:
    """Return the calls whose results are used."""
    used = set(variables(results))
    used_calls = []
    for call in reversed(calls):
        if used.isdisjoint(variables(call.results)):
            continue
        used.update(variables([call.args, call.kwargs]))
        used_calls.append(call)
    return used_calls[::-1]


# ---- patterns ----------------------------------------------------


@dataclass
class Match:
    state: Rewriting
    values: dict[str, Any] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    def match(self, pattern: ast.expr, value: Any) -> bool:
        if isinstance(pattern, ast.NamedExpr):
            assert isinstance(pattern.target, ast.Name)
            return self.match(pattern.value, value) and self.bind(pattern.target.id, value)
        if isinstance(pattern, ast.Name):
            return self.bind(pattern.id, value)
        if isinstance(pattern, ast.Constant | ast.UnaryOp | ast.Tuple):
            number = ast.literal_eval(pattern)
            if isinstance(value, Var):
                value = self.state.number(value)
                if value is None or isinstance(number, tuple):
                    return False
            if isinstance(number, bool | int | float) and isinstance(value, bool | int | float):
                return isinstance(number, bool) == isinstance(value, bool) and math.isclose(number, value, rel_tol=2e-6)
            return number == value
        assert isinstance(pattern, ast.Call) and isinstance(pattern.func, ast.Name)
        call = self.state.maker.get(value) if type(value) is Var else None
        return call is not None and call.method == pattern.func.id and self.match_call(pattern, call)

    def bind(self, name: str, value: Any) -> bool:
        if name in self.values:
            return _is_same(self.values[name], value)
        self.values[name] = value
        return True

    def match_call(self, pattern: ast.Call, call: Call) -> bool:
        named = bound(call)
        names = list(named)
        patterns: dict[str, ast.expr] = dict(zip(names, pattern.args, strict=False))
        patterns |= {str(k.arg): k.value for k in pattern.keywords}
        unsaid = [n for n in names if n not in patterns]
        if any(not _is_same(named[n], p.default) for p in parameters(call.method) for n in unsaid if p.name == n):
            return False
        orders = [list(patterns.items())]
        if call.method in COMMUTATIVE:
            (a, first), (b, second) = orders[0]
            orders.append([(a, second), (b, first)])
        kept_values, kept_calls = dict(self.values), list(self.calls)
        for order in orders:
            if all(self.match(p, named[n]) for n, p in order):
                self.calls.append(call)
                return True
            self.values, self.calls = dict(kept_values), list(kept_calls)
        return False

    def is_whole(self) -> bool:
        """Return whether only the result of the matched calls (of the one matched last) is used outside of them."""
        uses_inside: Counter[Var] = Counter()
        distinct = list(dict.fromkeys(self.calls))
        for call in distinct:
            uses_inside.update(variables([call.args, call.kwargs]))
        return all(self.state.uses[v] == uses_inside[v] for call in distinct[:-1] for v in variables(call.results))


def idiom(
    new: str, *patterns: str, when: Callable[[dict[str, Any]], Any] | None = None, sole_use: bool = True
) -> list[tuple[str, Rule]]:
    """Return rules that replace the patterns by `new`, a call whose arguments are names of the patterns and literals.
    `when` receives {name: what it matched}, decides whether the rule applies, and may add names. With `sole_use`, inner
    results must not be used elsewhere."""
    target = ast.parse(new, mode="eval").body
    rules: list[tuple[str, Rule]] = []
    for text in patterns:
        pattern = ast.parse(text.strip(), mode="eval").body
        assert isinstance(pattern, ast.Call) and isinstance(pattern.func, ast.Name)
        rules.append(
            (pattern.func.id, functools.partial(_apply, pattern=pattern, target=target, when=when, sole_use=sole_use))
        )
    return rules


def _apply(
    state: Rewriting, call: Call, *, pattern: ast.Call, target: ast.expr, when: Any, sole_use: bool
) -> New | Var | Number | None:
    matcher = Match(state)
    if not matcher.match_call(pattern, call) or (sole_use and not matcher.is_whole()):
        return None
    if when is not None and not when(matcher.values):
        return None
    if isinstance(target, ast.Name):
        return matcher.values[target.id]
    assert isinstance(target, ast.Call) and isinstance(target.func, ast.Name)
    method = target.func.id

    def value(node: ast.expr) -> Any:
        return matcher.values[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node)

    named = dict(zip([p.name for p in parameters(method)], map(value, target.args), strict=False))
    named |= {str(k.arg): value(k.value) for k in target.keywords}
    if type(next(iter(named.values()))) is not Var:  # the array is the other operand: maximum(0.0, zeros(...))
        return None
    return New(method, named)


def table(*rules: Iterable[tuple[str, Rule]]) -> dict[str, list[Rule]]:
    """Return rules by the method of the call that they match, in order."""
    out: dict[str, list[Rule]] = {}
    for pairs in rules:
        for method, rule in pairs:
            out.setdefault(method, []).append(rule)
    return out
