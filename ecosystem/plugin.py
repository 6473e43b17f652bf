"""A pytest plugin (`-p ecosystem.plugin`): a suite that was not written for it runs on a device, sampled and timed.

With `--suite-device cuda` under `tensorgraft run` a program sees a machine with CUDA; tests that name no device are
given it as the default one. Each test begins with the same random states, and leaves a line in `--suite-out`. The
plugins in `ecosystem.judges` put the backend of `--suite-on` in other places.
"""

from __future__ import annotations

import doctest
import hashlib
import inspect
import json
import random
import re
import signal
import sys
import time
import tomllib
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from ecosystem.outcome import REASONS

# Files that assert in a test's name: an AssertionError from elsewhere is a library's own.
_TESTERS = re.compile(
    r"/(unittest|testing|numpy/testing|_pytest|absl/testing|ecosystem/judges)/|/test_\w+\.py$|_test\.py$|/test_util\.py$"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("suite", "other people's tests on a device")
    group.addoption("--suite-out", type=Path, help="a line of JSON for each test is added to this file")
    group.addoption("--suite-device", help="the default device of tensors")
    group.addoption("--suite-on", help="the backend of what one of `ecosystem.judges` puts in its place")
    group.addoption("--suite-plain", action="store_true", help="nothing in its place: whether a device is to blame")
    group.addoption("--suite-apart", help="the suite whose tests that are [apart] in reasons.toml are not run")
    group.addoption("--suite-ids", type=Path, help="only the tests with the names in this file")
    group.addoption("--suite-select", default="", help="only the tests whose names match")
    group.addoption("--suite-every", type=int, default=1, help="one test of so many, by a hash of its name")
    group.addoption("--suite-offset", type=int, default=0, help="which of so many")
    group.addoption("--suite-limit", type=float, default=300, help="seconds for one test")
    group.addoption("--suite-seconds", type=float, default=1e9, help="after which no test is begun")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--suite-out"):
        config.pluginmanager.register(Suite(config))
        doctest.OutputChecker = _AnyDevice  # type: ignore[misc]


def plain(name: str) -> str:
    """The name of a test whatever device stands in its parameters, or in the names that PyTorch's tools make."""
    start, bracket, parameters = name.partition("[")
    start = re.sub(r"(GRAFT|PRIVATEUSE1)(?=::)", "CPU", start)
    start = re.sub(r"_(graft|privateuse1)(?=_|$)", "_cpu", start)
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
        apart: dict[str, dict[str, str]] = tomllib.loads(REASONS.read_text())["apart"]
        self.apart = apart.get(self.option("--suite-apart") or "", {})
        self._default()  # modules of tests make tensors when they are imported

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        ids, every = self.option("--suite-ids"), self.option("--suite-every")
        chosen = set(ids.read_text().splitlines()) if ids else None

        def wanted(name: str) -> bool:
            number = int(hashlib.sha256(name.encode()).hexdigest(), 16)
            of_sample = number % every == self.option("--suite-offset") % every
            return of_sample and (chosen is None or name in chosen) and re.search(select, name) is not None

        select = self.option("--suite-select")
        items[:] = [i for i in items if wanted(plain(i.nodeid)) and not self._is_apart(i)]
        # in an order that does not depend on files, so that what a time limit leaves is a sample, too
        items.sort(key=lambda i: hashlib.sha256(plain(i.nodeid).encode()).hexdigest()[::-1])

    def _is_apart(self, item: pytest.Item) -> bool:
        """Leave a line for a test whose name or source says that it tries something else, with the reason."""
        function = getattr(item, "function", None)
        if not self.apart or function is None:
            return False
        text = f"{plain(item.nodeid)}\n{inspect.getsource(function)}"
        reason = next((reason for pattern, reason in self.apart.items() if re.search(pattern, text)), None)
        if reason is not None:
            self._write({"id": plain(item.nodeid), "outcome": "apart", "message": reason})
        return reason is not None

    def _write(self, row: dict[str, Any]) -> None:
        with self.out.open("a") as file:
            file.write(json.dumps({"seconds": 0.0, "fallbacks": [], **row}) + "\n")

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
                self._write(row)

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

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report = yield
        report.kind = _kind(call.excinfo) if report.failed and call.excinfo is not None else ""
        return report

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
            self.calls[report.nodeid] = {**row, "kind": getattr(report, "kind", ""), "message": message[:2000]}


def _kind(error: pytest.ExceptionInfo[BaseException]) -> str:
    """Tell how a test failed: `refused` with words of this library, `wrong` by what it asserts, or a `crash`."""
    if type(error.value).__module__.startswith("tensorgraft"):
        return "refused"
    last = str(error.traceback[-1].path)
    return "wrong" if isinstance(error.value, AssertionError) and _TESTERS.search(last) else "crash"


def _fallbacks() -> dict[str, int]:
    """Operators that ran on the CPU for want of a kernel, where this library is at work at all."""
    front = sys.modules.get("tensorgraft.frontends.torch")
    return dict(front.fallbacks()) if front is not None else {}
