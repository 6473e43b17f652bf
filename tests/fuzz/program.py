"""Random programs as text: statements of Python that are drawn one by one, played on a reference and on subjects.

A `Kind` says what is drawn, where it is played and what is compared. Because a program is text, what finds a difference
(`run`), makes it small (`shrink`) and keeps it (`found/`) is the same for every kind.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

REFERENCE = "reference"


class Undefined(Exception):
    """The reference raises it for what is left open: no program has such a statement."""


class Unfit(Exception):
    """A subject cannot take the program as it is made (a compiled function that needs values): it is not counted."""


@dataclass(frozen=True)
class Program:
    """`statements` are played in order in one namespace, which `Kind.names` has begun."""

    kind: str
    statements: tuple[str, ...]
    seed: int | None = None

    def __str__(self) -> str:
        return "\n".join(self.statements)


@dataclass
class Outcome:
    """What became of a program: the exception of each statement that raised, by its place, and what is observed of
    every name at the end (and after each exception), in a form that `Kind.differences` compares."""

    raised: dict[int, str] = field(default_factory=dict)
    observed: dict[str, Any] = field(default_factory=dict)


class Kind(ABC):
    """A source framework's programs, and the subjects on which they are played.

    A subject is a word ("jax", "numpy jit", ...); `REFERENCE` is the source framework itself.
    """

    name: ClassVar[str]
    shares: ClassVar[dict[str, int]]  # subject -> it plays one of so many programs
    length: ClassVar[tuple[int, int]] = (4, 14)  # statements of a program
    raising: ClassVar[float] = 0.05  # the share of statements refused by the reference that stay in the program

    def __init__(self) -> None:
        self.excused: Counter[str] = Counter()  # differences that say nothing, by reason
        self.unfit: set[str] = set()  # subjects that did not play it

    @property
    def subjects(self) -> tuple[str, ...]:
        return tuple(self.shares)

    def chosen(self, seed: int) -> tuple[str, ...]:
        """The subjects on which the program of a seed is played when none are named."""
        rng = random.Random(f"subjects {seed}")
        return tuple([subject for subject, share in self.shares.items() if rng.randrange(share) == 0])

    def reference(self, subject: str) -> str:
        """With whose outcome that of the subject is compared: the source framework, or a transformation of it."""
        return REFERENCE

    @abstractmethod
    def names(self, subject: str) -> dict[str, Any]:
        """What a program starts with: modules, the device of the subject, helpers that make data from a seed."""

    @abstractmethod
    def statement(self, rng: random.Random, names: dict[str, Any]) -> str:
        """One more statement, for a program that has left `names` on the reference so far."""

    @abstractmethod
    def observe(self, names: dict[str, Any]) -> dict[str, Any]:
        """What is to be equal: by name, values, dtypes, strides, aliasing, ... as plain data (NumPy arrays)."""

    def follow(self, names: dict[str, Any]) -> None:
        """After each statement, what is to be observed of its passing."""
        return

    @abstractmethod
    def differences(self, expected: Outcome, found: Outcome, program: Program) -> list[str]:
        """A line for each thing that differs; empty where the subject did as the reference."""

    def excuse(self, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
        """The reason why a difference says nothing: a program whose result the source framework leaves open, or which
        rounding decides. Asked only where there is one; the reasons are counted."""
        return None

    def play(self, program: Program, subject: str) -> Outcome:
        """Overridden for subjects that take a program as a whole (a compiled function)."""
        names, outcome = self.names(subject), Outcome()
        for i, text in enumerate(program.statements):
            try:
                exec(compile(text, f"<{program.kind} {i}>", "exec"), names)
            except Exception as error:
                outcome.raised[i] = type(error).__name__
            self.follow(names)
        outcome.observed = self.observe(names)
        return outcome

    def draw(self, seed: int) -> Program:
        """The program of a seed. Statements are drawn on the live values of the reference; most of those that it
        refuses are left out."""
        rng = random.Random(seed)
        names = self.names(REFERENCE)
        statements: list[str] = []
        wanted = rng.randint(*self.length)
        for _ in range(8 * wanted):
            if len(statements) == wanted:
                break
            text = self.statement(rng, names)
            try:
                exec(compile(text, f"<{self.name} {len(statements)}>", "exec"), names)
            except Exception as error:
                if rng.random() >= self.raising or not self.kept(error):
                    continue
            statements.append(text)
        return Program(self.name, tuple(statements), seed)

    def kept(self, error: Exception) -> bool:
        """Whether a subject has to raise this, too."""
        return not isinstance(error, Undefined)

    def failures(self, program: Program, subjects: tuple[str, ...]) -> dict[str, list[str]]:
        """subject -> what differs, for those where something does."""
        expected: dict[str, Outcome] = {}
        failed = {}
        for subject in subjects:
            judge = self.reference(subject)
            try:
                if judge not in expected:
                    expected[judge] = self.play(program, judge)
                found = self.play(program, subject)
            except Unfit:
                self.unfit.add(subject)
                continue
            lines = self.differences(expected[judge], found, program)
            reason = self.excuse(program, subject, expected[judge], found) if lines else None
            if reason is not None:
                self.excused[reason] += 1
            elif lines:
                failed[subject] = lines
        return failed


def other_values(given: Iterable[Any]) -> list[Any]:
    """Arrays of the same shapes and dtypes, for a call before: nothing of it may be left in what is compiled."""
    return [_other(x) if isinstance(x, np.ndarray) else x for x in given]


def _other(x: np.ndarray) -> np.ndarray:
    if x.ndim:
        return np.ascontiguousarray(np.flip(x))
    return np.asarray(x == 0, x.dtype)
