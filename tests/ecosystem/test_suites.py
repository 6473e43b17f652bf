"""A sample of the test suites of `make ecosystem`, and what its plugin makes of tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ecosystem import suites
from ecosystem.compare import Differs, apart


@pytest.mark.slow
def test_doctests_of_torchmetrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchmetrics")
    monkeypatch.setattr(suites, "OUT", tmp_path)
    suite = suites.SUITES["torchmetrics"]
    native = list(suites.passed(suites.run(suite, None, every=12)))
    (tmp_path / "ids.txt").write_text("\n".join(native))
    for end in (".jsonl", ".process.json"):  # they are the same tests
        shutil.copy(tmp_path / f"suite-torchmetrics-native{end}", tmp_path / f"suite-torchmetrics-beside-numpy{end}")
    suites.run(suite, "numpy", tmp_path / "ids.txt")
    result = suites.result(suite, "numpy")
    assert result.run == len(native) >= 8
    assert not result.unexplained and not result.fallbacks
    assert result.whole > result.seconds and result.native_whole > result.native_seconds
    assert 1e8 < result.native_peak < result.peak < 1e10


def test_plugin(tmp_path: Path) -> None:
    """Names without devices, failures with their messages, time limits, expected failures."""
    (tmp_path / "test_it.py").write_text("""
import time
import pytest

@pytest.mark.parametrize("device", ["cuda"])
def test_passes(device): pass

def test_fails(): assert 1 == 2, "one is two"

def test_sleeps(): time.sleep(20)

@pytest.mark.xfail
def test_expected(): assert False

@pytest.fixture
def broken(): raise ValueError("no fixture")

def test_broken(broken): pass
""")
    out = tmp_path / "out.jsonl"
    plugin = ["-p", "ecosystem.plugin", "--suite-out", str(out), "--suite-limit", "0.5", "-p", "no:cacheprovider"]
    root = Path(suites.__file__).parents[1]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", *plugin, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True,
    )  # fmt: skip
    rows = {row["id"].partition("::")[2]: row for row in map(json.loads, out.read_text().splitlines())}
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "test_passes[cpu]": "passed",
        "test_fails": "failed",
        "test_sleeps": "failed",
        "test_expected": "xfailed",
        "test_broken": "failed",
    }
    assert "one is two" in rows["test_fails"]["message"] and "0.5 s" in rows["test_sleeps"]["message"]


def test_apart() -> None:
    assert apart({"a": [1.0, 2.0]}, {"a": [1.0, 2.0]}) == 0
    assert apart([4.0, 1.0], [4.0, 1.0004]) == pytest.approx(4e-4)
    for other in ([1.0], [1.0, 2], [1.0, "x"], [1.0, float("nan")]):
        with pytest.raises(Differs):
            apart([1.0, 2.0], other)
