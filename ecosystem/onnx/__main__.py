"""Run ONNX's backend tests, and print how many pass, and why the others do not."""

from __future__ import annotations

import argparse
import collections
import re
import time
import unittest
import warnings
from typing import Any

import onnx.backend.test

from ecosystem.onnx.backend import backend_on

DOWNLOADED = "OnnxBackendRealModelTest"  # their models are not in the package


class Result(unittest.TestResult):
    """Keeps the last line of each error."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: list[str] = []
        self.reasons: dict[str, str] = {}

    def addSuccess(self, test: Any) -> None:  # noqa: N802
        self.passed.append(test.id().rpartition(".")[2])

    def _note(self, test: Any, error: Any) -> None:
        text = re.sub(r"\s+", " ", f"{error[0].__name__}: {error[1]}")
        notes = getattr(error[1], "__notes__", None)
        self.reasons[test.id().rpartition(".")[2]] = (text[:240] + (f" [{notes[0]}]" if notes else ""))[:400]

    def addError(self, test: Any, error: Any) -> None:  # noqa: N802
        self._note(test, error)

    def addFailure(self, test: Any, error: Any) -> None:  # noqa: N802
        self._note(test, error)


def run(on: str, only: str) -> Result:
    """Run the tests whose names match on a backend."""
    runner = onnx.backend.test.runner.Runner(backend_on(on), __name__)
    result = Result()
    for name, kind in runner.test_cases.items():
        if name == DOWNLOADED:
            continue
        for method in dir(kind):
            if method.startswith("test_") and method.endswith("_cpu") and re.search(only, method):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    kind(method).run(result)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", nargs="*", default=["numpy", "jax", "torch", "tensorflow"])
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--reasons", action="store_true", help="print each failure with its reason")
    args = parser.parse_args()
    for on in args.on:
        start = time.process_time()
        result = run(on, args.only)
        total = len(result.passed) + len(result.reasons)
        rate = 100 * len(result.passed) / max(total, 1)
        print(f"{on}: {len(result.passed)} of {total} ({rate:.1f} %), {len(result.skipped)} skipped, "
              f"{time.process_time() - start:.0f} s")  # fmt: skip
        if args.reasons:
            for name, reason in sorted(result.reasons.items()):
                print(f"  {name}: {reason}")
        for text, n in collections.Counter(r.split(":")[0] for r in result.reasons.values()).most_common(5):
            print(f"  {n} {text}")


main()
