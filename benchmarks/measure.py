"""Timing that holds on a busy machine: subjects take turns in short bursts, and the quickest burst of each counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Row:
    """One comparison."""

    name: str
    ours: float
    reference: float
    against: str
    limit: float | None = None  # of the ratio, where there is a promise
    extra: float | None = None  # of the difference in seconds, where that is the promise
    unit: str = "s"  # seconds, "B" for bytes, "" for a number of things

    @property
    def ratio(self) -> float:
        return self.ours / self.reference

    @property
    def kept(self) -> bool:
        if self.extra is not None:
            return self.ours - self.reference <= self.extra
        return self.limit is None or self.ratio <= self.limit


def interleaved(
    subjects: dict[str, Callable[[], object]], calls: int, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Seconds per call of each subject: `rounds` bursts of `calls` calls, in turn. A subject waits for its results.

    `clock`: `time.process_time` where the machine is busy and the work is one core's.
    """
    for subject in subjects.values():
        subject()
    bursts: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, subject in subjects.items():
            start = clock()
            for _ in range(calls):
                subject()
            bursts[name].append((clock() - start) / calls)
    return {name: min(seconds) for name, seconds in bursts.items()}
