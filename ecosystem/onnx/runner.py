"""Run of ONNX's backend tests by their own runner."""

from __future__ import annotations

import re
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
        self.errors_of: dict[str, str] = {}

    def addSuccess(self, test: Any) -> None:
        self.passed.append(test.id().rpartition(".")[2])

    def _note(self, test: Any, error: Any) -> None:
        text = re.sub(r"\s+", " ", f"{error[0].__name__}: {error[1]}")
        notes = getattr(error[1], "__notes__", None)
        self.errors_of[test.id().rpartition(".")[2]] = (text[:240] + (f" [{notes[0]}]" if notes else ""))[:400]

    def addError(self, test: Any, error: Any) -> None:
        self._note(test, error)

    def addFailure(self, test: Any, error: Any) -> None:
        self._note(test, error)


def run(on: str, only: str) -> Result:
    """Run the tests whose names match on a backend."""
    result = Result()
    with warnings.catch_warnings():  # the tests' own computations divide by zero
        warnings.simplefilter("ignore")
        for name, kind in onnx.backend.test.runner.Runner(backend_on(on), __name__).test_cases.items():
            for method in dir(kind):
                if name != DOWNLOADED and re.search(only, method) and method.endswith("_cpu"):
                    kind(method).run(result)
    return result
