"""`python -m tests.fuzz KIND -n 1000 --seed 7 --on jax,numpy --jobs 2`: random programs, what they find made small.

A program's seed is printed with what it finds, and draws it again (`--seed S -n 1`). Findings are written to
`out/fuzz/`; once mended they move to `tests/fuzz/found/`, where each is a test. Counts of a run with `--count` go to
`tests/fuzz/runs/`, from which docs/fuzzing.md is made.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.metadata
import json
import multiprocessing
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.fuzz.program import Kind, Program
from tests.fuzz.shrink import shrink

import tensorgraft as tg

ROOT = Path(__file__).parents[2]
_CHUNK = 1000
_TRIES = 5
OUT = ROOT / "out" / "fuzz"
FOUND = Path(__file__).parent / "found"
RUNS = Path(__file__).parent / "runs"
KINDS = sorted(
    path.parent.stem if path.stem == "__init__" else path.stem
    for pattern in ("[a-z]*.py", "*/__init__.py")
    for path in (Path(__file__).parent / "kinds").glob(pattern)
)


@functools.cache
def kind_named(name: str) -> Kind:
    made = importlib.import_module(f"tests.fuzz.kinds.{name}").KIND
    assert isinstance(made, Kind)
    return made


POLICY = "cpu"  # of autocast: CPU PyTorch is the reference


class _Hangs(Exception):
    pass


def _alarm(*_: Any) -> None:
    raise _Hangs("longer than its limit")


@dataclass
class Found:
    """What became of the program of a seed."""

    seed: int
    subjects: tuple[str, ...]
    rows: list[dict[str, Any]]  # one for each subject that differs
    excused: Counter[str]


def one(kind: Kind, seed: int, subjects: tuple[str, ...] = (), limit: int = 120) -> Found:
    """The program of a seed on these subjects, or on those that the seed chooses."""
    subjects = subjects or kind.chosen(seed)
    kind.excused.clear()
    kind.unfit.clear()
    program: Program | None = None
    before = [signal.signal(s, _alarm) for s in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, limit)  # of CPU time: on a machine that others use, too
    signal.alarm(20 * limit)
    try:
        program = kind.draw(seed)
        failed = kind.failures(program, subjects)
    except Exception:  # of the fuzzer itself, or one that an observation raises
        failed = {"-": [traceback.format_exc()]}
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for s, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(s, handler)
    rows = [{"seed": seed, "subject": s, "lines": lines, "program": str(program)} for s, lines in failed.items()]
    return Found(seed, tuple([s for s in subjects if s not in kind.unfit]), rows, kind.excused.copy())


def findings(name: str, seeds: range, subjects: tuple[str, ...], jobs: int) -> Iterator[Found]:
    """In processes, each of which plays `_CHUNK` programs: one that a framework ends is a finding. jobs=0: in this."""
    if not jobs:
        yield from (one(kind_named(name), seed, subjects) for seed in seeds)
        return
    waiting = [seeds[i : i + _CHUNK] for i in range(0, len(seeds), _CHUNK)][::-1]
    playing: dict[Connection, tuple[BaseProcess, range, int]] = {}  # the process, its seeds, the one at which it is
    context = multiprocessing.get_context("spawn")
    while waiting or playing:
        while waiting and len(playing) < jobs:
            here, there = context.Pipe(duplex=False)
            chunk = waiting.pop()
            process = context.Process(target=_play, args=(there, name, chunk, subjects), daemon=True)
            process.start()
            there.close()
            playing[here] = process, chunk, chunk[0]
        for ready in wait(list(playing)):
            assert isinstance(ready, Connection)
            process, chunk, seed = playing[ready]
            try:
                said = ready.recv()
            except EOFError:
                process.join()
                del playing[ready]
                if process.exitcode:
                    yield _ended(context, name, seed, subjects, process.exitcode)
                    if seed + 1 in chunk:
                        waiting.append(range(seed + 1, chunk.stop))
                continue
            if isinstance(said, Found):
                yield said
            else:
                playing[ready] = process, chunk, said


def _ended(context: Any, name: str, seed: int, subjects: tuple[str, ...], code: int) -> Found:
    """A process ended in a program: a finding, or nothing where the reference does that alone (not each time, if it
    spoils the heap)."""
    for _ in range(_TRIES):
        alone = context.Process(target=_by_reference, args=(name, seed, subjects), daemon=True)
        alone.start()
        alone.join()
        if alone.exitcode is not None and alone.exitcode < 0:  # by a signal
            return Found(seed, (), [], Counter(["the reference itself ends the process"]))
    row = {"seed": seed, "subject": "-", "lines": [f"the process ended with {code}"], "program": ""}
    return Found(seed, (), [row], Counter())


def _by_reference(name: str, seed: int, subjects: tuple[str, ...]) -> None:
    kind = kind_named(name)
    program = kind.draw(seed)
    for judge in {kind.reference(subject) for subject in subjects or kind.chosen(seed)}:
        kind.play(program, judge)


def _play(there: Connection, name: str, seeds: range, subjects: tuple[str, ...]) -> None:
    tg.autocast_policy(POLICY)
    kind = kind_named(name)
    for seed in seeds:
        there.send(seed)
        there.send(one(kind, seed, subjects))


def small(kind: Kind, row: dict[str, Any]) -> dict[str, Any]:
    program = Program(kind.name, tuple(row["program"].splitlines()), row["seed"])
    if row["subject"] == "-" or any(_Hangs.__name__ in line for line in row["lines"]):
        return row
    program = shrink(kind, program, row["subject"])
    lines = kind.failures(program, (row["subject"],)).get(row["subject"], row["lines"])
    return {**row, "program": str(program), "lines": lines}


def written(kind: Kind, row: dict[str, Any]) -> str:
    said = "".join(f"#   {line}\n" for entry in row["lines"] for line in entry.splitlines())
    return f"# {kind.name} seed {row['seed']} on {row['subject']}\n{said}{row['program']}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=[*KINDS, "all"])
    parser.add_argument("-n", type=int, default=1000, help="programs")
    parser.add_argument("--seed", type=int, default=None, help="of the first program (default: from the clock)")
    parser.add_argument("--on", default="", help="subjects, separated by commas (default: those that a seed chooses)")
    parser.add_argument("--jobs", type=int, default=0, help="processes (default: this one)")
    parser.add_argument("--most", type=int, default=20, help="stop after so many findings")
    parser.add_argument("--count", action="store_true", help="the run counts: it is written to tests/fuzz/runs/")
    parser.add_argument(
        "--again", action="store_true", help="what differed in the counted run from --seed on, once more"
    )
    args = parser.parse_args()
    first = args.seed if args.seed is not None else int(time.time()) % 10**8 * 1000
    kinds = KINDS if args.kind == "all" else [args.kind]
    tg.autocast_policy(POLICY)
    if args.again:
        return max(again(kind_named(name), first) for name in kinds)
    return max(_run(kind_named(name), first, args) for name in kinds)


def _run(kind: Kind, first: int, args: argparse.Namespace) -> int:
    subjects = tuple(args.on.split(",")) if args.on else ()
    print(f"{kind.name}: seeds {first} to {first + args.n - 1}, on {', '.join(subjects or kind.subjects)}", flush=True)
    played, excused, bad = Counter[str](), Counter[str](), list[int]()
    ran, started = 0, time.monotonic()
    texts: dict[int, str] = {}
    for found in findings(kind.name, range(first, first + args.n), subjects, args.jobs):
        ran += 1
        played.update(found.subjects)
        excused.update(found.excused)
        for row in found.rows:
            bad.append(found.seed)
            texts[found.seed] = row["program"]
            OUT.mkdir(parents=True, exist_ok=True)
            path = OUT / f"{kind.name}_{row['seed']}_{row['subject'].replace(' ', '_')}.py"
            path.write_text(written(kind, row))  # a crash of what makes it small loses nothing
            path.write_text(written(kind, small(kind, row)))
            print(path.read_text(), flush=True)
        if args.count and ran % 200 == 0:  # of a run that is stopped
            _record(kind, first, ran, played, excused, texts)
        if len(bad) >= args.most:
            break
    print(
        f"{ran} programs, {len(bad)} differences, {dict(played)}, {dict(excused)}, {time.monotonic() - started:.0f} s",
        flush=True,
    )
    if args.count:
        _record(kind, first, ran, played, excused, texts)
    return 1 if bad else 0


def _record(
    kind: Kind, first: int, ran: int, played: Counter[str], excused: Counter[str], texts: dict[int, str]
) -> None:
    """Of programs in order from the first seed on (with several jobs nearly so)."""
    RUNS.mkdir(exist_ok=True)
    record = {"kind": kind.name, "first": first, "programs": ran, "played": played, "excused": excused}
    record |= {"differed": sorted(texts), "commit": commit(), "texts": texts}
    _file(kind, first).write_text(json.dumps(record, indent=1) + "\n")


def _file(kind: Kind, first: int) -> Path:
    return RUNS / f"{kind.name}_{first}.json"


def again(kind: Kind, first: int) -> int:
    """Play what differed in a counted run at this commit, and note what still does. The programs are those of the run,
    whatever a seed draws now; what ended its process has none, and is asked whether the reference does that alone."""
    record = json.loads(_file(kind, first).read_text())
    if "texts" not in record:
        raise SystemExit(f"{_file(kind, first).name} is of before runs kept the programs that differed")
    subjects, differs = tuple(record["played"]), list[int]()
    for seed in record["differed"]:
        text = record["texts"][str(seed)]
        if text:
            failed = bool(kind.failures(Program(kind.name, tuple(text.splitlines()), seed), subjects))
        else:
            failed = bool(_ended(multiprocessing.get_context("spawn"), kind.name, seed, subjects, 1).rows)
        print(f"{kind.name} seed {seed}: {'differs' if failed else 'does not differ'}", flush=True)
        differs += [seed] * failed
    record["again"] = {"differed": differs, "commit": commit()}
    _file(kind, first).write_text(json.dumps(record, indent=1) + "\n")
    return int(bool(differs))


def commit() -> str:
    if shutil.which("git") is None:
        return importlib.metadata.version("tensorgraft")
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return asked.stdout.strip() if asked.returncode == 0 else importlib.metadata.version("tensorgraft")


if __name__ == "__main__":
    sys.exit(main())
