"""The text of a generated file: its docstring, imports, helpers, functions and the loading of weights, formatted."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from typing import Any

from tensorgraft.codegen.output import weights
from tensorgraft.codegen.output.expressions import fill, literal, name, renamed, text
from tensorgraft.codegen.output.helpers import helper_sources, helpers_of
from tensorgraft.codegen.output.writing import Statement, write_function
from tensorgraft.codegen.recorders.calls import NotExpressibleError
from tensorgraft.codegen.structure.functions import SourceFunction
from tensorgraft.codegen.structure.size_merging import Extent
from tensorgraft.codegen.styles import Definition, Style
from tensorgraft.codegen.targets import Target
from tensorgraft.codegen.trace import SourceTrace, Var

LOADING = "from safetensors.numpy import load_file, save_file"


def write(trace: SourceTrace, functions: list[SourceFunction], style: Style, header: str) -> str:
    """Return the text of the file, formatted."""
    target = style.target
    used: set[str] = set()
    clash = {n: f"_{n}" for n in helper_sources(target) if n in {f.name for f in functions}}
    before = renamed.set(clash)
    try:
        bodies = [_function(f, style, trace if f is functions[-1] else None, used) for f in style.written(functions)]
    finally:
        renamed.reset(before)
    constants = [f"{n} = {text(e)}" for n, e in style.constants.values()]
    for _, e in style.constants.values():
        used |= _names(e)
    loading = style.loading(trace)
    helpers = helpers_of(target, [*constants, *bodies, *loading], clash)
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


def _function(f: SourceFunction, style: Style, trace: SourceTrace | None, used: set[str]) -> str:
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
    is_single = len(f.results) == 1 if result is None else isinstance(result, Var)
    tuple_of_results = f"tuple[{', '.join([target.array] * len(f.results))}]" if result is None and f.results else ""
    returns = target.array if is_single else tuple_of_results
    body = [line for s in statements for line in _lines(s)]
    prelude_module = target.prelude.partition(" ")[0]
    if prelude_module and any(prelude_module in _names(s.node) for s in statements):
        if not names:
            raise NotExpressibleError(
                f"{f.kind} creates arrays without having one as an argument to take the array namespace from: pass it"
                " an array"
            )
        body.insert(0, text(fill(target.prelude.partition("=")[2], x=name(names[0]))))
        body[0] = f"{prelude_module} = {body[0]}"
    return style.definition(f, Definition(parameters, returns, _doc(f, style, names), body, trace is not None))


def _type(v: Any) -> str:
    return "int" if isinstance(v, Extent) else type(v).__name__


def _doc(f: SourceFunction, style: Style, names: list[str]) -> str:
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
    summary = f.doc.strip().rstrip(".").replace("\\", "\\\\").replace('"', "'")
    return "\n\n".join(part for part in (summary and f"{summary}.", shapes) if part)


def _lines(s: Statement) -> list[str]:
    node = s.node
    source = text(node)
    for part in ast.walk(node):
        if isinstance(part, ast.Return) and isinstance(part.value, ast.Tuple) and len(part.value.elts) > 1:
            source = source.replace(text(part), f"return {text(part.value)[1:-1]}")
    lines = source.split("\n")
    if s.comment and len(lines) == 1 and len(lines[0]) + len(s.comment) < 90:
        lines[0] += f"  # {s.comment}"
    return lines


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def names_of(target: Target) -> set[str]:
    """Return the names that a file may define in addition to the program's functions and helpers."""
    return {*target.imports, *weights.NAMES}


def _usual_exponents(source: str) -> str:
    """Write exponents as in `1e-5`, which Python itself writes 1e-05."""
    lines = source.split("\n")
    for token in reversed([*tokenize.generate_tokens(io.StringIO(source).readline)]):
        if token.type == tokenize.NUMBER:
            row, start = token.start
            line = lines[row - 1]
            lines[row - 1] = line[:start] + re.sub(r"(e[-+])0+(?=\d)", r"\1", token.string) + line[token.end[1] :]
    return "\n".join(lines)


def formatted(source: str) -> str:
    """Return the source as ruff fixes and formats it."""
    from ruff.__main__ import find_ruff_bin  # type: ignore[import-untyped]

    ruff = find_ruff_bin()
    # a folder `jax/` of the user's would be taken for a first-party package
    isort = ["lint.isort.known-third-party = ['equinox', 'flax', 'jax', 'keras', 'tensorflow', 'torch']"]
    config = ["--isolated", "--line-length", "100"]
    fix = subprocess.run(
        [ruff, "check", *config, "--config", *isort, "--select", "E,F,I", "--ignore", "E501,E741", "--fix", "-q", "-"],
        input=source, capture_output=True, text=True,
    )  # fmt: skip
    if not fix.stdout:
        raise RuntimeError(f"ruff: {fix.stderr}\n{source}")
    completed = subprocess.run([ruff, "format", *config, "-"], input=fix.stdout, capture_output=True, text=True)
    if completed.returncode:
        raise RuntimeError(f"ruff: {completed.stderr}")
    return _usual_exponents(completed.stdout)


__all__ = ["Var", "formatted", "literal", "write"]
