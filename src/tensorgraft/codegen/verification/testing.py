"""A test for a generated file, which needs neither tensorgraft nor the source framework."""

from __future__ import annotations

from tensorgraft.codegen.verification.runners import script

_TEST = '''
"""Check MODEL.py against its original: results at several sizes, and gradients, as recorded when it was written."""

import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
FORWARD, GRADIENT = FORWARD_LIMIT, GRADIENT_LIMIT  # relative to the largest entry of an array


def test_model(tmp_path):
    data = np.load(HERE / "MODEL_check.npz")
    examples = {key: data[key] for key in data}
    numbers = sorted({key.split("/")[0] for key in examples})
    for k in numbers:
        inputs = {n[len(k) + 1 :]: x for n, x in examples.items() if n.startswith(f"{k}/") and ":" not in n}
        np.savez(tmp_path / f"inputs_{k}.npz", **inputs)
    if IS_WIDE:
        (tmp_path / "wide").touch()
    model, weights = HERE / "MODEL.py", HERE / "MODEL.safetensors"
    subprocess.run([sys.executable, "-c", RUNNER, model, weights, "FUNCTION", tmp_path], check=True)
    for k in numbers:
        found = np.load(tmp_path / f"outputs_{k}.npz")
        wanted = {n[len(k) + 1 :]: x for n, x in examples.items() if n.startswith((f"{k}/o:", f"{k}/g:"))}
        top = max((np.abs(w).max(initial=0) for n, w in wanted.items() if n[0] == "g"), default=0)
        for name, w in wanted.items():
            f = found[name]
            assert f.shape == w.shape, name
            if w.dtype.kind in "biu":
                assert np.array_equal(f, w), name
                continue
            size = max(np.abs(w[np.isfinite(w)]).max(initial=0), 2e-2 * top if name[0] == "g" else 0, 1e-30)
            limit = FORWARD if name[0] == "o" else GRADIENT
            assert np.allclose(f, w, rtol=0, atol=limit * size, equal_nan=True), name


# Runs the file in a process of its own.
RUNNER = r\'\'\'
RUNNER_TEXT\'\'\'
'''


def test_of(model: str, function: str, runner: str, wide: bool, forward: float, gradient: float) -> str:
    """Return the text of a test of `MODEL.py`, for the folder that contains its weights and `MODEL_check.npz`."""
    parts = {
        "MODEL": model, "FUNCTION": function, "IS_WIDE": str(wide), "FORWARD_LIMIT": repr(forward),
        "GRADIENT_LIMIT": repr(gradient), "RUNNER_TEXT": script(runner),
    }  # fmt: skip
    source = _TEST.strip() + "\n"
    for name, value in parts.items():
        source = source.replace(name, value)
    return source
