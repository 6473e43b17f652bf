"""The statements of a function: which values are written as one expression, and the names of the others.

A value that is used once and has no name in the user's program is written where it is used; the others are assigned, to
the names that the user gave them. A name is assigned again, as people do (`x = x + attention(x)`), if its previous
value is not used any more.
"""

from __future__ import annotations

import ast
import builtins
import functools
import itertools
import keyword
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgraft.codegen.output.expressions import fill, literal, name, repeated, text
from tensorgraft.codegen.recorders.calls import NotExpressibleError, bound, defaults
from tensorgraft.codegen.structure.functions import Invoke, Repeat, SourceFunction, Static
from tensorgraft.codegen.structure.size_merging import Extent, Quantity
from tensorgraft.codegen.structure.sizes import Sizes
from tensorgraft.codegen.styles import Style, contents
from tensorgraft.codegen.trace import Block, HubName, SourceStep, Var, variables
from tensorgraft.hub.recorded.block import leaves

LONGEST = 76  # characters of an expression that is written inside another one
SHORT = 44  # columns of an expression that has a name in the hub
_RESERVED = frozenset({*keyword.kwlist, *dir(builtins), "_"})
_NOUNS = {"matmul": "product", "sum": "total", "add": "total", "subtract": "difference", "multiply": "product"}
_NAMES = {
    **dict.fromkeys(["layer_norm", "rms_norm", "batch_norm", "group_norm"], "normed"),
    **dict.fromkeys(["matmul", "linear"], "projected"),
    "softmax": "weights",
}
_PARTS = {"lstm": ("output", "h", "c"), "gru": ("output", "h"), "rnn": ("output", "h")}
_MOVING = frozenset(
    {"permute_dims", "split", "getitem", "concat", "conv", "einsum", "flatten", "dot_product_attention"}
)


class SizeError(NotExpressibleError):
    """Raised for a number that depends on the sizes of the arguments, but is no known expression of them."""


class _NeedsNameError(Exception):
    """Raised for an expression that is used twice: the function is written again with a name for it."""

    def __init__(self, v: Var, hold: bool = False) -> None:
        self.v, self.hold = v, hold


class UnsettledError(Exception):
    """Raised by a rule that reads numbers which differ between the modules of one function: these need separate
    functions."""

    def __init__(self, method: str) -> None:
        super().__init__(method)
        self.method = method


@dataclass
class Statement:
    node: ast.stmt
    comment: str = ""


def write_function(
    function: SourceFunction, style: Style, result: Any = None, root: bool = False
) -> tuple[list[Statement], list[str]]:
    """Return (statements of the body, names of the arguments). `result`: a tree to return instead of
    `function.results`; `root`: it is the program itself."""
    named: set[Var] = set()
    pinned: set[Var] = set()
    while True:
        writer = FunctionWriter(function, style, named, root, pinned)
        try:
            return writer.write(result), writer.argument_names
        except _NeedsNameError as needed:
            known = pinned if needed.hold else named
            if needed.v in known:
                raise
            known.add(needed.v)


