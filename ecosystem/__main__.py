"""`python -m ecosystem programs`, `suites`, `page`; `make ecosystem` does all three."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from ecosystem import functions, scripts, suites
from ecosystem.outcome import OUT, Outcome, write
from ecosystem.page import PAGE, page
from ecosystem.sources import Unavailable

ONTO = {
    "torch": ("jax", "numpy"),
    "jax": ("torch", "tensorflow", "numpy"),
    "arrays": ("jax", "torch", "tensorflow", "numpy"),
}


def programs(areas: list[str], on: list[str] | None, only: str) -> int:
    failed = 0
    for area in areas:
        for backend in on or ONTO[area]:
            if backend in ONTO[area]:
                outcomes = list(_reported(_outcomes(area, backend, only)))
                failed += sum(not o.passed for o in outcomes)
                write(outcomes, OUT / f"programs-{area}-{backend}.jsonl")
    return failed


def _outcomes(area: str, backend: str, only: str) -> Iterator[Outcome]:
    if area == "torch":
        yield from (scripts.run(name, backend) for name in scripts.names() if only in name)
    else:
        for name in functions.names(area):
            if only in name:
                yield from functions.run(area, name, backend)


def _reported(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    for outcome in outcomes:
        print(outcome, flush=True)
        yield outcome


def run_suites(names: list[str], on: list[str] | None, every: int | None, seconds: float, offset: int) -> int:
    failed = 0
    for name in names:
        suite = suites.SUITES[name]
        for backend in on or suite.on:
            try:
                suites.on_backend(suite, backend, every or suite.every * suite.on.get(backend, 1), seconds, offset)
            except Unavailable as error:
                print(f"skipped {name} on {backend}: {error}")
                continue
            result = suites.result(suite, backend)
            (OUT / f"result-{name}-{backend}.json").write_text(json.dumps(asdict(result), default=sorted))
            print(result)
            for test, message in result.unexplained.items():
                print(f"  FAILED {test}: {message.splitlines()[0] if message else ''}")
            failed += len(result.unexplained)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="ecosystem", description=__doc__)
    parser.add_argument("what", choices=["programs", "suites", "page", "all"])
    parser.add_argument("--areas", nargs="+", choices=ONTO, default=list(ONTO))
    parser.add_argument("--suites", nargs="+", choices=suites.SUITES, default=list(suites.SUITES))
    parser.add_argument("--on", nargs="+", help="backends; by default those that the page shows")
    parser.add_argument("--only", default="", help="programs whose names contain this")
    parser.add_argument("--every", type=int, help="one test of so many")
    parser.add_argument("--offset", type=int, default=0, help="which of so many")
    parser.add_argument("--seconds", type=float, default=1e9, help="for each suite on each backend")
    args = parser.parse_args()
    failed = 0
    if args.what in ("programs", "all"):
        failed += programs(args.areas, args.on, args.only)
    if args.what in ("suites", "all"):
        failed += run_suites(args.suites, args.on, args.every, args.seconds, args.offset)
    if args.what in ("page", "all"):
        PAGE.write_text(page())
        print(f"wrote {PAGE}")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
