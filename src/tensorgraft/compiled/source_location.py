"""Places of a program in its own source: the line, and the expression of it that Python is evaluating."""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import os
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

OURS = str(Path(__file__).parents[1]) + os.sep


class Place(NamedTuple):
    """An instruction of a program: little to remember, for text is made of it only when there is something to say."""

    code: CodeType
    instruction: int

    @property
    def file(self) -> str:
        return self.code.co_filename

    @property
    def line(self) -> int:
        """The line of the instruction, which is the first of its expression."""
        number = _positions(self.code)[self.instruction // 2][0]
        return number if number is not None else self.code.co_firstlineno

    @property
    def node(self) -> ast.AST | None:
        """The expression (or statement) that the instruction evaluates, None where the source does not tell."""
        lines = linecache.getlines(self.file)
        version = linecache.cache.get(self.file, (0, 0))[:2]  # a file may be rewritten
        return _nodes(self.file, version, len(lines)).get(_positions(self.code)[self.instruction // 2])

    @property
    def calls(self) -> bool:
        """Return True if the instruction calls a function, False if it reads the truth value of a result."""
        return "CALL" in dis.opname[self.code.co_code[self.instruction]]

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"

    @property
    def quoted(self) -> str:
        return quoted(self.file, self.line)


def quoted(file: str, line: int) -> str:
    """ "train.py:8: `y = x.item()`"; of a line that was typed in there may be no text: "<stdin>:1" """
    text = linecache.getline(file, line).strip()
    return f"{os.path.basename(file)}:{line}" + (f": `{text}`" if text else "")


def program_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame, from `frame` outwards, whose code is not tensorgraft's."""
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return frame


def is_ours(file: str) -> bool:
    return file.startswith(OURS)


def place_of(frame: FrameType) -> Place:
    return Place(frame.f_code, frame.f_lasti)


def current_place() -> Place | None:
    """Return the place of the program in the current call."""
    frame = program_frame(sys._getframe(1))
    return None if frame is None else Place(frame.f_code, frame.f_lasti)


@functools.lru_cache(maxsize=256)
def _positions(code: CodeType) -> tuple[Any, ...]:
    """Return for each instruction: first line, last line, first column, last column."""
    return tuple(code.co_positions())


# Python's parser has one object of each of these for all trees, which a `parent` would hold on to
_OF_ALL_TREES = (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)


@functools.lru_cache(maxsize=64)
def _nodes(file: str, version: Any, length: int) -> dict[tuple[int, int, int, int], ast.AST]:
    """Return the expressions of a file by their position; each has its `parent`."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return {}
    nodes: dict[tuple[int, int, int, int], ast.AST] = {}
    for parent in ast.walk(tree):
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, _OF_ALL_TREES):
                continue
            node.parent = parent  # type: ignore[attr-defined]
            if isinstance(node, ast.expr | ast.stmt):
                nodes.setdefault((node.lineno, node.end_lineno, node.col_offset, node.end_col_offset), node)  # type: ignore[arg-type]
    return nodes


def held_by(frame: FrameType, node: ast.AST) -> Any:
    """Return the value of a name in a frame, None for any other expression: nothing is evaluated."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    return None


def expression_of(frame: FrameType, node: ast.AST | None, value: Any) -> str | None:
    """Return the name within an expression that holds a value."""
    for part in ast.walk(node) if node is not None else ():
        if isinstance(part, ast.Name) and held_by(frame, part) is value:
            return part.id
    return None
