"""Whatever touches the device first loads the front end, which `import torch` does not."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("first_touches.py")


def test_first_touches():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TENSORGRAFT_BACKEND": "numpy"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", PROGRAM], capture_output=True, text=True, env=env, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
