"""What the fuzzer has found, and has been mended since: each on all subjects that take few programs to choose."""

from pathlib import Path

import pytest
from tests.fuzz import run
from tests.fuzz.program import Program

FOUND = sorted(run.FOUND.glob("*.py"))
_SELDOM = 8  # a subject that plays fewer programs compiles each of them: it plays those that were found on it


@pytest.mark.parametrize("path", FOUND, ids=[path.stem for path in FOUND])
def test_what_was_found_is_mended(path: Path) -> None:
    """The first line is a comment: `# KIND ... on SUBJECT`."""
    lines = path.read_text().splitlines()
    words = lines[0].removeprefix("# ").split()
    kind, found_on = run.kind_named(words[0]), lines[0].rpartition(" on ")[2]
    subjects = tuple(s for s, share in kind.shares.items() if share <= _SELDOM or s == found_on)
    program = Program(kind.name, tuple(line for line in lines if not line.startswith("#")))
    assert not kind.failures(program, subjects)
