"""Classes of modules: the common part of styles that write classes.

A class has the parameters, modules and lists of its module, under the names in the source, so that names of a
checkpoint remain valid. The members of a class are a tree of `Member`s.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tensorgraft.codegen.output.expressions import attribute_names, fill, literal, name, text
from tensorgraft.codegen.recorders.calls import NotExpressibleError
from tensorgraft.codegen.structure.functions import Invoke, Path, Repeat, SourceFunction, Static
from tensorgraft.codegen.styles import Definition, Style, Writer
from tensorgraft.codegen.styles.modules import Multiple
from tensorgraft.codegen.targets import Target
from tensorgraft.codegen.trace import SourceStep, SourceTrace, Var, variables

Scope = dict[str, ast.expr]  # {argument of a constructor: its expression}


class TwoWaysError(NotExpressibleError):
    """Modules (by `paths`) are called in two ways, which one method cannot say."""

    def __init__(self, parted: dict[str, SourceFunction]) -> None:
        self.paths = frozenset(parted)
        path, f = next(iter(parted.items()))
        super().__init__(f"{f.kind} ({f.place}): the module {path} is called in two ways, which one method cannot say")


@dataclass
class Member:
    """A parameter, a module that is called, or a container of others."""

    path: Path
    children: dict[str, Member] = field(default_factory=dict)
    invoke: Invoke | None = None
    parameter: Var | None = None

    @property
    def is_list(self) -> bool:
        return bool(self.children) and all(k.isdigit() for k in self.children)

    @property
    def is_mixed(self) -> bool:
        """Return True if its attributes have numbers among their names, as those of a parametrized weight do, and it is
        no list."""
        return bool(self.children) and not self.is_list

    @property
    def is_holder(self) -> bool:
        return self.invoke is None and self.parameter is None and not self.is_list


class Classes(Style):
    base = "nn.Module"
    method = "forward"
    first_line = "super().__init__()"  # the first line of a constructor; "" for none
    missing = "None"  # in the place of a module of a list that is not used
    holder = "nn.Module()"  # an object that holds others
    indexed = False  # classes of modules in a row have these by number
    dictionaries = False  # these are dictionaries instead
    clashing: frozenset[str] = frozenset()  # names that the base class has: modules under them get an underscore

    def __init__(self, target: Target, trace: SourceTrace, functions: list[SourceFunction]) -> None:
        super().__init__(target, trace, functions)
        self.taken |= {"self"}
        self.functions = functions
        # attributes that methods read, which constructors have to set
        self.stored: dict[SourceFunction, set[str]] = {f: set() for f in functions}
        self.trees = _trees(functions)
        self.attributes = attribute_names([*trace.parameters, *trace.buffers, *trace.containers, *trace.weights])
        self.order = {p: i for i, p in enumerate([*trace.parameters, *trace.buffers, *trace.containers])}
        self.check_paths()

    def check_paths(self) -> None:
        homes: dict[tuple[str, ...], SourceFunction] = {}
        parted: dict[str, SourceFunction] = {}
        for f in self.functions:
            for path in f.paths if f.is_module else ():
                other = homes.setdefault(path, f)
                if other is not f and not (f.layer and other.layer):
                    parted[".".join(path)] = f
        if parted:
            raise TwoWaysError(parted)

    # ---- what the writer of a function asks -----------------------------------------------------------------------

    def written(self, functions: list[SourceFunction]) -> list[SourceFunction]:
        """Leave out functions that classes of the framework replace, and functions that only these would have
        called."""
        used_functions = {functions[-1]}
        for f in reversed(functions):
            if f in used_functions and (f.layer is None or not f.layer.callee):
                for call in f.calls:
                    invokes = call.invokes if isinstance(call, Repeat) else [call]
                    used_functions.update(c.function for c in invokes if isinstance(c, Invoke))
        return [f for f in functions if f in used_functions and f.layer is None]

    def parameter(self, writer: Writer, v: Var) -> ast.expr:
        return self.at(writer.function.parameters[v], writer.function)

    def at(self, path: Iterable[str], f: SourceFunction) -> ast.expr:
        """Return an expression for the member at `path` of a function's module."""
        expression: ast.expr = ast.Name("self")
        node: Member | None = self.trees[f]
        for k, part in enumerate(path):
            if part.isdigit() and (k or self.indexed) and not (node and node.is_mixed):
                expression = ast.Subscript(expression, ast.Constant(int(part)))
            elif k and self.dictionaries and node is not None and node.is_holder:
                expression = ast.Subscript(expression, ast.Constant(part))
            else:
                expression = ast.Attribute(expression, self.attribute(part))
            node = None if node is None or node.invoke is not None else node.children.get(part)
        return expression

    def attribute(self, part: str) -> str:
        if part.isdigit():
            return f"layer{part}"
        part = self.attributes.get(part, part)
        return f"{part}_" if part in self.clashing or keyword.iskeyword(part) else part

    def clashes(self) -> bool:
        def clashes_below(node: Member) -> bool:
            return any(self.attribute(k) != k or clashes_below(n) for k, n in node.children.items() if not k.isdigit())

        return any(map(clashes_below, self.trees.values()))

    def base_of(self, d: Definition) -> str:
        return self.base

    def callee(self, writer: Writer, call: Invoke) -> tuple[ast.expr, list[ast.expr]]:
        if not call.function.is_module or call.path is None:
            return ast.Name(call.function.name), []
        return self.at(call.path, writer.function), []

    def row(self, writer: Writer, row: Repeat) -> tuple[tuple[ast.expr, ast.expr], ast.expr, list[ast.expr]]:
        modules = self.at(row.path, writer.function)
        stop = row.first + len(row.invokes)
        node = self.trees[writer.function]
        for part in row.path:
            node = node.children[part]
        if row.first or stop != 1 + max(map(int, node.children)):
            modules = ast.Subscript(modules, ast.Slice(literal(row.first) if row.first else None, literal(stop)))
        last = row.path[-1] if row.path else "blocks"
        title = last[:-1] if last.endswith("s") and len(last) > 2 else "block"
        block = ast.Name(writer.unused_name(title, "block", "layer", f"{title}_"))
        return (block, modules), block, []

    def static(self, writer: Writer, value: Static) -> ast.expr:
        if value.name in writer.function.config:
            self.stored[writer.function].add(value.name)
            return ast.Attribute(ast.Name("self"), value.name)
        return ast.Name(value.name)

    def stateful_result(self, trace: SourceTrace) -> Any:
        return trace.result

    # ---- constructors ---------------------------------------------------------------------------------------------

    def constructor_call(self, invoke: Invoke, scope: Scope | None = None) -> ast.expr:
        """Return the expression that makes a module."""
        f = invoke.function
        values = {k: self.value(v, scope) for k, v in invoke.config.items()}
        if f.layer is None:
            positional = [values[k] for k in f.config] if len(f.config) == 1 else []
            keywords = [] if positional else [ast.keyword(k, values[k]) for k in f.config]
            return ast.Call(ast.Name(f.name), positional, [*keywords, *self.extra_keywords(f)])
        if not f.layer.callee:
            return self.sequence([self.element(n, values) for n in filled(self.trees[f])])
        args = [values[k] for k in values if k.isdigit()]
        keywords = [
            ast.keyword(k, v) for k, v in values.items()
            if not k.isdigit() and (k not in f.layer.defaults or text(v) != text(self.value(f.layer.defaults[k], None)))
        ]  # fmt: skip
        return ast.Call(name(f.layer.callee), args, keywords)

    def extra_keywords(self, f: SourceFunction) -> list[ast.keyword]:
        """Return keywords of a class's constructor in addition to its sizes."""
        return []

    def sequence(self, parts: list[ast.expr]) -> ast.expr:
        return ast.Call(name("nn.Sequential"), parts, [])

    def element(self, node: Member | None, scope: Scope | None) -> ast.expr:
        if node is None:
            return name(self.missing)
        if node.invoke is not None:
            return self.constructor_call(node.invoke, scope)
        if node.parameter is not None:
            return self.new_parameter(node, scope)
        if node.is_list:
            return self.listed([self.element(n, scope) for n in filled(node)], node)
        if self.dictionaries:
            return ast.Dict(
                [literal(k) for k in node.children], [self.element(n, scope) for n in node.children.values()]
            )
        return name(self.holder)

    def listed(self, parts: list[ast.expr], node: Member) -> ast.expr:
        """Return a list of modules or parameters."""
        return self.plain_list(parts)

    def plain_list(self, parts: list[ast.expr]) -> ast.expr:
        texts = {text(p) for p in parts}
        if len(parts) > 1 and len(texts) == 1:
            return fill("[part for _ in range(n)]", part=parts[0], n=literal(len(parts)))
        return ast.List(parts)

    def new_parameter(self, node: Member, scope: Scope | None) -> ast.expr:
        raise NotImplementedError

    def value(self, x: Any, scope: Scope | None) -> ast.expr:
        if isinstance(x, Static):
            return scope[x.name] if scope is not None else ast.Name(x.name)
        if isinstance(x, Multiple):
            size = self.value(x.size, scope)
            if isinstance(size, ast.Constant) and isinstance(size.value, int):
                return literal(x.times * size.value)
            return fill("times * size", times=literal(x.times), size=size)
        if isinstance(x, tuple):
            if len(x) and all(text(self.value(e, scope)) == text(self.value(x[0], scope)) for e in x):
                return self.value(x[0], scope)
            return ast.Tuple([self.value(e, scope) for e in x])
        return literal(x)

    def shape(self, node: Member, scope: Scope | None) -> list[ast.expr]:
        f = self.current
        v = node.parameter
        assert v is not None
        return [self.value(d, scope) for d in f.shapes.get(node.path, v.shape)]

    # ---- text -----------------------------------------------------------------------------------------------------

    def definition(self, f: SourceFunction, d: Definition) -> str:
        if not f.is_module:
            returns = f" -> {d.returns}" if d.returns else ""
            head = f"def {f.name}({', '.join(d.arguments)}){returns}:"
            return "\n".join([head, *d.docstring(), *("    " + line for line in d.body)])
        self.current = f
        summary, _, shapes = d.doc.rpartition("\n\n")
        if f.doc and not summary:
            summary, shapes = d.doc, ""
        lines = [f"class {f.name}({self.base_of(d)}):"]
        lines += Definition([], "", summary, [], False).docstring() + [""] * bool(summary)
        fields = self.fields(f)
        if fields:
            lines += [*fields, ""]
        constructor = self.constructor(f, d)
        if constructor:
            sizes = [f"{k}: {type(v).__name__ if not isinstance(v, int) else 'int'}" for k, v in f.config.items()]
            lines += [f"    def __init__({', '.join(['self', *sizes, *self.constructor_arguments(f)])}) -> None:"]
            lines += ["        " + line for line in constructor] + [""]
        returns = f" -> {d.returns}" if d.returns else ""
        lines += [
            *(f"    @{x}" for x in self.decorators(d)),
            f"    def {self.method}({', '.join(['self', *d.arguments])}){returns}:",
        ]
        lines += Definition([], "", shapes, [], False).docstring("        ")
        lines += ["        " + line for line in d.body]
        return "\n".join(lines)

    def constructor_arguments(self, f: SourceFunction) -> list[str]:
        return []

    def decorators(self, d: Definition) -> list[str]:
        return []

    def fields(self, f: SourceFunction) -> list[str]:
        """Annotations in the class."""
        return []

    def constructor(self, f: SourceFunction, d: Definition) -> list[str]:
        """Return the lines of `__init__`."""
        lines = [f"self.{k} = {k}" for k in f.config if k in self.stored[f]]
        for key, node in self.ordered(f, self.trees[f]):
            lines += self.declared(ast.Attribute(ast.Name("self"), self.attribute(key)), node)
        if d.is_root:
            lines += self.ties()
        return [self.first_line, *lines] if lines and self.first_line else lines

    def declared(self, at: ast.expr, node: Member) -> list[str]:
        """Return the statements that make the member at a place."""
        return [f"{text(at)} = {text(self.element(node, None))}", *self.later(at, node)]

    def later(self, at: ast.expr, node: Member) -> list[str]:
        """Return the statements that fill a holder of members after it is made."""
        lines: list[str] = []
        if node.invoke is not None or node.parameter is not None or self.dictionaries:
            return lines
        for key, child in node.children.items():
            inner = (
                ast.Subscript(at, ast.Constant(int(key))) if node.is_list else ast.Attribute(at, self.attribute(key))
            )
            lines += self.later(inner, child) if node.is_list else self.declared(inner, child)
        return lines

    def ordered(self, f: SourceFunction, tree: Member) -> Iterator[tuple[str, Member]]:
        """Yield the members in the order of the source: parameters, then modules, as these were made."""
        prefix = ".".join(f.paths[0]) if f.paths else ""

        def order_of(item: tuple[str, Member]) -> tuple[int, int]:
            path = f"{prefix}.{item[0]}" if prefix else item[0]
            return item[1].parameter is None, self.order.get(path, len(self.order))

        yield from sorted(tree.children.items(), key=order_of)

    # ---- what is made at random -----------------------------------------------------------------------------------

    def is_random(self, node: Member) -> bool:
        """Return whether the member is a parameter that starts with random numbers."""
        v = node.parameter
        return v is not None and v.ndim > 1 and v.dtype.kind in "fcV" and v not in self.current.buffers

    def draws(self, node: Member) -> int:
        """Return the number of random keys that making this member takes."""
        if node.invoke is not None:
            return int(self.takes_key(node.invoke.function))
        return int(self.is_random(node)) + sum(map(self.draws, node.children.values()))

    def takes_key(self, f: SourceFunction) -> bool:
        outer, self.current = getattr(self, "current", f), f
        try:
            return any(map(self.draws, self.trees[f].children.values()))
        finally:
            self.current = outer

    def initial_kind(self, node: Member) -> str:
        """Return the kind of values that a new parameter starts with: "zeros", "ones" or "normal"."""
        v = node.parameter
        assert v is not None
        if self.is_random(node):
            return "normal"
        return (
            "ones"
            if v.ndim == 1 and v.dtype.kind in "fV" and node.path[-1] in ("weight", "scale", "running_var")
            else "zeros"
        )

    # ---- names of checkpoints -------------------------------------------------------------------------------------

    def declares(self, path: Iterable[str], f: SourceFunction | None = None) -> bool:
        """Return whether the classes have a parameter at this path."""
        node = self.trees[f or self.functions[-1]]
        parts = list(path)
        while parts:
            if node.invoke is not None:
                inner = node.invoke.function
                return (inner.layer is not None and bool(inner.layer.callee)) or self.declares(parts, inner)
            if parts[0] not in node.children:
                return False
            node = node.children[parts.pop(0)]
        return node.parameter is not None

    def names(self) -> tuple[dict[str, str], dict[str, str], list[str]]:
        """Return names of the checkpoint's arrays: (additional name -> name, name -> the name that is used instead,
        names without a place)."""
        trace = self.trace
        ties: dict[str, str] = {}
        renamed: dict[str, str] = {}
        unused: list[str] = []
        for path in trace.weights:
            alias_names = [a for a, c in trace.aliases.items() if c == path and self.declares(a.split("."))]
            if self.declares(path.split(".")):
                ties.update(dict.fromkeys(alias_names, path))
            elif alias_names:
                renamed[path] = alias_names[0]
                ties.update(dict.fromkeys(alias_names[1:], alias_names[0]))
            else:
                unused.append(path)
        return ties, renamed, unused

    def parameter_name(self, path: str) -> str:
        """Return the name of a parameter in the classes: numbers are no names of attributes, nor are other texts."""
        f: SourceFunction = self.functions[-1]
        node, first, parts = self.trees[f], True, []
        for part in path.split("."):
            if node.invoke is not None:
                f = node.invoke.function
                node, first = self.trees[f], True
            number = part.isdigit() and (first or node.is_mixed)
            parts.append(self.attribute(part) if number else self.attributes.get(part, part))
            node, first = node.children.get(part, Member(())), False
        return ".".join(parts)

    def ties(self) -> list[str]:
        root = self.functions[-1]
        pairs = [(self.at(a.split("."), root), self.at(c.split("."), root)) for a, c in self.names()[0].items()]
        return [f"{text(alias)} = {text(canonical)}" for alias, canonical in pairs]


