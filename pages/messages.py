"""The page of errors: what each heading quotes has to be in the message that the program under it makes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pages.blocks import blocks
from pages.running import Output, PageError

HEADING = re.compile(r"^### (?P<quoted>`.*`)", re.MULTILINE)


def check(text: str, outputs: Sequence[Output]) -> list[str]:
    """The quoted parts of all headings of errors. Raises PageError for one that no message has."""
    headings = list(HEADING.finditer(text))
    ends = [h.start() for h in headings[1:]] + [len(text)]
    found = []
    for heading, end in zip(headings, ends, strict=True):
        parts = re.findall(r"`([^`]*)`", heading["quoted"])
        said = " ".join(o.text for b, o in zip(blocks(text), outputs, strict=True) if heading.end() < b.start < end)
        if not re.search(".*".join(map(re.escape, parts)), said, re.DOTALL):
            raise PageError(f"troubleshooting: no message has {' ... '.join(parts)!r}; it is\n{said}")
        found.append(" ... ".join(parts))
    return found
