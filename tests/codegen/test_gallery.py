"""The files of the gallery are what the networks become today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_gallery_is_as_generated():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.source_gallery", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