def _trees(functions: list[SourceFunction]) -> dict[SourceFunction, Member]:
    """Return the members of each function's class. Members of a module that it calls are in that module's class."""
    trees = {f: Member(()) for f in functions}

    def put(f: SourceFunction, path: Path, user: SourceFunction) -> Member | None:
        """Return the member at a path, made if need be; None for one that a layer of the target has."""
        node = trees[f]
        for i, part in enumerate(path):
            if node.invoke is not None:
                inner = node.invoke.function
                if inner.layer is not None:
                    return None
                if len(set(inner.paths)) > 1 and user is not inner:
                    at = put_once(inner, path[i:])
                    if at is not None:
                        return at
                    raise NotExpressibleError(
                        f"{user.kind} ({user.place}): the content of a module ({'.'.join(path)}) is used from"
                        " outside, but not in other modules of its class"
                    )
                return put(inner, path[i:], user)
            node = node.children.setdefault(part, Member(path[: i + 1]))
        return node

    def put_once(f: SourceFunction, path: Path) -> Member | None:
        """Return the member at a path where all of it exists, else None."""
        node = trees[f]
        for i, part in enumerate(path):
            if node.invoke is not None:
                return put_once(node.invoke.function, path[i:])
            if part not in node.children:
                return None
            node = node.children[part]
        return node

    for f in reversed(functions):  # those that call others first
        invokes = [i for call in f.calls for i in (call.invokes if isinstance(call, Repeat) else [call])]
        module_calls = [(i.path, i) for i in invokes
                  if isinstance(i, Invoke) and i.function.is_module and i.path is not None]  # fmt: skip
        for path, invoke in sorted(module_calls, key=lambda c: len(c[0])):
            if not path:
                raise NotExpressibleError(f"{f.kind} ({f.place}): a module calls itself")
            node = put(f, path, f)
            if node is not None and node.invoke is None:
                node.invoke = invoke
        used = set(variables([f.results, *([c.args, c.kwargs] for c in f.calls if isinstance(c, SourceStep)),
                              *(i.args for i in invokes if isinstance(i, Invoke))]))  # fmt: skip
        for v, path in f.parameters.items():
            outside = any(path[: len(p)] == p for p, _ in module_calls)  # a module that is called may use it, and f not
            node = None if outside and v not in used else put(f, path, f)
            if node is not None:
                node.parameter = v
    for f, tree in trees.items():
        f.buffers |= {v for v in _parameters(tree) if any(v in g.buffers for g in functions)}
    return trees


def _parameters(node: Member) -> Iterator[Var]:
    if node.parameter is not None:
        yield node.parameter
    for child in node.children.values():
        yield from _parameters(child)


def filled(node: Member) -> list[Member | None]:
    last = max(map(int, node.children))
    return [node.children.get(str(i)) for i in range(last + 1)]


__all__ = ["Classes", "Member", "SourceStep"]
