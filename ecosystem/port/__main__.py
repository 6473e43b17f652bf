"""`python -m ecosystem.port [--only TEXT] [--pairs] [--planted] [--time]`: judge what `tg.port` and `tg.diff` find."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ecosystem.outcome import OUT
from ecosystem.port.judge import PairOutcome, PlantedOutcome, judge_pair, judge_planted
from ecosystem.port.page import PAGE, page
from ecosystem.port.pairs import BERT_BASE, PAIRS
from ecosystem.port.planted import planted, unplanted

PAIRS_FILE, PLANTED_FILE = OUT / "port-pairs.json", OUT / "port-planted.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ecosystem.port", description=__doc__)
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--pairs", action="store_true", help="the pairs alone")
    parser.add_argument("--planted", action="store_true", help="the planted differences alone")
    parser.add_argument("--time", action="store_true", help="BERT of the base size alone, for its time")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    pairs = {o["name"]: PairOutcome(**o) for o in _read(PAIRS_FILE)}
    found = {(o["network"], o["change"]): PlantedOutcome(**o) for o in _read(PLANTED_FILE)}
    failed = 0
    if not options.planted:
        for pair in [BERT_BASE] if options.time else [*PAIRS, BERT_BASE]:
            if options.only in pair.name:
                pairs[pair.name] = outcome = judge_pair(pair)
                failed += not outcome.passed
                _say(outcome.passed, outcome.name, outcome)
                PAIRS_FILE.write_text(json.dumps([asdict(o) for o in pairs.values()], indent=1))
    if not (options.pairs or options.time):
        rows = [*planted(), *((network, change, "") for network, change in unplanted())]
        for network, change, reason in rows:
            if options.only in f"{network.name}, {change}":
                found[network.name, change] = row = judge_planted(network, change, reason)
                failed += not row.passed
                _say(row.passed, f"{network.name}, {change or 'as it is'}", row)
                PLANTED_FILE.write_text(json.dumps([asdict(o) for o in found.values()], indent=1))
    if pairs and found:
        PAGE.write_text(page(list(pairs.values()), list(found.values())))
    else:  # one part of it would be empty
        print(f"{PAGE} is left as it is: it has pairs and planted differences, of which one kind has not been run here")
    return 1 if failed else 0


def _read(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text()) if path.exists() else []


def _say(passed: bool, name: str, outcome: PairOutcome | PlantedOutcome) -> None:
    details = {key: value for key, value in asdict(outcome).items() if value not in ("", [], None, name)}
    print("ok  " if passed else "NOT ", name, "" if passed else details, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
