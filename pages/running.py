"""A page in a process of its own: what its programs print and draw, kept until the page or the package changes."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from pages.blocks import blocks, front_matter

ROOT = Path(__file__).parents[1]
LIMIT = 900  # seconds of the clock: a page takes some ten of a core, and a machine may be busy


@dataclass
class Output:
    """What came of one block."""

    text: str = ""
    figures: tuple[str, ...] = ()  # SVG


class PageError(Exception):
    """A program of a page failed, or gave nothing where it should."""


def run(page: Path, *, kept: Path | None = None) -> list[Output]:
    """What the blocks of a page give, one by one; of what does not run, nothing.

    Arguments:
        page: a file of Markdown. Its front matter may have `environment`, variables for its process.
        kept: a folder for outputs, in which they are looked up first.

    Raises:
        PageError: where a block fails, does not raise though it says so, or has no output though it prints or draws.
    """
    text = page.read_text()
    place = kept and _place(page, kept)
    if place and place.exists():
        return [Output(**one) for one in json.loads(place.read_text())]
    environment = {**os.environ, **{k: str(v) for k, v in front_matter(text).get("environment", {}).items()}}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), environment.get("PYTHONPATH", "")])
    environment |= {"COLUMNS": "130", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory() as folder:  # what pages write lies there
        results = Path(folder) / "outputs.json"
        command = [sys.executable, "-m", "pages.worker", str(page.resolve()), str(results)]
        try:
            done = subprocess.run(
                command, env=environment, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired as e:
            raise PageError(f"{page}: its programs run for more than {LIMIT} s") from e
        if done.returncode or not results.exists():
            raise PageError(f"{page}: a program failed\n{done.stderr[-4000:]}")
        outputs = [Output(**one) for one in json.loads(results.read_text())]
    for block, output in zip(blocks(text), outputs, strict=True):
        if block.shows and not (output.text.strip() or output.figures):
            raise PageError(f"{page}:{block.line}: this block prints or draws, and nothing came of it")
    if place:
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = place.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps([asdict(one) for one in outputs]))
        unfinished.replace(place)
    return outputs


def is_kept(page: Path, kept: Path) -> bool:
    return _place(page, kept).exists()


def _place(page: Path, kept: Path) -> Path:
    return kept / f"{page.stem}-{hashlib.sha256((page.read_text() + _package()).encode()).hexdigest()[:16]}.json"


@functools.cache
def _package() -> str:
    """The code that pages run on."""
    every = hashlib.sha256()
    for path in [
        *sorted((ROOT / "src").rglob("*.py")),
        ROOT / "constraints.txt",
        Path(__file__).with_name("worker.py"),
    ]:
        every.update(path.read_bytes())
    return every.hexdigest()