class FunctionWriter:
    """`Writing` of one function."""

    def __init__(self, function: SourceFunction, style: Style, named: set[Var], root: bool, pinned: set[Var]) -> None:
        self.is_root = root
        self.pinned = pinned  # variables that keep their names, because their sizes are used later
        self.function, self.style, self.target, self.named = function, style, style.target, named
        self.statements: list[Statement] = []
        self.names: dict[Var, str] = {}  # of assigned variables
        self.holder: dict[str, Var] = {}  # {name: the variable that it has now}
        self.pending: dict[Var, tuple[ast.expr, frozenset[Var]]] = {}
        self.spent: set[Var] = set()
        self.refs: set[Var] = set()  # variables that the expression being written reads
        self.remaining: Counter[Var] = Counter()
        self.current: SourceStep | None = None
        self.read_from_outside: set[str] = set()  # in bodies of loops: names that stay those of the function around
        self.used_labels: dict[str, tuple[Var, int]] = {}
        self.reserved = {*style.taken, *function.statics}
        self.never = _RESERVED | style.roots_of(function) | ({"key"} if style.trace.key is not None else set())
        self.argument_names: list[str] = []

    # ---- the whole -------------------------------------------------------------------------------------------------

    def write(self, result: Any = None) -> list[Statement]:
        function = self.function
        tree = tuple(function.results) if result is None else result
        for call in function.calls:
            for v in self.uses(call):
                self.remaining[v] += 1
        for v in variables(tree):
            self.remaining[v] += 1
        self.returned = Counter(variables(tree))
        for v, hint in zip(function.arguments, function.argument_names, strict=True):
            self.argument_names.append(self.bind(v, hint or "x"))
        labels = {*self.style.labels.values()}
        self.reserved |= labels
        self.sources: list[tuple[Any, Any, Var | None]] = []
        for v in function.arguments:
            self.add_sizes(v, True)
        for call in function.calls:
            self.statement(call)
        if result is None and len(function.results) == 1:
            tree = function.results[0]
        value = self(tree)
        self.emit(ast.Return(value))
        return [*self.prelude(), *self.statements]

    def uses(self, call: SourceStep | Repeat) -> Iterator[Var]:
        if isinstance(call, Repeat):
            first = call.invokes[0]
            for v in first.args:
                yield v
                yield v
        elif isinstance(call, Invoke):
            yield from variables(call.args)
        else:
            for x in [*call.args, *call.kwargs.values()]:
                if isinstance(x, Block):
                    for v in variables(x):
                        yield v
                        yield v
                else:
                    yield from variables(x)

    def emit(self, node: ast.stmt, comment: str = "") -> None:
        last_comment = next((s.comment for s in reversed(self.statements) if s.comment), "")
        comment = "" if comment == last_comment else comment
        self.statements.append(Statement(node, comment))
        self.refs = set()

    # ---- names -----------------------------------------------------------------------------------------------------

    def free(self, candidate: str) -> bool:
        if candidate in self.reserved or candidate in self.never or candidate in self.read_from_outside:
            return False
        v = self.holder.get(candidate)
        return v is None or (
            v not in self.pinned and self.remaining[v] <= 0 and not any(v in refs for _, refs in self.pending.values())
        )

    def unused_name(self, *candidates: str) -> str:
        """Return the first of these names that nothing has."""
        return next(c for c in candidates if c not in self.reserved and c not in self.holder and c not in self.never)

    def bind(self, v: Var, base: str) -> str:
        base = base.strip("_") or "x"
        base = "x" if base == "input" else base
        if not base.isidentifier():
            base = "x"
        if base in self.style.taken or base in self.never or base in self.function.statics:
            base = f"{base}_out" if base in self.style.taken else f"{base}_"
        for candidate in itertools.chain([base], (f"{base}{i}" for i in itertools.count(2))):
            if self.free(candidate):
                self.names[v] = candidate
                self.holder[candidate] = v
                return candidate
        raise AssertionError

    def other_name(self, call: SourceStep, base: str) -> str:
        """Return `base`, or where that name is still in use one of the module or the operation, if it is free."""
        if self.free(base):
            return base
        if isinstance(call, Invoke) and call.path and not call.path[-1].isdigit() and self.free(call.path[-1]):
            return call.path[-1]
        other = _NAMES.get(call.method, base)
        return other if self.free(other) else base

    def base_name(self, v: Var, call: SourceStep, position: int) -> str:
        if position < len(call.names) and call.names[position]:
            return call.names[position]
        if call.method in _PARTS:
            return _PARTS[call.method][position]
        for u in variables([call.args, call.kwargs]):
            at = self.names.get(u)
            if at is not None and self.free(at) and u.ndim == v.ndim and u not in self.function.parameters:
                return at
        if isinstance(call, Invoke):
            return "x" if self.free("x") or not call.path else call.path[-1] + "_out"
        return _NOUNS.get(call.method, call.method if call.method in ("mean", "var", "mask", "scores") else "x")

    # ---- sizes -----------------------------------------------------------------------------------------------------

    def add_sizes(self, v: Var, argument: bool) -> None:
        for i, extent in enumerate(v.shape):
            if not isinstance(extent, Extent):
                continue
            if argument:
                self.sources.append((extent.values, lambda v=v, i=i, e=extent: self.label(v, i, e), None))
            else:
                self.sources.append((extent.values, lambda v=v, i=i: self.size_now(v, i), v))

    def label(self, v: Var, axis: int, extent: Extent) -> ast.expr:
        n = len(next(iter(self.style.labels), ()))
        text_of = self.style.labels.get(extent.values[:n]) or ("width" if axis == v.ndim - 1 else "size")
        known = next(
            (k for k, (u, i) in self.used_labels.items() if getattr(u.shape[i], "values", None) == extent.values), None
        )
        if known is not None:
            return ast.Name(known)
        other = {*self.used_labels, *self.function.statics, *self.names.values(), *self.never}
        numbered = (f"{text_of}{i}" for i in itertools.count(2))
        text_of = next(c for c in itertools.chain([text_of], numbered) if c not in other)
        self.used_labels[text_of] = (v, axis)
        self.reserved.add(text_of)
        return ast.Name(text_of)

    def sizes(self) -> Sizes:
        """Return the known sizes: of arguments first, then of arrays that have a name at this place, then of others."""

        def rank(v: Var | None) -> int:
            at = None if v is None else self.names.get(v)
            return 0 if v is None else 1 if at is not None and self.holder.get(at) is v else 2

        return Sizes([(values, write) for values, write, _ in sorted(self.sources, key=lambda s: rank(s[2]))])

    def size_now(self, v: Var, axis: int) -> ast.expr:
        if v in self.pending or v in self.spent:
            raise _NeedsNameError(v)
        at = self.names.get(v)
        if at is None or self.holder.get(at) is not v:
            raise _NeedsNameError(v, hold=True)
        self.refs.add(v)
        return fill("shape[i]", shape=fill(self.target.shape, x=ast.Name(at)), i=literal(axis))

    def prelude(self) -> list[Statement]:
        """Write the assignments of sizes, such as `batch, length, _ = x.shape`."""
        by_array: dict[Var, dict[int, str]] = {}
        for label, (v, i) in self.used_labels.items():
            by_array.setdefault(v, {})[i] = label
        lines = []
        initial = dict(zip(self.function.arguments, self.argument_names, strict=True))
        for v, axes in by_array.items():
            shape = fill(self.target.shape, x=ast.Name(initial[v]))
            if len(axes) > 1 or v.ndim == 1:
                targets = [ast.Name(axes.get(i, "_")) for i in range(max(axes) + 1)]
                if len(targets) < v.ndim:
                    shape = fill("shape[:n]", shape=shape, n=literal(len(targets)))
                lines.append(Statement(ast.Assign([ast.Tuple([*targets])], shape)))
            else:
                ((i, label),) = axes.items()
                lines.append(Statement(ast.Assign([ast.Name(label)], fill("s[i]", s=shape, i=literal(i)))))
        return lines

    # ---- values (what rules call) ----------------------------------------------------------------------------------

    def __call__(self, value: Any) -> ast.expr:
        if isinstance(value, ast.expr):
            return value
        if isinstance(value, Var):
            return self.array(value)
        if isinstance(value, Static):
            return self.style.static(self, value)
        if isinstance(value, Extent | Quantity):
            expression = self.sizes().expression(value)
            if expression is None:
                raise SizeError(
                    f"{self.where()}: the number {value!r} depends on the sizes of the arguments, but not by an"
                    f" expression of {', '.join(map(str, self.function.arguments))} that was found"
                )
            return expression
        if isinstance(value, np.dtype):
            return name(self.target.dtype(value))
        if isinstance(value, np.generic):
            return self(value.item())
        if isinstance(value, tuple):
            return ast.Tuple([self(v) for v in value])
        if isinstance(value, list):
            return ast.List([self(v) for v in value])
        if isinstance(value, dict):
            return ast.Dict([literal(k) for k in value], [self(v) for v in value.values()])
        if isinstance(value, slice):
            if value.start is None and value.stop is None and value.step is None:
                return ast.Slice()
            return ast.Slice(*(None if x is None else self(x) for x in (value.start, value.stop, value.step)))
        if isinstance(value, float) and value != value:
            return name(self.target.nan)
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            return name(self.target.infinity if value > 0 else f"-{self.target.infinity}")
        return literal(value)

    def array(self, v: Var) -> ast.expr:
        if v.value is not None:
            return self.constant(v)
        if v in self.function.parameters:
            return self.style.parameter(self, v)
        if v in self.pending:
            if v in self.spent:
                raise _NeedsNameError(v)
            self.spent.add(v)
            expression, refs = self.pending.pop(v)
            self.refs |= refs
            return expression
        if v in self.spent:
            raise _NeedsNameError(v)
        at = self.names.get(v)
        if at is None or self.holder.get(at) is not v:
            if v in self.pinned:
                raise AssertionError(f"{self.function.name}: {v} has no name any more")
            raise _NeedsNameError(v, hold=True)  # a body of a loop in a loop looks at it
        self.refs.add(v)
        return ast.Name(at)

    def constant(self, v: Var) -> ast.expr:
        value = v.value
        assert value is not None
        if value.ndim == 0 and value.dtype.kind in "biufc" and value.dtype.isbuiltin == 1:
            return fill(self.target.constant, x=self(value.item()), dtype=self(value.dtype))
        key = contents(value)
        known = self.style.constants.get(key)
        if known is None:
            if value.size > 4096:
                raise NotExpressibleError(f"{self.where()}: a constant of {v} is too large for source")
            title = self.style.titles.get(key, "")
            expression = self.regular(value)
            if expression is not None and not title:
                return expression
            if expression is None:
                wide = value.tolist() if value.dtype.isbuiltin == 1 else value.astype(np.float32).tolist()
                expression = fill(self.target.constant, x=self(wide), dtype=self(value.dtype))
            if value.size <= 8 and not title:
                return expression
            used_names = {n for n, _ in self.style.constants.values()} | self.style.taken
            numbered = itertools.chain(
                [title] if title else [], (f"{title or 'CONSTANT'}_{i}" for i in itertools.count(1))
            )
            known = (next(n for n in numbered if n not in used_names), expression)
            self.style.constants[key] = known
        return ast.Name(known[0])

    def regular(self, value: np.ndarray) -> ast.expr | None:
        """Return a shorter expression for a constant of equal integers or of 0, 1, 2, ...; None for other constants."""
        flat = value.reshape(-1)
        if value.dtype.kind not in "biu" or flat.size <= 8 or value.dtype.isbuiltin != 1:
            return None
        if (flat == flat[0]).all():
            return self.expression("full", tuple(value.shape), flat[0].item(), value.dtype)
        if value.dtype.kind == "b" or max(value.shape) != flat.size or not (flat == np.arange(flat.size)).all():
            return None
        row = self.expression("arange", 0, flat.size, 1, value.dtype)
        axes: list[ast.expr] = [ast.Slice() if n == flat.size else literal(None) for n in value.shape]
        if isinstance(axes[-1], ast.Slice):
            axes.pop()
        if row is None or not axes:
            return row
        return ast.Subscript(row, axes[0] if len(axes) == 1 else ast.Tuple(axes))

    def expression(self, method: str, *args: Any) -> ast.expr | None:
        """Return an operation in the target's words, as an expression; None where it has none."""
        rule = self.target.rules.get(method)
        arguments = bound(method, args, {})
        return (
            None if rule is None else self.fill(rule, **arguments) if isinstance(rule, str) else rule(self, **arguments)
        )

    def fill(self, template: str, /, **arguments: Any) -> ast.expr:
        holes = {k: None if v is None else self(v) for k, v in arguments.items()}
        for k in repeated(template):
            if isinstance(arguments.get(k), Var):
                self(arguments[k])  # an expression that is written twice gets a name
        return fill(template, **holes)

    def call_outcome(self) -> Any:
        assert self.current is not None
        return self.current.results

    def where(self) -> str:
        location = getattr(self.current, "place", "") if self.current is not None else ""
        return f"{self.function.kind}{f' ({location})' if location else ''}"

    # ---- bodies of loops and branches --------------------------------------------------------------------------------

    def body(self, block: Block, base: str, star: bool = False) -> ast.expr:
        """Return a nested function. `star`: its parameters are tuples of arrays, which are unpacked at its start."""
        title = next(c for c in itertools.chain([base], (f"{base}{i}" for i in itertools.count(2)))
                     if c not in self.reserved and c not in self.holder)  # fmt: skip
        self.reserved.add(title)
        outer, self.statements = self.statements, []
        refs, self.refs = self.refs, set()
        outer_names = self.read_from_outside
        read = [u for v in variables(block) for u in (self.pending[v][1] if v in self.pending else (v,))]
        self.read_from_outside = outer_names | {self.names[v] for v in (*read, *self.pinned) if v in self.names}
        holder, sources = self.holder, len(self.sources)
        self.holder = {n: v for n, v in holder.items() if n in self.read_from_outside}  # other names may be its own
        arguments: list[str] = []
        for call in block.calls:
            for v in variables([call.args, call.kwargs]):
                self.remaining[v] += 1
        for v in variables(block.result):
            self.remaining[v] += 1
        names = dict(zip(variables(block.parameters), block.names, strict=False))
        for parameter in block.parameters:
            if isinstance(parameter, Var):
                arguments.append(self.bind(parameter, names.get(parameter) or "x"))
                continue
            row_name = next(c for c in itertools.chain(["state", "row"], (f"part{i}" for i in itertools.count()))
                         if c not in arguments)  # fmt: skip
            arguments.append(row_name)
            if parameter:
                targets = [ast.Name(self.bind(v, names.get(v) or "x")) for v in parameter]
                self.emit(ast.Assign([ast.Tuple([*targets])], ast.Name(row_name)))
        for call in block.calls:
            self.statement(
                call if isinstance(call, SourceStep) else SourceStep(call.method, call.args, call.kwargs, call.results)
            )
        self.emit(ast.Return(self(block.result)))
        inner, self.statements, self.refs, self.read_from_outside = self.statements, outer, refs, outer_names
        self.holder = holder
        del self.sources[sources:]
        definition = ast.FunctionDef(
            title,
            ast.arguments([], [ast.arg(a) for a in arguments], None, [], [], None, []),
            [s.node for s in inner],
            [],
        )
        self.statements.append(Statement(ast.fix_missing_locations(definition)))
        return ast.Name(title)

    # ---- statements ------------------------------------------------------------------------------------------------

    def statement(self, call: SourceStep | Repeat) -> None:
        if isinstance(call, Repeat):
            self.repeat(call)
            return
        self.current = call
        if call.method == "assign":
            node = self.style.assignment(self, call)
            for v in self.uses(call):
                self.remaining[v] -= 1
            self.emit(node)
            return
        refs_before, self.refs = self.refs, set()
        expression = self.invocation(call) if isinstance(call, Invoke) else self.operation(call)
        for v in self.uses(call):
            self.remaining[v] -= 1
        target_tree = call.results
        if isinstance(target_tree, tuple | list) and len(target_tree) == 1 and isinstance(call, Invoke):
            target_tree = target_tree[0]
        if isinstance(target_tree, Var) and self.inlined(target_tree, call, expression):
            self.pending[target_tree] = (expression, frozenset(self.refs))
            self.refs = refs_before
            return
        position = 0

        def target(tree: Any) -> ast.expr:
            nonlocal position
            if isinstance(tree, tuple | list) and position and all(self.remaining[v] <= 0 for v in variables(tree)):
                return ast.Name("_")
            if isinstance(tree, tuple | list):
                return ast.Tuple([target(t) for t in tree])
            position += 1
            if self.remaining[tree] <= 0:
                return ast.Name("_")
            return ast.Name(self.bind(tree, self.other_name(call, self.base_name(tree, call, position - 1))))

        node = ast.Assign([target(target_tree)], expression)
        self.emit(node, self.shapes(call))
        self.refs = refs_before
        for v in variables(target_tree):
            self.add_sizes(v, False)

    def inlined(self, v: Var, call: SourceStep, expression: ast.expr) -> bool:
        if v in self.named or self.remaining[v] != 1 or isinstance(expression, ast.Name):
            return False
        if any(isinstance(x, Block) for x in call.args):
            return False
        if self.returned[v]:
            return len(text(expression)) <= 2 * LONGEST
        if isinstance(call, Invoke) and call.path and call.path[-1].isdigit() and len(call.path) > 1:
            return len(text(expression)) <= LONGEST // 2  # a row of modules is one after another
        most = SHORT if any(call.names) and all(isinstance(n, HubName) for n in call.names) else LONGEST
        return (most == SHORT or not any(call.names)) and len(text(expression)) <= most

    def shapes(self, call: SourceStep) -> str:
        if call.method not in _MOVING or not isinstance(call.results, Var):
            return ""
        sizes = [self.dimension(d) for d in call.results.shape]
        return f"({', '.join(sizes)})" if sizes.count("n") < 2 else ""

    def dimension(self, d: Any) -> str:
        if not isinstance(d, Extent):
            return str(d)
        if not self.style.labels:  # it differs between the modules of one function alone
            return "n"
        n = len(next(iter(self.style.labels), ()))
        if any(d.values[i : i + n] != d.values[:n] for i in range(n, len(d.values), n)):
            return "n"
        label = self.style.labels.get(d.values[:n])
        if label is not None:
            return label
        labels = [(v, functools.partial(ast.Name, k)) for v, k in self.style.labels.items()]
        expression = Sizes(labels).expression(Extent(d.values[:n]))
        return text(expression) if expression is not None else "?"

    def operation(self, call: SourceStep) -> ast.expr:
        rule = self.target.rules.get(call.method)
        if rule is None:
            raise NotExpressibleError(f"{self.where()}: {call.method} cannot be written in {self.target.name}")
        arguments = bound(call.method, call.args, call.kwargs)
        if call.method == "reshape":
            arguments["shape"] = self.inferred(arguments["shape"])
        if isinstance(rule, str):
            usual = defaults(call.method)
            plain = {k: None if k in usual and _plainly_equal(v, usual[k]) else v for k, v in arguments.items()}
            return self.fill(rule, **plain)
        try:
            return rule(self, **arguments)
        except TypeError as error:
            if any(isinstance(x, Static) for x in leaves([call.args, call.kwargs])):
                raise UnsettledError(call.method) from error
            raise

    def inferred(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """Return a shape with -1 for the only extent that is no number, or the only one that is no size, and has no
        name."""
        unknown = [i for i, d in enumerate(shape) if isinstance(d, Extent | Static)]
        if len(unknown) > 1:
            sizes = self.sizes()
            unknown = [i for i in unknown if isinstance(shape[i], Static) or shape[i] not in sizes]
        if len(unknown) != 1 or 0 in shape:
            return tuple(shape)
        d = shape[unknown[0]]
        n = len(next(iter(self.style.labels), ()))
        if isinstance(d, Extent) and d.values[:n] in self.style.labels and any(
            isinstance(e, Extent) and e.values == d.values for v in self.function.arguments for e in v.shape
        ):  # fmt: skip
            return tuple(shape)
        return tuple(-1 if i in unknown else e for i, e in enumerate(shape))

    def invocation(self, call: Invoke) -> ast.expr:
        callee, args = self.style.callee(self, call)
        keywords = [ast.keyword(k, self(v)) for k, v in call.statics.items()]
        return ast.Call(callee, [*args, *self.style.passed(call, [self(v) for v in call.args])], keywords)

    def repeat(self, row: Repeat) -> None:
        first, last = row.invokes[0], row.invokes[-1]
        self.current = first
        carry = {j: k for k, j in row.carried}
        names: dict[int, str] = {}
        for j, k in carry.items():  # a value that is carried around the loop has one name
            v = first.args[j]
            hint = next((c.names[k] for c in row.invokes if k < len(c.names) and c.names[k]), "")
            at = None if v in self.pending or v in self.function.parameters else self.names.get(v)
            self.remaining[v] -= 2
            if at is not None and self.free(at):
                names[j] = at
                continue
            value = self(v)
            names[j] = self.bind(last.results[k], hint or "x")
            self.emit(ast.Assign([ast.Name(names[j])], value))
        over, callee, args = self.style.row(self, row)
        for j, v in enumerate(first.args):
            args.append(ast.Name(names[j]) if j in names else self(v))
        for v in first.args:
            self.remaining[v] = self.remaining[v] if v in [first.args[j] for j in carry] else self.remaining[v] - 2
        keywords = [ast.keyword(k, self(v)) for k, v in first.statics.items()]
        by_result = {k: names[j] for k, j in row.carried}
        targets: list[ast.expr] = [ast.Name(by_result.get(k, "_")) for k in range(len(first.results))]
        target = targets[0] if len(targets) == 1 else ast.Tuple(targets)
        call = ast.Call(callee, args, keywords)
        loop = ast.For(over[0], over[1], [ast.Assign([target], call)], [])
        self.emit(loop)
        for k, j in row.carried:
            v = last.results[k]
            self.names[v] = names[j]
            self.holder[names[j]] = v
            self.add_sizes(v, False)


def _plainly_equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and not isinstance(a, Var | Extent) and bool(a == b)
