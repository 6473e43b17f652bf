"""The helpers of a file: functions of a target's module that the file names, and those that these name."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tensorgraft.codegen.targets import Target


def helper_sources(target: Target) -> dict[str, str]:
    """Return the text of each helper of a target."""
    if target.helpers is None:
        return {}
    return {n: inspect.getsource(f).strip() for n, f in vars(target.helpers).items() if inspect.isfunction(f)}


def helpers_of(target: Target, parts: Sequence[str], renamed: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Return the source of the helpers that `parts` of a file use, and of those that these use, in the order of their
    module. `renamed`: {helper: its name in the file}."""
    sources = {renamed.get(n, n): source for n, source in helper_sources(target).items()}
    for n, other in renamed.items():
        call = re.compile(rf"(?<![.\w]){n}(?=\()")
        sources = {k: call.sub(other, source) for k, source in sources.items()}
    queue = [n for part in parts for n in global_names(ast.parse(part))]
    used: set[str] = set()
    while queue:
        n = queue.pop()
        if n in sources and n not in used:
            used.add(n)
            queue += global_names(ast.parse(sources[n]))
    return [source for n, source in sources.items() if n in used]


def global_names(tree: ast.AST) -> set[str]:
    """Return the names that are read, and not assigned in the same function."""
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    if isinstance(tree, ast.Module) and len(tree.body) == 1 and isinstance(tree.body[0], ast.FunctionDef):
        stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        return names - stored - {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    return names


__all__ = ["global_names", "helper_sources", "helpers_of"]
