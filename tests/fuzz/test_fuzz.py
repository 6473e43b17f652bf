"""Some programs of each kind, others for each commit: their seeds are made from it, so that everybody draws the same.

`make fuzz N=100000` plays more of them (`run.py`); docs/fuzzing.md counts what has been played.
"""

import zlib

import pytest
from tests.fuzz import run

# of each kind: so many tests of so many programs
PROGRAMS = {"torch": (4, 120), "jax": (2, 12), "array_api": (2, 15), "quantized": (2, 12), "tensorflow": (2, 8)}

_SELDOM = 10  # a subject that plays fewer programs compiles each of them, which is for `make fuzz`


# of which one program in a hundred still differs, or of which few were played (docs/fuzzing.md): with --slow until then
_OPEN = {"torch", "tensorflow", "source", "gradients"}


@pytest.mark.parametrize(
    "kind, part",
    [
        pytest.param(kind, part, marks=[pytest.mark.slow] if kind in _OPEN else [])
        for kind in run.KINDS
        for part in range(PROGRAMS.get(kind, (2, 10))[0])
    ],
)
def test_programs_of_this_commit(kind: str, part: int) -> None:
    count = PROGRAMS.get(kind, (2, 10))[1]
    first = zlib.crc32(f"{run.commit()} {kind} {part}".encode()) * 1000
    played = run.kind_named(kind)
    for seed in range(first, first + count):
        often = tuple(subject for subject in played.chosen(seed) if played.shares[subject] <= _SELDOM)
        if not often:
            continue
        found = run.one(played, seed, often)
        for row in found.rows:
            said = run.written(played, run.small(played, row))
            pytest.fail(
                f"python -m tests.fuzz {kind} --seed {seed} -n 1 --on '{row['subject']}'\n{said}", pytrace=False
            )
