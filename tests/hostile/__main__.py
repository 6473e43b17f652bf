"""`python -m tests.hostile --files 1000000 --seed S`: mutated files of every format, and docs/hostile_files.md."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hostile import page, runs
from tests.hostile.formats import Format, formats

ROOT = Path(__file__).parents[2]
BATCH = 2_000  # of a format whose share is 1 or less
LONGEST = 1800  # seconds that a child has


@dataclass
class Found:
    """What became of the mutants of one format."""

    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    peak: int = 0  # KiB

    def add(self, other: Found) -> None:
        self.counts.update(other.counts)
        self.errors.update(other.errors)
        self.failures += other.failures
        self.seconds += other.seconds
        self.peak = max(self.peak, other.peak)


def child(form: Format, seed: str, first: int, count: int, found: Found) -> None:
    """Load mutants in a process of their own, and in another one what is left where that ends."""
    place = tempfile.mkdtemp(prefix="hostile-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        command = [sys.executable, "-m", "tests.hostile.child", form.name, seed, str(first), str(count), place]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=LONGEST, check=False)
            ended, said = done.returncode, done.stderr.decode(errors="replace")
        except subprocess.TimeoutExpired:
            ended, said, done = "never", "", None
        if done is not None and not done.returncode:
            told = json.loads(done.stdout)
            found.add(
                Found(Counter(told["counts"]), Counter(told["errors"]), told["failures"], told["seconds"], told["peak"])
            )
            return
        marked = Path(place, "at")
        at = int.from_bytes(marked.read_bytes(), "little") if marked.exists() else None
        if at is None:
            raise RuntimeError(f"{form.name}: the child ended before the first mutant ({ended}):\n{said[-2000:]}")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    found.counts["crash"] += 1
    found.failures.append({"index": at, "kind": "crash", "said": f"the process ended with {ended}: {said[-200:]}"})
    if at > first:
        child(form, seed, first, at - first, found)
    if at + 1 < first + count:
        child(form, seed, at + 1, first + count - at - 1, found)


def run(names: list[str], files: int, seed: str, jobs: int, keep: bool) -> dict[str, Found]:
    """Mutants of all formats, or of some alone; `keep`: what is done is in `runs`, and not done again."""
    chosen = [form for name, form in formats().items() if not names or name in names]
    whole = sum(form.share for form in formats().values())
    results = {form.name: Found() for form in chosen}
    work = []
    for form in chosen:
        count = max(20, round(files * form.share / whole))
        size = round(BATCH * max(1.0, form.share))
        starts = [runs.done(seed, form.name) if keep else 0]
        while starts[-1] < count:
            starts.append(min(starts[-1] + size, count))
        work += [(first / count, form, first, end - first) for first, end in itertools.pairwise(starts)]
    lock = threading.Lock()

    def batch(item: tuple[float, Format, int, int]) -> None:
        _, form, first, count = item
        key = f"{seed}/{form.name}/{first}+{count}"
        found = Found()
        child(form, seed, first, count, found)
        print(f"{key}: {dict(found.counts)} {found.seconds:.0f} s", file=sys.stderr, flush=True)
        with lock:
            results[form.name].add(found)
            if keep:
                runs.add(key, form.name, found)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(batch, sorted(work, key=lambda item: item[0])))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--files", type=int, default=10_000, help="how many mutants, of all formats together")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--formats", nargs="*", default=[], help="some alone")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument(
        "--page", action="store_true", help="add to tests/hostile/runs.json, and write docs/hostile_files.md"
    )
    options = parser.parse_args()
    results = run(options.formats, options.files, options.seed, options.jobs, options.page)
    failed = 0
    for name, f in results.items():
        bad = {kind: n for kind, n in f.counts.items() if kind not in ("equal", "other values", "error")}
        theirs = formats()[name].reads == "PyTorch" and set(bad) <= {"memory"}
        failed += sum(bad.values()) * (not theirs)
        print(f"{name}: {sum(f.counts.values())} files, {dict(f.counts)}, {f.seconds:.0f} s")
        for row in f.failures[:10]:
            print("   ", row)
    if options.page:
        page.write(runs.read())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
