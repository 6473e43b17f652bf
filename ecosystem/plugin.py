"""A pytest plugin (`-p ecosystem.plugin`): a suite that was not written for it runs on a device, sampled and timed.

With `--suite-device cuda` under `tensorgraft run` a program sees a machine with CUDA; tests that name no device are
given it as the default one. Each test begins with the same random states, and leaves a line in `--suite-out`.
"""

from __future__ import annotations

import doctest
import hashlib
import json
import random
import re
import signal
import sys
import time
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("suite", "other people's tests on a device")
    group.addoption("--suite-out", type=Path, help="a line of JSON for each test is added to this file")
    group.addoption("--suite-device", help="the default device of tensors")
    group.addoption("--suite-ids", type=Path, help="only the tests with the names in this file")
    group.addoption("--suite-select", default="", help="only the tests whose names match")
    group.addoption("--suite-every", type=int, default=1, help="one test of so many, by a hash of its name")
    group.addoption("--suite-limit", type=float, default=300, help="seconds for one test")
    group.addoption("--suite-seconds", type=float, default=1e9, help="after which no test is begun")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--suite-out"):
        config.pluginmanager.register(Suite(config))
        doctest.OutputChecker = _AnyDevice  # type: ignore[misc]


def plain(name: str) -> str:
    """The name of a test whatever device stands in its parameters."""
    start, bracket, parameters = name.partition("[")
    return start + bracket + re.sub(r"\b(graft|cuda)(:0)?\b", "cpu", parameters)


class _AnyDevice(doctest.OutputChecker):
    """What a doctest prints may name the device, and break its lines elsewhere for it."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        def bare(text: str) -> str:
            return re.sub(r"\s+", "", re.sub(r",\s*device='[a-z]+(:\d+)?'", "", text))

        return super().check_output(want, got, optionflags) or super().check_output(bare(want), bare(got), optionflags)


class TooLong(Exception):
    """A test has used up its time."""


class Suite:
    def __init__(self, config: pytest.Config) -> None:
        self.option = config.getoption
        self.out: Path = self.option("--suite-out")
        self.begun = time.monotonic()
        self.calls: dict[str, dict[str, Any]] = {}
        self._default()  # modules of tests make tensors when they are imported

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        ids, every = self.option("--suite-ids"), self.option("--suite-every")
        chosen = set(ids.read_text().splitlines()) if ids else None

        def wanted(name: str) -> bool:
            number = int(hashlib.sha256(name.encode()).hexdigest(), 16)
            return number % every == 0 and (chosen is None or name in chosen)

        items[:] = [i for i in items if re.search(self.option("--suite-select"), i.nodeid) and wanted(plain(i.nodeid))]
        # in an order that does not depend on files, so that what a time limit leaves is a sample, too
        items.sort(key=lambda i: hashlib.sha256(plain(i.nodeid).encode()).hexdigest()[::-1])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if time.monotonic() - self.begun > self.option("--suite-seconds"):
            pytest.exit("the time for this suite is over", returncode=0)
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(0)
        self._default()
        start, fell = time.process_time(), _fallbacks()
        try:
            return (yield)
        finally:
            self._default()
            row = self.calls.pop(item.nodeid, None)
            if row is not None:
                row["seconds"] = round(time.process_time() - start, 3)
                row["fallbacks"] = sorted(k for k, v in _fallbacks().items() if v != fell.get(k, 0))
                with self.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")

    def _default(self) -> None:
        if self.option("--suite-device"):
            torch.set_default_device(self.option("--suite-device"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        limit = self.option("--suite-limit")

        def over(signum: int, frame: FrameType | None) -> None:
            raise TooLong(f"more than {limit:g} s")

        before = signal.signal(signal.SIGALRM, over)
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def pytest_sessionfinish(self) -> None:
        """The most memory of this process; `ru_maxrss` begins with that of the process that started it."""
        status = Path("/proc/self/status")
        if status.exists():
            kilobytes = int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1])  # type: ignore[index]
            self.out.with_suffix(".peak").write_text(str(kilobytes * 1024))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        message = "" if report.outcome == "passed" else str(crash.message if crash else report.longrepr)
        row = {"id": plain(report.nodeid), "outcome": "xfailed" if hasattr(report, "wasxfail") else report.outcome}
        before = self.calls.get(report.nodeid)
        if before is None or before["outcome"] == "passed":
            self.calls[report.nodeid] = {**row, "message": message[:2000]}


def _fallbacks() -> dict[str, int]:
    """Operators that ran on the CPU for want of a kernel, where this library is at work at all."""
    front = sys.modules.get("tensorgraft.frontends.torch")
    return dict(front.fallbacks()) if front is not None else {}
