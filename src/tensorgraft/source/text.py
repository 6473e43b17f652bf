"""The file: what it says of itself, imports, helpers, functions, and how weights are loaded; formatted."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from typing import Any

from tensorgraft.source import weights
from tensorgraft.source.expressions import fill, literal, name, text
from tensorgraft.source.functions import Function
from tensorgraft.source.helping import helpers_of
from tensorgraft.source.merging import Extent
from tensorgraft.source.styles import Definition, Style
from tensorgraft.source.targets import Target
from tensorgraft.source.trace import Trace, Var
from tensorgraft.source.writing import Statement, write_function

LOADING = "from safetensors.numpy import load_file, save_file"


def write(trace: Trace, functions: list[Function], style: Style, header: str) -> str:
    """The text of the file, formatted."""
    target = style.target
    used: set[str] = set()
    bodies = [_function(f, style, trace if f is functions[-1] else None, used) for f in style.written(functions)]
    constants = [f"{n} = {text(e)}" for n, e in style.constants.values()]
    for _, e in style.constants.values():
        used |= _names(e)
    loading = style.loading(trace)
    helpers = helpers_of(target, [*constants, *bodies, *loading])
    bodies = _plainly_named(functions, bodies, helpers)
    for part in [*helpers, *bodies, *loading]:
        used |= _names(ast.parse(part))
    available = {
        **target.imports,
        "np": "import numpy as np",
        "load_file": LOADING,
        "save_file": LOADING,
        **style.imports,
    }
    if target.prelude and not constants:
        used.discard(target.prelude.partition(" ")[0])  # functions have it from their arrays
    imports = dict.fromkeys(line for n, line in available.items() if n in used)
    parts = [f'"""{header}"""', "\n".join(imports), "\n".join(constants), *helpers, *bodies, *loading]
    return formatted("\n\n\n".join(p for p in parts if p) + "\n")


def _function(f: Function, style: Style, trace: Trace | None, used: set[str]) -> str:
    target = style.target
    result: Any = None
    if trace is not None:
        result = trace.result
        if trace.written:
            result = style.stateful_result(trace)
    statements, names = write_function(f, style, result, root=trace is not None)
    parameters = [f"{n}: {target.array}" for n in names]
    parameters += [f"{n}: {_type(v)}" for n, v in f.statics.items()]
    used |= _names(name(target.array))
    for s in statements:
        used |= _names(s.node)
    alone = len(f.results) == 1 if result is None else isinstance(result, Var)
    returns = target.array if alone else ""
    body = [line for s in statements for line in _lines(s)]
    given = target.prelude.partition(" ")[0]
    if given and names and any(given in _names(s.node) for s in statements):
        body.insert(0, text(fill(target.prelude.partition("=")[2], x=name(names[0]))))
        body[0] = f"{given} = {body[0]}"
    return style.definition(f, Definition(parameters, returns, _doc(f, style, names), body, trace is not None))


def _plainly_named(functions: list[Function], bodies: list[str], helpers: list[str]) -> list[str]:
    """`rms_norm_2` as `rms_norm`, where the helper of that name is not in the file."""
    known = {n for part in [*bodies, *helpers] for n in _identifiers(part)}
    for f in functions:
        base = re.sub(r"_\d+$", "", f.name)
        if base not in known and base != f.name:
            bodies = [re.sub(rf"(?<![\w.\"']){f.name}(?=\()", base, body) for body in bodies]
            f.name = base
            known.add(base)
    return bodies


def _identifiers(source: str) -> set[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def _type(v: Any) -> str:
    return "int" if isinstance(v, Extent) else type(v).__name__


def _doc(f: Function, style: Style, names: list[str]) -> str:
    n = len(next(iter(style.labels), ()))

    def size(d: Any) -> str:
        if d is Ellipsis:
            return "..."
        if not isinstance(d, Extent):
            return str(d)
        return style.labels.get(d.values[:n], "n")

    def shape(v: Var) -> str:
        return f"({', '.join(map(size, v.shape))}{',' * (v.ndim == 1)})"

    shapes = ", ".join(f"{k}: {shape(v)}" for k, v in zip(names, f.arguments, strict=True))
    what = f.doc.strip().rstrip(".").replace("\\", "\\\\").replace('"', "'")
    return "\n\n".join(part for part in (what and f"{what}.", shapes) if part)


def _lines(s: Statement) -> list[str]:
    node = s.node
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) > 1:
        lines = f"return {text(node.value)[1:-1]}".split("\n")
    else:
        lines = text(node).split("\n")
    if s.comment and len(lines) == 1 and len(lines[0]) + len(s.comment) < 90:
        lines[0] += f"  # {s.comment}"
    return lines


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def names_of(target: Target) -> set[str]:
    """What the file may have at its top beside the functions of the program."""
    return {*target.imports, *(vars(target.helpers) if target.helpers else ()), *weights.NAMES}


def _usual_exponents(source: str) -> str:
    """`1e-5`, which Python itself writes 1e-05."""
    lines = source.split("\n")
    for token in reversed([*tokenize.generate_tokens(io.StringIO(source).readline)]):
        if token.type == tokenize.NUMBER:
            row, start = token.start
            line = lines[row - 1]
            lines[row - 1] = line[:start] + re.sub(r"(e[-+])0+(?=\d)", r"\1", token.string) + line[token.end[1] :]
    return "\n".join(lines)


def formatted(source: str) -> str:
    """By ruff. Raises RuntimeError where it is not installed."""
    try:
        from ruff.__main__ import find_ruff_bin  # type: ignore[import-not-found]
    except ImportError:
        raise RuntimeError("tg.source formats what it writes by ruff: pip install ruff") from None
    ruff = find_ruff_bin()
    config = ["--isolated", "--line-length", "100"]
    fix = subprocess.run(
        [ruff, "check", *config, "--select", "E,F,I", "--ignore", "E501,E741", "--fix", "--quiet", "-"],
        input=source, capture_output=True, text=True,
    )  # fmt: skip
    if not fix.stdout:
        raise RuntimeError(f"ruff: {fix.stderr}\n{source}")
    done = subprocess.run([ruff, "format", *config, "-"], input=fix.stdout, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ruff: {done.stderr}")
    return _usual_exponents(done.stdout)


__all__ = ["Var", "formatted", "literal", "write"]
