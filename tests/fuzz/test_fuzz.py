"""Some programs of each kind, others for each commit: their seeds are made from it, so that everybody draws the same.

`make fuzz N=100000` plays more of them (`run.py`); docs/fuzzing.md counts what has been played.
"""

import zlib
from collections.abc import Iterator

import pytest
from tests.fuzz import run

# of each kind: so many tests of so many programs
PROGRAMS = {
    "torch": (4, 80),
    "jax": (2, 12),
    "array_api": (2, 15),
    "quantized": (2, 12),
    "stateful": (2, 8),
    "tensorflow": (2, 8),
}

_SELDOM = 10  # a subject that plays fewer programs compiles each of them, which is for `make fuzz`


# of which a program in hundreds still differs (docs/fuzzing.md says how many): one in a test is told, and no failure
_OPEN = {"torch", "tensorflow", "source", "stateful"}


def _found(kind: str, seeds: range) -> Iterator[run.Found]:
    played = run.kind_named(kind)
    if kind == "torch":  # some kernels of the CPU spoil the memory of their process: not that of the other tests
        often = tuple(subject for subject, share in played.shares.items() if share <= _SELDOM)
        yield from run.findings(kind, seeds, often, jobs=1)
        return
    for seed in seeds:
        often = tuple(subject for subject in played.chosen(seed) if played.shares[subject] <= _SELDOM)
        if often:
            yield run.one(played, seed, often)


@pytest.mark.parametrize(
    "kind, part", [(kind, part) for kind in run.KINDS for part in range(PROGRAMS.get(kind, (2, 10))[0])]
)
def test_programs_of_this_commit(kind: str, part: int) -> None:
    count = PROGRAMS.get(kind, (2, 10))[1]
    first = zlib.crc32(f"{run.commit()} {kind} {part}".encode()) * 1000
    played = run.kind_named(kind)
    told: list[str] = []
    for found in _found(kind, range(first, first + count)):
        if found.rows:
            row = found.rows[0]
            said = run.written(played, run.small(played, row))
            told.append(f"python -m tests.fuzz {kind} --seed {found.seed} -n 1 --on '{row['subject']}'\n{said}")
        if len(told) > (kind in _OPEN):
            pytest.fail("\n".join(told), pytrace=False)
    if told:
        pytest.xfail(told[0])
