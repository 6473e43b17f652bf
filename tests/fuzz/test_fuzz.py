"""Some programs of each kind, others for each commit: their seeds are made from it, so that everybody draws the same.

`make fuzz N=100000` plays more of them (`run.py`); docs/fuzzing.md counts what has been played.
"""

import zlib

import pytest
from tests.fuzz import run

# of each kind: so many tests of so many programs
PROGRAMS = {"torch": (4, 120), "jax": (2, 12), "array_api": (2, 60), "quantized": (2, 12), "tensorflow": (2, 8)}


@pytest.mark.parametrize(
    "kind, part", [(kind, part) for kind in run.KINDS for part in range(PROGRAMS.get(kind, (2, 10))[0])]
)
def test_programs_of_this_commit(kind: str, part: int) -> None:
    count = PROGRAMS.get(kind, (2, 10))[1]
    first = zlib.crc32(f"{run.commit()} {kind} {part}".encode()) * 1000
    for seed in range(first, first + count):
        found = run.one(run.kind_named(kind), seed)
        for row in found.rows:
            said = run.written(run.kind_named(kind), run.small(run.kind_named(kind), row))
            pytest.fail(
                f"python -m tests.fuzz {kind} --seed {seed} -n 1 --on '{row['subject']}'\n{said}", pytrace=False
            )
