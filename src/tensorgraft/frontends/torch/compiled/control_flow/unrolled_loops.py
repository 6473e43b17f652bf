"""Loops of Python that a trace unrolls: noticed where they make most of a program.

A trace counts how often each place of the program has issued an operator. One that did so `OFTEN` times is looked up in
the source: which loop it is in. Loops of more than `MANY` operators are warned of, once.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import statistics
import sys
import types
import warnings
from collections.abc import Iterator

import torch

from tensorgraft.compiled.source_location import quoted
from tensorgraft.frontends.torch.core.source_location import Place, in_library

OFTEN = 100  # operators of one kind from one place
MANY = 2000  # operators of one loop, of its places that have issued so many

_Key = tuple[int, int, str]  # a code object's identity (Dynamo's hold what has no hash), instruction, operator
_told: set[Place] = set()
_OPTIMIZERS = os.path.join(os.path.dirname(torch.__file__), "optim") + os.sep


class UnrolledLoopWarning(UserWarning):
    """A Python loop inside `tg.jit` makes a large program, operator by operator."""


class Loops:
    """The operators of one trace, counted by the places that issue them."""

    def __init__(self) -> None:
        self.counts: dict[_Key, int] = {}
        self.lines: dict[_Key, Place] = {}  # the loops of those that are frequent
        self.here: Place | None = None  # the location of the current operator in the program

    def issued(self, operator: str) -> None:
        """Count an operator of the trace by the place of the program that issues it."""
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None and in_library(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            self.here = None
            return
        self.here = frame.f_code.co_filename, frame.f_lineno
        key = id(frame.f_code), frame.f_lasti, operator
        n = self.counts[key] = self.counts.get(key, 0) + 1
        if n == OFTEN and not _of_the_library():
            loop = next(_loops(frame), None)
            if loop is not None:
                self.lines[key] = loop

    def warn(self) -> None:
        """Warn of the loops that make the program large."""
        loops: dict[Place, list[int]] = {}
        for key, location in self.lines.items():
            loops.setdefault(location, []).append(self.counts[key])
        for location, counts in loops.items():
            if sum(counts) > MANY and location not in _told:
                _told.add(location)
                text = _message(location, statistics.mode(counts), sum(counts))
                warnings.warn_explicit(text, UnrolledLoopWarning, *location)


def _message(location: Place, times: int, operators: int) -> str:
    return (
        f"{quoted(*location)} is unrolled: it ran {times:,} times in one trace, and"
        f" the program has {operators:,} operators of it, their derivatives not counted.\n"
        "Tracing and compiling take time with each. A loop of the backend is traced once, whatever its length:\n"
        "  step by step:       torch._higher_order_ops.scan(step, carry, xs)\n"
        "  until a condition:  torch.while_loop(condition, body, operands)\n"
        "  recurrent layers:   nn.LSTM, nn.GRU, nn.RNN on the whole sequence"
    )


def _of_the_library() -> bool:
    """Return True if the operator belongs to a backward pass or an optimizer's step, whose loops are not the
    program's."""
    if torch._C._current_autograd_node() is not None:
        return True
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and in_library(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_OPTIMIZERS):
            return True
        frame = frame.f_back
    return False


def _loops(frame: types.FrameType | None) -> Iterator[Place]:
    """Yield the loops that a frame is in, inside of the function that is traced, the innermost first."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "traced" and code.co_filename.startswith(os.path.dirname(__file__)):
            return
        if not in_library(code.co_filename):
            line = frame.f_lineno
            for first, last in _in_file(code.co_filename):
                if code.co_firstlineno <= first <= line <= last:
                    yield code.co_filename, first
        frame = frame.f_back


@functools.cache
def _in_file(file: str) -> tuple[tuple[int, int], ...]:
    """First and last lines of the loops of a file, inner ones before those around them."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # not the source that was compiled
        return ()
    kinds = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    spans = [(n.lineno, n.end_lineno or n.lineno) for n in ast.walk(tree) if isinstance(n, kinds)]
    return tuple(sorted(spans, key=lambda span: (span[1] - span[0], -span[0])))
