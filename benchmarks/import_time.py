"""What `import tensorgraft` adds to `import numpy`, in fresh processes; it may import no framework."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.measure import Row

ROUNDS = 9
MAY_ADD = 0.2  # seconds
CODE = """
import sys, time
start = time.perf_counter()
import {name}
print(time.perf_counter() - start)
loaded = [m for m in ("jax", "tensorflow", "torch") if m in sys.modules]
assert not loaded, loaded
"""


def seconds(name: str) -> float:
    done = subprocess.run([sys.executable, "-c", CODE.format(name=name)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def measure() -> list[Row]:
    taken: dict[str, list[float]] = {"numpy": [], "tensorgraft": []}
    for _ in range(ROUNDS):
        for name, times in taken.items():
            times.append(seconds(name))
    return [Row("import tensorgraft", min(taken["tensorgraft"]), min(taken["numpy"]), "import numpy", extra=MAY_ADD)]
