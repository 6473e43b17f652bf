"""Errors whose messages begin with the program's line, followed by the problem and remedies."""

from __future__ import annotations

from tensorgraft.compiled.source_location import quoted
from tensorgraft.compiled.traced_value_errors import ways_out
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.core.source_location import Place, program_place


def location_words(location: Place | None) -> str:
    return "The program" if location is None else quoted(*location)


def current_line() -> str:
    """Return the program's current line, quoted, to begin an error message with."""
    return location_words(program_place())


def refused(problem: str, *remedies: tuple[str, str]) -> TracedValueError:
    """Return the error for something that a compiled function cannot do; `problem` continues after the program's
    line."""
    return TracedValueError("\n".join([f"{current_line()} {problem}", *ways_out(remedies)]))
