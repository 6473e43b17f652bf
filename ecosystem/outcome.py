"""What one program or suite did on one subject, as a line of `out/ecosystem/*.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

OUT = Path(__file__).parents[1] / "out" / "ecosystem"
REASONS = Path(__file__).with_name("reasons.toml")


@dataclass
class Outcome:
    """One program (a case of it) on one backend, beside its native run; times are CPU seconds, start-up included."""

    area: str  # torch, jax, arrays
    name: str
    backend: str
    apart: float | None = None  # None: it did not run to its end
    tolerance: float = 0.0
    seconds: float = 0.0
    native: float = 0.0
    error: str = ""
    fallbacks: str = ""  # operators that ran on the CPU for want of a kernel

    @property
    def passed(self) -> bool:
        return self.apart is not None and self.apart <= self.tolerance

    def __str__(self) -> str:
        verdict = "ok" if self.passed else "FAILED"
        apart = self.error if self.apart is None else f"apart {self.apart:.1e}"
        times = f"{self.seconds:.1f} s ({self.native:.1f} s)"
        return f"{verdict:<7}{self.area}/{self.name} on {self.backend}: {apart}, {times}"


def write(outcomes: Iterable[Outcome], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        file.writelines(json.dumps(asdict(o)) + "\n" for o in outcomes)


def read(path: Path) -> Iterator[Outcome]:
    with path.open() as file:
        for line in file:
            yield Outcome(**json.loads(line))
