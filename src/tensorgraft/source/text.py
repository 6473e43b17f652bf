"""The file: what it says of itself, imports, helpers, functions, and how weights are loaded; formatted."""

from __future__ import annotations

import ast
import inspect
import itertools
import subprocess
from typing import Any

from tensorgraft.source.expressions import literal, name, text
from tensorgraft.source.functions import Function
from tensorgraft.source.merging import Extent
from tensorgraft.source.targets import Target
from tensorgraft.source.trace import Trace, Var, variables
from tensorgraft.source.writing import Needs, Statement, Style, write_function


def labels_of(trace: Trace) -> dict[tuple[int, ...], str]:
    """Names of the sizes that may change: by their values in all traces."""
    labels: dict[tuple[int, ...], str] = {}
    for _, tree in trace.arguments:
        for v in variables(tree):
            usual = {
                2: ["batch", "length"],
                3: ["batch", "length", "width"],
                4: ["batch", "channels", "height", "width"],
            }
            for axis, extent in enumerate(v.shape):
                if isinstance(extent, Extent) and extent.values not in labels:
                    base = usual.get(v.ndim, ["batch"])[axis] if axis < len(usual.get(v.ndim, ["batch"])) else "size"
                    taken = set(labels.values())
                    labels[extent.values] = next(
                        c for c in itertools.chain([base], (f"{base}{i}" for i in itertools.count(2))) if c not in taken
                    )
    return labels


def write(trace: Trace, functions: list[Function], target: Target, header: str) -> str:
    """The text of the file, formatted."""
    style = Style(target, labels_of(trace), set(), set(trace.buffers.values()))
    style.taken = {*target.imports, *(f.name for f in functions), "params", "buffers"}
    for f in functions:
        owned = set(f.parameters)
        style.functions[f] = Needs(bool(owned - style.buffers), bool(owned & style.buffers))
    bodies: list[str] = []
    used: set[str] = set()
    for f in functions:
        is_root = f is functions[-1]
        lines = _function(f, style, trace if is_root else None, used)
        bodies.append(lines)
    constants = [f"{n} = {text(e)}" for n, e in style.constants.values()]
    for _, e in style.constants.values():
        used |= _names(e)
    helpers = _helpers(target, used)
    imports = [line for n, line in target.imports.items() if n in used]
    parts = [f'"""{header}"""', "\n".join(imports), "\n".join(constants), *helpers, *bodies]
    return formatted("\n\n\n".join(p for p in parts if p) + "\n")


def _function(f: Function, style: Style, trace: Trace | None, used: set[str]) -> str:
    target = style.target
    result: Any = None
    if trace is not None:
        result = trace.result
        if trace.written:
            result = (trace.result, _nested({p: trace.written.get(p, v) for p, v in trace.buffers.items()}))
    statements, about = write_function(f, style, result, root=trace is not None)
    needs = style.functions[f]
    parameters = []
    roots = ("params", "buffers") if trace is not None else ("p", "b")
    if needs.parameters:
        parameters.append(f"{roots[0]}: dict")
    if needs.buffers:
        parameters.append(f"{roots[1]}: dict")
    parameters += [f"{n}: {target.array}" for n in about["names"]]
    parameters += [f"{n}: {type(_plain(v)).__name__}" for n, v in f.statics.items()]
    used |= _names(name(target.array))
    for s in statements:
        used |= _names(s.node)
    returns = target.array if result is None and len(f.results) == 1 else None
    lines = [f"def {f.name}({', '.join(parameters)}){f' -> {returns}' if returns else ''}:"]
    doc = _doc(f, style, about["names"])
    if doc:
        lines.append(f'    """{doc}"""')
    for s in statements:
        lines += ["    " + line for line in _lines(s)]
    return "\n".join(lines)


def _plain(v: Any) -> Any:
    return int(v) if isinstance(v, Extent) else v


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

    shapes = ", ".join(f"{k} {shape(v)}" for k, v in zip(names, f.arguments, strict=True))
    what = f.doc.strip().rstrip(".").replace("\\", "\\\\") if f.doc else ""
    what = f"{what}: " if what else ""
    return f"{what}{shapes}." if shapes else what


def _lines(s: Statement) -> list[str]:
    lines = text(s.node).split("\n")
    if s.comment and len(lines) == 1 and len(lines[0]) + len(s.comment) < 90:
        lines[0] += f"  # {s.comment}"
    return lines


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, v in flat.items():
        at = tree
        *parts, last = path.split(".")
        for part in parts:
            at = at.setdefault(part, {})
        at[last] = v
    return tree


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _helpers(target: Target, used: set[str]) -> list[str]:
    """The source of the helpers that are named, and of those that they name, in the order of their file."""
    if target.helpers is None:
        return []
    available = {n: f for n, f in vars(target.helpers).items() if inspect.isfunction(f)
                 and f.__module__ == target.helpers.__name__}  # fmt: skip
    sources = {n: inspect.getsource(f) for n, f in available.items()}
    needed: set[str] = set()
    queue = [n for n in available if n in used]
    while queue:
        n = queue.pop()
        if n in needed:
            continue
        needed.add(n)
        inner = _names(ast.parse(sources[n]))
        used |= inner
        queue += [m for m in available if m in inner]
    return [sources[n].strip() for n in available if n in needed]


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
    return done.stdout


__all__ = ["Var", "formatted", "literal", "write"]
