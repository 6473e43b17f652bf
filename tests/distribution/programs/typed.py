"""mypy --strict and pyright on a user's program, and on every public name."""

import importlib
import subprocess
import sys
from pathlib import Path

import tensorgraft as tg

SPACES = ("array_api", "nn", "operators", "parallel", "precision", "quantization", "random", "transforms")
lines = ["import tensorgraft as tg"]
lines += [f"tg.{name}" for name in tg.__all__]
for space in SPACES:
    lines += [f"import tensorgraft.{space}"]
    lines += [f"tensorgraft.{space}.{name}" for name in importlib.import_module(f"tensorgraft.{space}").__all__]
here = Path("typed")
here.mkdir(exist_ok=True)
(here / "names.py").write_text("\n".join(lines) + "\n")
(here / "user.py").write_text((Path(sys.argv[1]) / "tests" / "typing" / "user.py").read_text())
(here / "pyrightconfig.json").write_text('{"reportUnusedExpression": false}')
run = [sys.executable, "-m"]
subprocess.run([*run, "mypy", "--strict", "--no-error-summary", "user.py", "names.py"], cwd=here, check=True)
subprocess.run([*run, "pyright", "--pythonpath", sys.executable, "user.py", "names.py"], cwd=here, check=True)
