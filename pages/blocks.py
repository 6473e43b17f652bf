"""The programs of a page of Markdown.

What stands in a fence of Python is run, in the order of the page and with the names of those before it. Words behind
"python" are for the build, and not shown:

    ```python               runs
    ```python raises        has to end in an exception, whose type and message are its output
    ```python file=a.py     is written into a file, in the folder that the page runs in
    ```python no-run        is a fragment that cannot run by itself
    ```sh run               is a command that runs; plain `sh` is shown alone

A comment of HTML that begins with `<!-- python` is run as well and never shown: what a page takes for granted, and
assertions of what it claims.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FENCE = re.compile(
    r"^```(?P<language>python|sh)\b(?P<options>[^\n]*)\n(?P<program>.*?)^```$|^<!-- python\n(?P<hidden>.*?)^-->$",
    re.DOTALL | re.MULTILINE,
)
# Pages of `docs/` itself whose programs the build runs.
EXPLANATIONS = ("compiled.md", "source.md", "tensorflow.md")
OPTIONS = re.compile(r"raises|no-run|run|file=[\w./]+")
SHOWS = re.compile(r"^ {0,4}print\(|\.plot\(|\.bar\(|\.barh\(|\.imshow\(|\.scatter\(|\.semilogy\(", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    program: str
    line: int  # of its first statement in the page
    start: int  # where it begins and ends in the text
    end: int
    language: str = "python"
    options: frozenset[str] = frozenset()
    hidden: bool = False

    @property
    def file(self) -> str | None:
        """What it is written into, instead of being run."""
        return next((o.removeprefix("file=") for o in self.options if o.startswith("file=")), None)

    @property
    def runs(self) -> bool:
        return "run" in self.options if self.language == "sh" else not self.options & {"no-run"} and not self.file

    @property
    def shows(self) -> bool:
        """It prints or draws, so that it is an error if nothing comes of it."""
        return self.runs and not self.hidden and (self.language == "sh" or bool(SHOWS.search(self.program)))


def blocks(text: str) -> list[Block]:
    """All programs of a page. Raises ValueError for an option that there is not."""
    found = []
    for match in FENCE.finditer(text):
        hidden = match["hidden"] is not None
        options = frozenset((match["options"] or "").split())
        line = text.count("\n", 0, match.start()) + 2
        for option in options:
            if not OPTIONS.fullmatch(option):
                raise ValueError(f"line {line - 1}: there is no option {option!r} of a block (pages/blocks.py)")
        found.append(
            Block(
                match["hidden"] if hidden else match["program"],
                line,
                match.start(),
                match.end(),
                match["language"] or "python",
                options,
                hidden,
            )
        )
    return found


def front_matter(text: str) -> dict[str, Any]:
    """What a page says of itself between its first two lines of dashes, and {} where there are none."""
    match = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    return yaml.safe_load(match[1]) if match else {}


def programs(folder: Path) -> list[Path]:
    """The pages in a folder that have a program to run."""
    return [p for p in sorted(folder.rglob("*.md")) if any(b.runs for b in blocks(p.read_text()))]
