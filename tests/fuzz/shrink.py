"""A program with a difference, made small: statements are dropped, then numbers made smaller, while it differs.

Statements go by delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.program import Kind, Program, Unfit

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
Differs = Callable[[Program], bool]


def shrink(kind: Kind, program: Program, subject: str, tries: int = 400) -> Program:
    """The smallest program found in so many tries that differs on the subject, and that the reference can play as far
    as it could (a statement that lost what it reads says nothing)."""
    left = [tries]
    judge = kind.reference(subject)
    refused = {program.statements[i] for i in kind.play(program, judge).raised}

    def differs(candidate: Program) -> bool:
        if left[0] <= 0:
            return False
        left[0] -= 1
        try:
            expected = kind.play(candidate, judge)
        except Unfit:
            return False
        if any(candidate.statements[i] not in refused for i in expected.raised):
            return False
        return bool(kind.failures(candidate, (subject,)))

    return _fewer_digits(_fewer_statements(program, differs), differs)


def _fewer_statements(program: Program, differs: Differs) -> Program:
    part = max(1, len(program.statements) // 2)
    while part:
        start = len(program.statements) - part
        while start > -part:
            a, b = max(start, 0), start + part
            candidate = replace(program, statements=program.statements[:a] + program.statements[b:])
            if candidate.statements and differs(candidate):
                program = candidate
            start -= part
        part //= 2
    return program


def _fewer_digits(program: Program, differs: Differs) -> Program:
    for i in range(len(program.statements)):
        for candidate in _smaller_numbers(program, i):
            if differs(candidate):
                program = candidate
    return program


def _smaller_numbers(program: Program, i: int) -> Iterator[Program]:
    text = program.statements[i]
    for found in _NUMBER.finditer(text):
        for smaller in (0, 1, 2):
            if smaller < int(found[0]):
                said = text[: found.start()] + str(smaller) + text[found.end() :]
                yield replace(program, statements=(*program.statements[:i], said, *program.statements[i + 1 :]))
