"""`tensorgraft run-model`, and ONNX files as programs of the other commands."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from tests.frontends.onnx.models import perceptron


@pytest.fixture
def path(tmp_path):
    onnx.save(perceptron(), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_a_file_is_run_and_its_results_are_written(tensorgraft, path, tmp_path):
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    outputs = []
    for on in ("numpy", "torch"):
        done = tensorgraft("run-model", path, "--on", on, "--input", "x.npy", "--out", f"{on}.npz")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("result: float32(4, 2) [")
        outputs.append(np.load(tmp_path / f"{on}.npz")["result"])
    np.testing.assert_allclose(*outputs, rtol=1e-5, atol=1e-6)
    assert tensorgraft("run-model", path, "--on", "numpy", "--input", "x=2x3").returncode == 0


def test_what_does_not_fit_is_named(tensorgraft, path):
    for arguments, status, text in (
        (("--input", "x=2x4"), 1, "has shape (2, 4)"),
        (("--input", "y=2x3"), 1, "'y' that it does not have"),
        ((), 2, "no inputs"),
        (("--input", "none.npy"), 2, "none.npy"),
    ):
        done = tensorgraft("run-model", path, "--on", "numpy", *arguments)
        assert done.returncode == status
        assert text in done.stderr
    assert "missing.onnx" in tensorgraft("run-model", "missing.onnx", "--on", "numpy", "--input", "1x3").stderr
