"""ONNX's own backend tests, by its runner: all of them on NumPy, a sample on the others."""

from __future__ import annotations

import pytest
from ecosystem.onnx.reasons import DRAWN, reason
from ecosystem.onnx.runner import run

SAMPLE = r"[aeimquy]_cpu$|_(cast|loop|if|scan|sequence|quantize|attention|lstm|conv)"


@pytest.mark.parametrize("on", ["numpy", "jax", "torch", "tensorflow"])
def test_onnx_backend_tests(on: str) -> None:
    result = run(on, "" if on == "numpy" else SAMPLE)
    unexplained = {name: error for name, error in result.errors_of.items() if reason(name, on) is None}
    assert not unexplained
    assert len(result.passed) > (2000 if on == "numpy" else 700)
    passing = [name for name in result.passed if reason(name, on) and reason(name, on) != DRAWN]
    assert not passing, "these pass: take them out of the reasons"
