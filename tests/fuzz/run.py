"""`python -m tests.fuzz KIND -n 1000 --seed 7 --on jax,numpy --jobs 2`: random programs, what they find made small.

A program's seed is printed with what it finds, and draws it again (`--seed S -n 1`). Findings are written to
`out/fuzz/`; once mended they move to `tests/fuzz/found/`, where each is a test. Counts go to `tests/fuzz/runs/`, from
which docs/fuzzing.md is made.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.program import Kind, Program
from tests.fuzz.shrink import shrink

ROOT = Path(__file__).parents[2]
OUT = ROOT / "out" / "fuzz"
FOUND = Path(__file__).parent / "found"
KINDS = sorted(path.stem for path in (Path(__file__).parent / "kinds").glob("[a-z]*.py"))


def kind_named(name: str) -> Kind:
    made = importlib.import_module(f"tests.fuzz.kinds.{name}").KIND
    assert isinstance(made, Kind)
    return made


class _Hangs(Exception):
    pass


def _alarm(*_: Any) -> None:
    raise _Hangs("longer than its limit")


def one(kind: Kind, seed: int, subjects: tuple[str, ...], limit: int = 120) -> list[dict[str, Any]]:
    """What the program of a seed finds: a row for each subject that differs."""
    signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(limit)
    program: Program | None = None
    try:
        program = kind.draw(seed)
        failures = kind.failures(program, subjects)
    except Exception:
        rows = [{"seed": seed, "subject": "-", "lines": [traceback.format_exc()], "program": str(program)}]
        return rows
    finally:
        signal.alarm(0)
    return [{"seed": seed, "subject": s, "lines": lines, "program": str(program)} for s, lines in failures.items()]


def _task(args: tuple[str, int, tuple[str, ...]]) -> list[dict[str, Any]]:
    name, seed, subjects = args
    return one(kind_named(name), seed, subjects)


def findings(name: str, seeds: range, subjects: tuple[str, ...], jobs: int) -> Iterator[list[dict[str, Any]]]:
    tasks = ((name, seed, subjects) for seed in seeds)
    if jobs == 1:
        yield from map(_task, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=5000) as pool:
        yield from pool.imap_unordered(_task, tasks, chunksize=20)


def small(kind: Kind, row: dict[str, Any]) -> dict[str, Any]:
    program = Program(kind.name, tuple(row["program"].splitlines()), row["seed"])
    if row["subject"] == "-":
        return row
    program = shrink(kind, program, row["subject"])
    lines = kind.failures(program, (row["subject"],)).get(row["subject"], row["lines"])
    return {**row, "program": str(program), "lines": lines}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("-n", type=int, default=1000, help="programs")
    parser.add_argument("--seed", type=int, default=None, help="of the first program (default: from the clock)")
    parser.add_argument("--on", default="", help="subjects, separated by commas (default: all of the kind)")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--most", type=int, default=20, help="stop after so many findings")
    args = parser.parse_args()
    kind = kind_named(args.kind)
    subjects = tuple(args.on.split(",")) if args.on else kind.subjects
    first = args.seed if args.seed is not None else int(time.time()) % 10**8 * 1000
    print(f"{args.kind}: seeds {first} to {first + args.n - 1}, on {', '.join(subjects)}", flush=True)
    ran, bad, started = 0, 0, time.monotonic()
    for rows in findings(args.kind, range(first, first + args.n), subjects, args.jobs):
        ran += 1
        for row in rows:
            bad += 1
            shown = small(kind, row)
            text = f"# {kind.name} seed {shown['seed']} on {shown['subject']}\n" + "".join(
                f"#   {line}\n" for entry in shown["lines"] for line in entry.splitlines()
            )
            text += shown["program"] + "\n"
            OUT.mkdir(parents=True, exist_ok=True)
            (OUT / f"{kind.name}_{shown['seed']}_{shown['subject'].replace(' ', '_')}.py").write_text(text)
            print(text, flush=True)
        if bad >= args.most:
            break
    print(f"{ran} programs, {bad} differences, {time.monotonic() - started:.0f} s", flush=True)
    record = {"first": first, "programs": ran, "differences": bad, "subjects": subjects}
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / f"{kind.name}.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
