"""Functions of nested dictionaries of parameters: `linear(p["attn"]["c_proj"], x)`.

A function takes `p`, the parameters of its module, and `b`, its buffers, if it has any. A program that writes buffers
returns (its result, the new buffers).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tensorgraft.codegen.output import weights
from tensorgraft.codegen.output.expressions import literal
from tensorgraft.codegen.structure.functions import Invoke, Repeat, SourceFunction
from tensorgraft.codegen.styles import Definition, Style, Writer
from tensorgraft.codegen.targets import Target
from tensorgraft.codegen.trace import SourceTrace, Var


@dataclass
class Needs:
    """The weights that a function takes in addition to its arrays: parameters, buffers, both or none."""

    parameters: bool
    buffers: bool


class Nested(Style):
    def __init__(self, target: Target, trace: SourceTrace, functions: list[SourceFunction]) -> None:
        super().__init__(target, trace, functions)
        self.taken |= {"params", "buffers"}
        self.needs = {f: Needs(bool(set(f.parameters) - f.buffers), bool(f.buffers)) for f in functions}

    def parameter(self, writer: Writer, v: Var) -> ast.expr:
        return _item_at(self.roots(writer.is_root)[v in writer.function.buffers], writer.function.parameters[v])

    def roots_of(self, function: SourceFunction) -> set[str]:
        needs = self.needs[function]
        if function is next(reversed(self.needs)):
            return {*self.roots(True)}
        needs_of_roots = (needs.parameters, needs.buffers)
        return {r for r, needed_root in zip(self.roots(False), needs_of_roots, strict=True) if needed_root}

    def roots(self, is_root: bool) -> tuple[str, str]:
        return ("params", "buffers") if is_root else ("p", "b")

    def callee(self, writer: Writer, call: Invoke) -> tuple[ast.expr, list[ast.expr]]:
        if call.path is None:
            return ast.Name(call.function.name), []
        return ast.Name(call.function.name), [_item_at(root, call.path) for root in self.stores(writer, call.function)]

    def stores(self, writer: Writer, f: SourceFunction) -> list[str]:
        needs, (p, b) = self.needs[f], self.roots(writer.is_root)
        return [p] * needs.parameters + [b] * needs.buffers

    def row(self, writer: Writer, row: Repeat) -> tuple[tuple[ast.expr, ast.expr], ast.expr, list[ast.expr]]:
        f = row.invokes[0].function
        stop = row.first + len(row.invokes)
        iterables, names = [], []
        titles = self.roots(False) if writer.is_root else ("block", "state")
        for root, title in zip(self.stores(writer, f), titles, strict=False):
            modules = _item_at(root, row.path)
            if row.first or stop != _length(writer.function, row.path):
                modules = ast.Subscript(modules, ast.Slice(literal(row.first) if row.first else None, literal(stop)))
            iterables.append(modules)
            names.append(ast.Name(writer.unused_name(title, f"{title}_p", f"{title}_params")))
        args: list[ast.expr] = [*names]
        if not names:
            return (ast.Name("_"), ast.Call(ast.Name("range"), [literal(len(row.invokes))], [])), ast.Name(f.name), []
        if len(names) == 1:
            return (names[0], iterables[0]), ast.Name(f.name), args
        zipped = ast.Call(ast.Name("zip"), iterables, [ast.keyword("strict", ast.Constant(True))])
        return (ast.Tuple([*names]), zipped), ast.Name(f.name), args

    def stateful_result(self, trace: SourceTrace) -> Any:
        return trace.result, _nested({p: trace.written.get(p, v) for p, v in trace.buffers.items()})

    def definition(self, f: SourceFunction, d: Definition) -> str:
        needs, (p, b) = self.needs[f], self.roots(d.is_root)
        parameters = [f"{p}: dict"] * needs.parameters + [f"{b}: dict"] * needs.buffers + d.arguments
        returns = f" -> {d.returns}" if d.returns else ""
        head = f"def {f.name}({', '.join(parameters)}){returns}:"
        return "\n".join([head, *d.docstring(), *("    " + line for line in d.body)])

    def loading(self, trace: SourceTrace) -> list[str]:
        root = next(reversed(self.needs.values()))
        return weights.functions(trace, self.target, root.buffers, root.parameters)


def _item_at(root: str, path: Iterable[str]) -> ast.expr:
    node: ast.expr = ast.Name(root)
    for part in path:
        node = ast.Subscript(node, ast.Constant(int(part) if part.isdigit() else part))
    return node


def _length(f: SourceFunction, path: tuple[str, ...]) -> int:
    """Return the number of modules in the list at `path`."""
    below = {p[len(path)] for p in f.parameters.values() if p[: len(path)] == path and len(p) > len(path)}
    return len([x for x in below if x.isdigit()])


def _nested(flat: dict[str, Any]) -> Any:
    """Nest a flat dictionary, as `nested` in a generated file does."""
    tree: dict[str, Any] = {}
    for path, v in flat.items():
        node = tree
        *parts, last = path.split(".")
        for part in parts:
            node = node.setdefault(part, {})
        node[last] = v

    def listed(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        by_key = {int(k) if k.isdigit() else k: listed(x) for k, x in node.items()}
        return [by_key[i] for i in range(len(by_key))] if set(by_key) == set(range(len(by_key))) else by_key

    return listed(tree)
