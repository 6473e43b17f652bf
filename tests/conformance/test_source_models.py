"""The command that counts models as source survives its cases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, sys, time
from types import SimpleNamespace as Case
from pathlib import Path
from tests.conformance import source_models

import tensorgraft, torch  # before processes are made

def build(name):
    if name == "crashes":
        os.abort()
    time.sleep(60 if name == "hangs" else 0)
    return Case(eval=lambda: None)
cases = {n: Case(name=n, build=lambda n=n: build(n), inputs=dict) for n in ("crashes", "hangs", "no module")}
source_models.run(cases, ["crashes", "no module"], "numpy", Path(sys.argv[1]), jobs=2)
source_models.LIMIT = 1
source_models.run(cases, ["hangs"], "numpy", Path(sys.argv[1]), jobs=1)
"""


def test_cases_that_crash_and_hang_are_rows(tmp_path):
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    path = tmp_path / "rows.jsonl"
    subprocess.run([sys.executable, "-c", SCRIPT, path], cwd=tmp_path, env=env, check=True, timeout=300)
    reasons = {row["case"]: row["reason"] for row in map(json.loads, path.read_text().splitlines())}
    assert reasons["crashes"] == "ended with status -6"
    assert reasons["hangs"] == "not done after 1 s"
    assert reasons["no module"].startswith("TypeError: tg.source takes")
