"""Whole scripts as users publish them (`benchmarks/scripts`), start-up included: by `python`, and by `tensorgraft run
--on jax`, first on an empty cache of compiled programs, then in a second process on what the first one left there.

CPU seconds of one core. Runs take turns; that of `python` counts at its quickest. What they print as losses has to
agree.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measure import Row
from benchmarks.worker import ONE_CORE, as_installed

SCRIPTS = Path(__file__).parent / "scripts"
NAMES = {
    "convnet": "convolutional network",
    "dcgan": "GAN",
    "rnn": "recurrent network",
    "language_model": "transformer",
    "diffusion": "diffusion",
    "trainer": "Trainer",
}
COLD, SECOND, LAZY = 1.5, 1.3, 1.1
APART = 1e-4  # relative, of the first loss that is printed
LATER = {"dcgan": 0.2}  # of the others: two networks that play against each other make much of a last bit
OTHERS = 1e-2
RUN = (sys.executable, "-W", "ignore", "-c", "from tensorgraft.cli import main; main()", "run", "--on", "jax")
PLAIN = (sys.executable, "-W", "ignore")
LIMIT = 1800  # seconds


def run(command: Sequence[str], script: str, args: Sequence[str], cache: str) -> tuple[float, list[float]]:
    """CPU seconds of a process, its children's included, and the losses that it prints.

    Raises RuntimeError with what it wrote last where it fails.
    """
    environment = {**as_installed(), **ONE_CORE, "TENSORGRAFT_CACHE": "1", "TENSORGRAFT_CACHE_DIR": cache,
                   "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip
    if command is PLAIN:
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # PyTorch as it is without tensorgraft
    before = os.times()
    done = subprocess.run(
        [*command, str(SCRIPTS / f"{script}.py"), *args], capture_output=True, text=True, env=environment, timeout=LIMIT
    )
    after = os.times()
    if done.returncode:
        raise RuntimeError(f"{script}: {(done.stderr.strip().splitlines() or ['it ended'])[-1]}")
    seconds = after.children_user - before.children_user + after.children_system - before.children_system
    return seconds, losses(done.stdout)


def losses(printed: str) -> list[float]:
    """What a script says of its losses."""
    return [float(x) for x in re.findall(r"\bloss'?:? '?([0-9.]+)", printed)]


def agree(script: str, ours: list[float], native: list[float]) -> None:
    """Raises AssertionError where the losses of two runs are not the same."""
    assert native and len(ours) == len(native), f"{script}: losses {ours} and {native}"
    for i, (a, b) in enumerate(zip(ours, native, strict=True)):
        assert abs(a - b) <= (LATER.get(script, OTHERS) if i else APART) * abs(b), (
            f"{script}: loss {i} is {a}, natively {b}"
        )


def compare(script: str, args: Sequence[str] = ()) -> Iterator[Row]:
    """`args`: of the script."""
    name = f"{NAMES[script]} ({script}.py)"
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as lazily:
        native, wanted = run(PLAIN, script, args, cache)
        runs = {}
        for what, command, folder in (("cold", RUN, cache), ("second", RUN, cache), ("lazy", (*RUN, "--lazy"), lazily)):
            runs[what], found = run(command, script, args, folder)
            agree(script, found, wanted)
        native = min(native, run(PLAIN, script, args, cache)[0])
    yield Row(f"{name}, cold", runs["cold"], native, "python", COLD)
    yield Row(f"{name}, second process", runs["second"], native, "python", SECOND)
    yield Row(f"{name}, cold, lazy", runs["lazy"], runs["cold"], "eager", LAZY)


def measure() -> Iterator[Row]:
    for script in NAMES:
        yield from compare(script)
