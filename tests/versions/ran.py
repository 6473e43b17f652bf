"""What cells came to, in `ran.json`: the page is made of it, and runs of some cells leave the others."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

from tests.versions.cells import Cell, cells

# About a minute of CPU time: what touches the private parts of frameworks, and some of everything else.
SAMPLE = [
    "tests/conformance", "--of-thousand=1", "--backends=jax,numpy",
    "tests/precision/test_tables.py",
    "tests/frontends/torch/device/test_patches.py::test_names",
    "tests/frontends/torch/device/test_patches.py::test_applied",
    "tests/frontends/torch/compiled/test_jit.py::test_an_optimizer_of_ones_own",
    "tests/frontends/torch/compiled/test_jit.py::test_random_numbers_advance_and_equal_eager_ones",
    "tests/frontends/torch/compiled/test_jit.py::test_gradients_accumulate",
    "tests/frontends/torch/compiled/test_jit.py::test_a_value_that_is_asked_for_is_an_error_and_nothing_changes",
    "tests/frontends/torch/compiled/test_jit.py::test_memory_exported_by_dlpack_is_not_donated",
    "tests/frontends/torch/dispatch/test_views.py::test_autograd_through_views_and_writes",
    "tests/frontends/torch/dispatch/test_autograd.py",
    "tests/frontends/torch/kernels/test_attention.py",
    "tests/frontends/torch/device/test_cuda_names.py",
    "tests/frontends/torch/dispatch/test_coverage.py",
    "tests/frontends/torch/graph/test_dynamo.py::test_models_on_the_device",
    "tests/frontends/jax/test_values.py",
    "tests/frontends/tensorflow/test_rules.py",
    "tests/frontends/array_api/test_operators.py",
]  # fmt: skip
FILE = Path(__file__).parent / "ran.json"
Outcome = dict[str, Any]  # python, installed | pins and reason, passed, skipped, failed, seconds, on


def sample(cell: Cell) -> list[str]:
    """Return the tests of the sample whose frameworks a cell has."""
    return [test for test in SAMPLE if "tensorflow" in cell.extras or "frontends/tensorflow" not in test]


def read(report: Path) -> Outcome:
    """What pytest's JUnit report says."""
    counts, failed = Counter[str](), []
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    for case in suite.iter("testcase"):
        problem = next((found for tag in ("failure", "error") if (found := case.find(tag)) is not None), None)
        if problem is not None:
            failed.append(f"{case.get('classname')}::{case.get('name')}: {problem.get('message', '')[:200]}")
        counts["skipped" if case.find("skipped") is not None else "passed"] += problem is None
    return {**counts, "failed": failed, "seconds": round(float(suite.get("time", 0)))}


def kept() -> dict[str, Outcome]:
    """By cell, those that there are."""
    outcomes = json.loads(FILE.read_text()) if FILE.exists() else {}
    return {cell.name: outcomes[cell.name] for cell in cells() if cell.name in outcomes}


def keep(name: str, outcome: Outcome) -> None:
    FILE.write_text(json.dumps({**kept(), name: {**outcome, "on": f"{date.today()}"}}, indent=1) + "\n")
