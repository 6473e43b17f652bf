"""Test suites of other projects, as they publish them: which, where they come from, and how they run on a device.

`python -m ecosystem suites` runs them natively, then on backends what passed natively.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ecosystem.outcome import OUT

HERE = Path(__file__).parent
_RSS = 1 if sys.platform == "darwin" else 1024  # bytes in the unit of `ru_maxrss`
REASONS = HERE / "reasons.toml"  # [suite] "regular expression of id or message" = "reason"


@dataclass(frozen=True)
class Suite:
    name: str
    version: str
    paths: tuple[str, ...]  # in the source distribution, or in the installed package
    sdist: bool = True
    select: str = ""  # a regular expression of the names of tests
    options: tuple[str, ...] = ()  # of pytest
    needs: tuple[str, ...] = ()  # packages beside those that are installed, without what they need themselves
    environment: dict[str, str] = field(default_factory=dict)  # {device}: what the suite is to use


SUITES = {
    s.name: s
    for s in (
        Suite(
            "timm",
            "1.0.31",
            tuple(f"tests/test_{t}.py" for t in
                  ("layers", "layers_pool", "layers_drop", "layers_pos_embed", "optim", "models", "utils", "prune")),
            # the smallest of each family: the others are more of the same layers
            select=r"test_(layers|optim|utils|prune)\w*\.py"
            r"|\[(\d+-)?(test_\w+|resnet10t|vit_tiny_patch16_224|levit_128s|ghostnet_050)(\]|-)",
            needs=("timm==1.0.31", "torchvision==0.28.0"),
            environment={"TORCH_DEVICE": "{device}"},
        ),
        Suite("gpytorch", "1.15.2", ("test",)),
        Suite("linear_operator", "0.6.1", ("test",)),
        Suite("torchmetrics", "1.9.0", ("functional",), sdist=False, options=("--doctest-modules",)),
    )
}  # fmt: skip


def folder(suite: Suite) -> Path:
    """Where its tests are; a source distribution is fetched first."""
    if not suite.sdist:
        spec = find_spec(suite.name)
        assert spec is not None and spec.origin is not None, f"{suite.name} is not installed"
        return Path(spec.origin).parent
    home = OUT / "suites"
    target = home / f"{suite.name}-{suite.version}"
    if not target.is_dir():
        home.mkdir(parents=True, exist_ok=True)
        _pip("download", "--no-deps", "--no-binary", ":all:", "-d", str(home), f"{suite.name}=={suite.version}")
        with tarfile.open(target.with_name(target.name + ".tar.gz")) as archive:
            archive.extractall(home, filter="data")
    if suite.needs and not _site(suite).is_dir():
        _pip("install", "--no-deps", "--target", str(_site(suite)), *suite.needs)
    return target


def _site(suite: Suite) -> Path:
    return OUT / "suites" / f"site-{suite.name}"


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)


def run(
    suite: Suite,
    backend: str | None,
    ids: Path | None = None,
    every: int = 1,
    seconds: float = 1e9,
    name: str | None = None,
) -> Path:
    """Run its tests on `backend` (None: natively), those in the file `ids`; returns the file (`name`) with a line for
    each. Beside it lies what the process took (`.process.json`): its CPU seconds, and the most memory that it had."""
    home = folder(suite)
    device = "cpu" if backend is None else "cuda"
    out = OUT / f"suite-{suite.name}-{name or backend or 'native'}.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)
    ours = () if backend is None else ("-c", "from tensorgraft.cli import main; main()", "run", "--on", backend)
    command = [
        *(sys.executable, "-W", "ignore", *ours, "-m", "pytest", "-q", "--no-header", "--tb=no"),
        *("-p", "no:cacheprovider", "-p", "ecosystem.plugin", "-W", "ignore"),
        *("--suite-out", str(out), "--suite-every", str(every)),
        *("--suite-seconds", str(seconds), "--suite-select", suite.select, "--rootdir", str(home), *suite.options),
        *(() if backend is None else ("--suite-device", device)),
        *(() if ids is None else ("--suite-ids", str(ids))),
        *(str(home / p) for p in suite.paths),
    ]  # fmt: skip
    path = os.pathsep.join(map(str, (HERE / "site", HERE.parent, HERE.parent / "src", _site(suite))))
    environment = {k: v.format(device=device) for k, v in suite.environment.items()}
    whole = out.with_suffix(".process.json")
    peak = out.with_suffix(".peak")  # of the process itself, where the system says it
    whole.unlink(missing_ok=True)
    peak.unlink(missing_ok=True)
    process = subprocess.Popen(
        command, cwd=home if suite.sdist else OUT, env={**os.environ, "PYTHONPATH": path, **environment}
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    most = int(peak.read_text()) if peak.exists() else used.ru_maxrss * _RSS
    whole.write_text(json.dumps({"seconds": used.ru_utime + used.ru_stime, "peak": most}))
    return out


def read(path: Path) -> dict[str, dict[str, Any]]:
    with path.open() as file:
        return {row["id"]: row for row in map(json.loads, file)}


def passed(path: Path) -> Iterator[str]:
    """The names of the tests that passed."""
    return (name for name, row in read(path).items() if row["outcome"] == "passed")


def on_backend(suite: Suite, backend: str, every: int, seconds: float) -> Path:
    """What passes natively, on `backend`; then the same tests natively, for what both take."""
    native = OUT / f"suite-{suite.name}-native.jsonl"
    if not native.exists():
        run(suite, None)
    ids = OUT / f"suite-{suite.name}-ids.txt"
    ids.write_text("\n".join(passed(native)))
    out = run(suite, backend, ids, every, seconds)
    ids.write_text("\n".join(read(out)))
    run(suite, None, ids, name=f"beside-{backend}")
    return out


@dataclass
class Result:
    """How a suite did on a backend, of the tests that pass natively."""

    suite: str
    backend: str
    natively: int
    run: int
    passed: int
    seconds: float  # CPU, of the tests
    native_seconds: float
    whole: float  # CPU, of the process: start-up, imports and collection included
    native_whole: float
    peak: int  # bytes, the most that the process had
    native_peak: int
    reasons: dict[str, int]
    unexplained: dict[str, str]  # name -> message
    fallbacks: set[str]

    def __str__(self) -> str:
        return (
            f"{self.suite} on {self.backend}: {self.passed} of {self.run}; tests {self.seconds:.1f} s"
            f" ({self.native_seconds:.1f} s), process {self.whole:.1f} s ({self.native_whole:.1f} s),"
            f" memory {self.peak / 1e6:.0f} MB ({self.native_peak / 1e6:.0f} MB)"
        )


def result(suite: Suite, backend: str) -> Result:
    beside = f"beside-{backend}"
    every, native, ours = (read(OUT / f"suite-{suite.name}-{b}.jsonl") for b in ("native", beside, backend))
    there, here = (json.loads((OUT / f"suite-{suite.name}-{b}.process.json").read_text()) for b in (beside, backend))
    known = tomllib.loads(REASONS.read_text()).get(suite.name, {})
    reasons: Counter[str] = Counter()
    unexplained = {}
    counted = {k: v for k, v in ours.items() if v["outcome"] != "skipped"}
    for name, row in counted.items():
        if row["outcome"] == "failed":
            text = f"{name}\n{row['message']}"
            reason = next((r for pattern, r in known.items() if re.search(pattern, text)), None)
            if reason is None:
                unexplained[name] = row["message"]
            else:
                reasons[reason] += 1
    return Result(
        suite=f"{suite.name} {suite.version}",
        backend=backend,
        natively=sum(r["outcome"] == "passed" for r in every.values()),
        run=len(counted),
        passed=sum(r["outcome"] == "passed" for r in counted.values()),
        seconds=sum(r["seconds"] for r in counted.values()),
        native_seconds=sum(native[k]["seconds"] for k in counted),
        whole=here["seconds"],
        native_whole=there["seconds"],
        peak=here["peak"],
        native_peak=there["peak"],
        reasons=dict(reasons),  # `asdict` takes a Counter for pairs
        unexplained=unexplained,
        fallbacks={f for r in counted.values() for f in r["fallbacks"]},
    )
