"""Test suites of other projects, as they publish them: which, where they come from, and how they run on a device.

`python -m ecosystem suites` runs them natively, then on backends what passed natively.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ecosystem import sources
from ecosystem.outcome import OUT, REASONS

HERE = Path(__file__).parent
UNCOMPILED = "what fails on the device where nothing is compiled, too"
_RSS = 1 if sys.platform == "darwin" else 1024  # bytes in the unit of `ru_maxrss`
ON = {"jax": 40, "numpy": 4}  # one test of so many: compiling for each is what takes the time on JAX


@dataclass(frozen=True)
class Suite:
    name: str
    version: str
    paths: tuple[str, ...]  # in the folder of its files
    source: sources.Source = sources.sdist
    package: str = ""  # where that is not its name
    judge: str = ""  # the module of `ecosystem.judges` that puts this library in its place; without, `tensorgraft run`
    on: Mapping[str, int] = field(default_factory=lambda: ON)  # backends, and one test of so many
    every: int = 1  # one test of so many, natively too
    select: str = ""  # a regular expression of the names of tests
    compiles: bool = False  # what it tries is compiled code: a test that fails on the device without is apart
    options: tuple[str, ...] = ()  # of pytest
    needs: tuple[str, ...] = ()  # packages beside those that are installed, without what they need themselves
    environment: dict[str, str] = field(default_factory=dict)  # {device}: what the suite is to use


def _files(pattern: str, names: str) -> tuple[str, ...]:
    return tuple(pattern.format(name) for name in names.split())


# Without the settings of the projects' own CI, and without files that need what is not here.
_ALONE = ("--noconftest", "-c", os.devnull, "--continue-on-collection-errors")
SUITES = {
    s.name: s
    for s in (
        Suite(
            "timm",
            "1.0.31",
            _files("tests/test_{}.py", "layers layers_pool layers_drop layers_pos_embed optim models utils prune"),
            # the smallest of each family: the others are more of the same layers
            select=r"test_(layers|optim|utils|prune)\w*\.py"
            r"|\[(\d+-)?(test_\w+|resnet10t|vit_tiny_patch16_224|levit_128s|ghostnet_050)(\]|-)",
            needs=("timm==1.0.31", "torchvision==0.28.0"),
            environment={"TORCH_DEVICE": "{device}"},
        ),
        Suite("gpytorch", "1.15.2", ("test",)),
        Suite("linear_operator", "0.6.1", ("test",)),
        Suite("torchmetrics", "1.9.0", ("functional",), sources.installed, options=("--doctest-modules",)),
        Suite(
            "torchao",
            "0.18.0",
            ("test",),
            sources.wheel,
            on={"jax": 1, "numpy": 1},
            every=4,
            options=_ALONE,
        ),
        Suite(
            "keras",
            "3.15.1",
            # of layers all but those of preprocessing, which need another reader of data
            (
                "src/ops",
                *_files(
                    "src/layers/{}",
                    "activations attention convolutional core merging normalization"
                    " pooling regularization reshaping rnn",
                ),
            ),
            sources.installed,
            on={"jax": 1, "numpy": 1},
            every=20,
            options=(*_ALONE, "-p", "ecosystem.judges.keras"),
            environment={"KERAS_BACKEND": "torch"},
        ),
        Suite(
            "pytorch",
            "2.6.0",
            _files(
                "test/test_{}.py",
                "autograd binary_ufuncs complex dlpack foreach indexing reductions scatter_gather_ops"
                " segment_reductions shape_ops sort_and_select spectral_ops tensor_creation_ops type_promotion"
                " unary_ufuncs view_ops",
            )
            + _files("test/nn/test_{}.py", "convolution dropout embedding pooling"),
            sources.debian,
            judge="pytorch",
            on={"jax": 1, "numpy": 1},
            every=40,
            select="CPU::",
            options=_ALONE,
        ),
        Suite(
            "torch_compile",
            "2.6.0",
            _files("test/dynamo/test_{}.py", "functions modules misc"),
            sources.debian,
            package="pytorch",
            judge="torch_compile",
            compiles=True,
            on={"jax": 1, "numpy": 3, "torch": 3},
            options=_ALONE,
        ),
        Suite(
            "jax",
            "0.10.2",
            _files(
                "tests/{}_test.py",
                "fft lax lax_numpy lax_numpy_einsum lax_numpy_indexing lax_numpy_operators lax_numpy_reducers"
                " lax_numpy_setops lax_numpy_ufuncs lax_scipy lax_scipy_special_functions linalg nn",
            ),
            sources.checkout,
            judge="jax",
            on={"torch": 1, "numpy": 1},
            every=20,
            options=_ALONE,
            environment={"JAX_NUM_GENERATED_CASES": "3"},
        ),
        Suite(
            "tf2jax",
            "0.3.8",
            _files("tf2jax/_src/{}_test.py", "linalg_ops ops"),
            sources.wheel,
            judge="tf2jax",
            on={"jax": 1},
            options=_ALONE,
            needs=("chex==0.1.92", "dm-tree==0.1.10", "toolz==1.2.0"),
        ),
    )
}


def folder(suite: Suite) -> Path:
    """Return where its tests are; they are fetched first. Raises `sources.Unavailable`."""
    home = suite.source(suite.package or suite.name, suite.version)
    if suite.needs and not _site(suite).is_dir():
        sources.pip("install", "--no-deps", "--target", str(_site(suite)), *suite.needs)
    return home


def _site(suite: Suite) -> Path:
    return sources.HOME / f"site-{suite.name}"


def run(
    suite: Suite,
    backend: str | None,
    ids: Path | None = None,
    every: int = 1,
    seconds: float = 1e9,
    name: str | None = None,
    offset: int = 0,
    select: str | None = None,
    plain: bool = False,
) -> Path:
    """Run its tests on `backend` (None: natively), those in the file `ids`, `plain`ly without what its judge puts in
    the place of something else; returns the file (`name`) with a line for
    each. Beside it lies what the process took (`.process.json`): its CPU seconds, and the most memory that it had."""
    home = folder(suite)
    device = "cpu" if backend is None else "cuda"
    out = OUT / f"suite-{suite.name}-{name or backend or 'native'}.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)
    ours: tuple[str, ...] = ()
    there: tuple[str, ...] = ("-p", f"ecosystem.judges.{suite.judge}") if suite.judge else ()
    if backend is not None and suite.judge:
        there += ("--suite-on", backend, "--suite-apart", suite.name, *(["--suite-plain"] if plain else []))
    elif backend is not None:
        ours = ("-c", "from tensorgraft.cli import main; main()", "run", "--on", backend)
        there = ("--suite-device", device)
    command = [
        *(sys.executable, "-W", "ignore", *ours, "-m", "pytest", "-q", "--no-header", "--tb=no"),
        *("-p", "no:cacheprovider", "-p", "ecosystem.plugin", *there, "-W", "ignore"),
        *("--suite-out", str(out), "--suite-every", str(every), "--suite-offset", str(offset)),
        *("--suite-seconds", str(seconds), "--suite-select", suite.select if select is None else select),
        *("--rootdir", str(home), *suite.options),
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
        command,
        cwd=OUT if suite.source is sources.installed else home,
        env={**os.environ, "PYTHONPATH": path, **environment},
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


def on_backend(suite: Suite, backend: str, every: int, seconds: float, offset: int = 0) -> Path:
    """What passes natively, on `backend`; then the same tests natively, for what both take in all: of judges, which are
    compared test by test, the first native run says enough."""
    native = OUT / f"suite-{suite.name}-native.jsonl"
    if not native.exists():
        run(suite, None, every=suite.every, offset=offset)
    ids = OUT / f"suite-{suite.name}-ids.txt"
    ids.write_text("\n".join(passed(native)))
    plainly: dict[str, dict[str, Any]] = {}
    if suite.compiles:
        plainly = read(run(suite, backend, ids, every, seconds, f"plain-{backend}", offset, plain=True))
        ids.write_text("\n".join(name for name, row in plainly.items() if row["outcome"] == "passed"))
    out = run(suite, backend, ids, every, seconds, offset=offset)
    with out.open("a") as file:
        for row in plainly.values():
            if row["outcome"] == "apart":
                file.write(json.dumps(row) + "\n")
            elif row["outcome"] == "failed":
                file.write(json.dumps({**row, "outcome": "apart", "message": UNCOMPILED}) + "\n")
    if not suite.judge:
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
    judge: bool = False
    kinds: dict[str, int] = field(default_factory=dict)  # of what failed: refused, wrong, crash
    apart: dict[str, int] = field(default_factory=dict)  # by the reason

    def __str__(self) -> str:
        return (
            f"{self.suite} on {self.backend}: {self.passed} of {self.run}; tests {self.seconds:.1f} s"
            f" ({self.native_seconds:.1f} s), process {self.whole:.1f} s ({self.native_whole:.1f} s),"
            f" memory {self.peak / 1e6:.0f} MB ({self.native_peak / 1e6:.0f} MB)"
        )


def explained(suite: Suite, rows: Mapping[str, Mapping[str, Any]]) -> tuple[Counter[str], dict[str, str]]:
    """Count the reasons of the tests that failed; return those without one, too, with their messages."""
    known = tomllib.loads(REASONS.read_text()).get(suite.name, {})
    reasons: Counter[str] = Counter()
    unexplained = {}
    for name, row in rows.items():
        if row["outcome"] == "failed":
            text = f"{name}\n{row['message']}"
            reason = next((r for pattern, r in known.items() if re.search(pattern, text)), None)
            if reason is None:
                unexplained[name] = row["message"]
            else:
                reasons[reason] += 1
    return reasons, unexplained


def result(suite: Suite, backend: str) -> Result:
    beside = "native" if suite.judge else f"beside-{backend}"
    every, native, ours = (read(OUT / f"suite-{suite.name}-{b}.jsonl") for b in ("native", beside, backend))
    there, here = (json.loads((OUT / f"suite-{suite.name}-{b}.process.json").read_text()) for b in (beside, backend))
    counted = {k: v for k, v in ours.items() if v["outcome"] not in ("skipped", "apart")}
    reasons, unexplained = explained(suite, counted)
    return Result(
        suite=f"{suite.name} {suite.version}",
        backend=backend,
        natively=sum(r["outcome"] == "passed" for r in every.values()),
        run=len(counted),
        passed=sum(r["outcome"] == "passed" for r in counted.values()),
        judge=bool(suite.judge),
        kinds=dict(Counter(r["kind"] for r in counted.values() if r["outcome"] == "failed")),
        apart=dict(Counter(r["message"] for r in ours.values() if r["outcome"] == "apart")),
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
