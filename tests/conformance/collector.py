"""Gathers the outcomes of the conformance cases from all processes: a table, and a JSON file of a large run."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.conformance import page, ran

OFTEN = 200  # cases after which a run writes what it has found: one that is ended leaves that
RESULTS = Path(__file__).parents[2] / "out" / "conformance"


class Collector:
    def __init__(self, config: pytest.Config) -> None:
        self.kept = config.getoption("--conformance") == "full" or config.getoption("--of-thousand") is not None
        self.found: dict[str, ran.Results] = defaultdict(dict)
        self.seen = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Each case leaves one outcome: that of its call, or of what kept it from being called."""
        for name, value in report.user_properties:
            if name == "conformance" and (report.when == "call" or report.failed):
                backend, key, fell = value
                outcome = "xfailed" if hasattr(report, "wasxfail") and report.skipped else report.outcome
                crash = getattr(report.longrepr, "reprcrash", None)
                message = crash.message if report.failed and crash is not None else ""
                self.found[backend][key] = {"outcome": outcome, "fallbacks": fell, "message": message[:400]}
                self.seen += 1
                if self.kept and self.seen % OFTEN == 0:
                    self.keep()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for backend, results in sorted(self.found.items()):
            terminalreporter.section(f"conformance on {backend}")
            terminalreporter.write_line(page.table(results))
        if self.kept:
            self.keep()

    def keep(self) -> None:
        """Outcomes take the place of those of runs before, which may have been of other backends or cases."""
        RESULTS.mkdir(parents=True, exist_ok=True)
        for backend, results in self.found.items():
            path = RESULTS / f"{backend}.json"
            before = json.loads(path.read_text()) if path.exists() else {}
            path.write_text(json.dumps(before | results, indent=0, sort_keys=True))
