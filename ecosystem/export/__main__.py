"""`python -m ecosystem.export [--formats F ..] [--programs TEXT ..] [--peers]`: export every program to every format,
run each file in its own runtime, and write docs/export_programs.md."""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import time

from ecosystem.export.page import PAGE, page
from ecosystem.export.programs import Program, all_programs
from ecosystem.export.row import FILE, FORMATS, OURS, PEERS, Row, rows

TIMEOUT = 240.0  # seconds of a row


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ecosystem.export", description=__doc__)
    parser.add_argument("--formats", nargs="*", default=list(FORMATS))
    parser.add_argument("--programs", nargs="*", default=[], help="names or libraries that contain one of these")
    parser.add_argument("--peers", action="store_true", help="the other exporters alone")
    parser.add_argument("--ours", action="store_true", help="tensorgraft alone")
    parser.add_argument("--failed", action="store_true", help="what was not equal or not open")
    parser.add_argument("--new", action="store_true", help="what was not run before")
    parser.add_argument("--page", action="store_true", help="the page alone")
    options = parser.parse_args()
    FILE.parent.mkdir(parents=True, exist_ok=True)
    known, wanted = rows(), []
    for program in [] if options.page else all_programs():
        title = f"{program.name} {program.library}"
        if options.programs and not any(text.lower() in title.lower() for text in options.programs):
            continue
        pairs = [(form, OURS) for form in options.formats if not options.peers]
        if not options.ours:
            named = [(form, PEERS.get((program.framework, form))) for form in options.formats]
            pairs += [(form, peer) for form, peer in named if peer is not None]
        if options.failed:
            pairs = [p for p in pairs if (r := known.get((program.name, *p))) is None or not r.dynamic]
        if options.new:
            pairs = [p for p in pairs if (program.name, *p) not in known]
        wanted += [(program, *pair) for pair in pairs]
    while wanted:
        _run(wanted)
    PAGE.write_text(page(list(rows().values())))
    return 0


def _run(wanted: list[tuple[Program, str, str]]) -> None:
    """Record the rows that a process prints, and remove them from `wanted`; the next is a failure if it ends before."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    with FILE.with_suffix(".log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ecosystem.export.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=log, text=True, env=environment,
        )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        with process.stdin as file:
            file.write(json.dumps([(p.name, form, exporter) for p, form, exporter in wanted]))
        line: str | None = "first"
        while wanted and line:
            program, form, exporter = wanted[0]
            start = time.monotonic()
            line = process.stdout.readline() if select.select([process.stdout], [], [], TIMEOUT)[0] else None
            text = line or _failure(program, form, exporter, line is None, time.monotonic() - start)
            with FILE.open("a") as file:
                file.write(text)
            print(rows()[program.name, form, exporter], flush=True)
            del wanted[0]
    finally:
        process.kill()
        process.wait()


def _failure(program: Program, form: str, exporter: str, late: bool, seconds: float) -> str:
    reason = f"no end after {TIMEOUT:.0f} s" if late else "the process ended"
    row = Row(program.name, program.library, form, exporter, seconds=seconds, reason=reason)
    return f"{row.line()}\n"


if __name__ == "__main__":
    raise SystemExit(main())
