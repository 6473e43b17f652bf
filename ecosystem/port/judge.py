"""What `tg.port` finds of a pair, and `tg.diff` of a planted difference, against what is known of them."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np

import tensorgraft as tg
from ecosystem.port.pair import CLOSE, Pair, Program, Weights, kind, load, weights
from ecosystem.port.planted import Network

LIMIT = 600  # seconds for each


@dataclass
class PairOutcome:
    """The result of a pair; `error` where there is none."""

    name: str
    table: str = ""  # whose table the mapping is compared with
    expected: str = ""  # the reason of the first difference, of networks that are known to differ
    traps: str = ""
    parameters: int = 0
    unmatched: list[str] = field(default_factory=list)
    apart_from_table: float | None = None  # relative to the largest weight
    wrong: list[str] = field(default_factory=list)  # parameters that are not the table's
    apart: list[float] = field(default_factory=list)  # of the results after `convert`, at both sizes
    first: str = ""  # the reason of the first difference
    places: str = ""
    seconds: float = 0.0
    error: str = ""

    @property
    def passed(self) -> bool:
        if self.error:
            return False
        if self.expected:
            return self.first == self.expected
        return not (self.unmatched or self.wrong or self.first) and all(d <= CLOSE for d in self.apart)


@dataclass
class PlantedOutcome:
    """The result of a planted difference, or of programs that are equal: they have no reason."""

    network: str
    change: str
    reason: str = ""
    called_equal: bool = False
    line: bool = False  # the first difference is in the line
    found: str = ""  # the reason that is given
    place: str = ""
    seconds: float = 0.0
    error: str = ""

    @property
    def passed(self) -> bool:
        if self.error:
            return False
        return self.line and self.found == self.reason if self.reason else self.called_equal


def judge_pair(pair: Pair) -> PairOutcome:
    """Port the source to the target, and compare the mapping with the table, and the results with each other."""
    outcome = PairOutcome(pair.name, pair.table, pair.difference, pair.traps)
    source, target = pair.source(), pair.target()
    ours, theirs = pair.examples(0)

    def judged() -> None:
        before = time.process_time()
        result = tg.port(source, target, *ours, target_example=theirs)
        outcome.seconds = time.process_time() - before
        outcome.parameters = len(list(result.mapping))
        outcome.unmatched = list(result.mapping.unmatched)
        difference = result.report.first_difference
        if difference is not None:
            outcome.first = difference.reason or "unknown"
            outcome.places = f"{difference.source_place} | {difference.target_place}"
        names = _own_names(target, theirs)
        found = {names[name]: np.asarray(value) for name, value in result.weights.items()}
        if pair.convert is not None:
            expected = weights(pair.convert(source, pair.target()))
            _compare(outcome, pair, found, dict(zip(weights(target), expected.values(), strict=True)))
        if not outcome.unmatched:
            filled = load(target, found)
            outcome.apart = [pair.apart(source, filled, size) for size in pair.sizes]

    outcome.error = _error(judged)
    return outcome


def judge_planted(network: Network, change: str, reason: str = "") -> PlantedOutcome:
    """Compare a network with its counterpart, which has a change."""
    outcome = PlantedOutcome(network.name, change, reason)
    values = network.values(1)
    source, target = network.source(values), network.target(values, change)
    ours, theirs = network.examples(0)

    def judged() -> None:
        before = time.process_time()
        report = tg.diff(source, target, *ours, target_example=theirs)
        outcome.seconds = time.process_time() - before
        outcome.called_equal = report.ok
        difference = report.first_difference
        if difference is not None:
            outcome.found, outcome.place = difference.reason, difference.target_place
            outcome.line = reason != "" and _is_in(difference.target_place, network, change)

    outcome.error = _error(judged)
    return outcome


def _is_in(place: str, network: Network, change: str) -> bool:
    """Tell whether a place, `file:line`, is one of a change's."""
    match = re.search(r"([\w.]+\.py):(\d+)", place)
    return match is not None and match[1] == network.file.name and int(match[2]) in network.lines(change)


def _own_names(program: Program, arguments: tuple[Any, ...]) -> dict[str, str]:
    """Return this bench's names of a program's weights by those of `tg.source`: their values are the same."""
    from tensorgraft.porting.comparison import ProgramAtSizes
    from tensorgraft.transforms.source import source_program

    arguments = (program[1], *arguments) if isinstance(program, tuple) else arguments
    function = program[0] if isinstance(program, tuple) else program
    if kind(program) == "torch":
        import torch

        arguments = tuple(torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in arguments)
    traced = ProgramAtSizes(source_program(function, (arguments, {})), arguments, isinstance(program, tuple))
    by_value = {np.asarray(value).tobytes(): name for name, value in weights(program).items()}
    arrays = {name: np.asarray(value).tobytes() for name, value in traced.weights.items()}
    return {name: by_value[array] for name, array in arrays.items() if array in by_value}


def _compare(outcome: PairOutcome, pair: Pair, found: Weights, expected: Weights) -> None:
    limit = max(pair.table_error, 1e-6)
    apart = {}
    for name, value in found.items():
        wanted = expected[name]
        largest = float(np.abs(wanted).max()) or 1.0
        apart[name] = float(np.abs(value - wanted).max()) / largest if value.shape == wanted.shape else np.inf
    outcome.apart_from_table = max(apart.values(), default=0.0)
    outcome.wrong = [name for name, far in apart.items() if far > limit]


def _error(function: Callable[[], None]) -> str:
    try:
        with _limited(LIMIT):
            function()
    except Exception as error:  # one pair's error is its row
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
    return ""


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
