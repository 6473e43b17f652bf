"""`python -m tests.accelerators`: what runs on a machine with a GPU (`make gpu`), and docs/gpu.md, which says how.

Without one nothing runs, and the page says so; `tests/backends/test_lowered.py` is what can be seen without.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import platforms

ROOT = Path(__file__).parents[2]
OUT = ROOT / "out" / "gpu"
PAGES = {"gpu": ROOT / "docs" / "gpu.md", "tpu": ROOT / "docs" / "tpu.md"}
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0")
STEPS: dict[str, tuple[str, ...]] = {
    "conformance, a sample": (*PYTEST, "tests/conformance", "--backends=jax", "--of-thousand=10"),
    "primitives of the hub": (*PYTEST, "tests/hub/test_primitives.py", "tests/hub/test_composites.py", "-k", "jax"),
    "the backend": (*PYTEST, "tests/backends/test_jax.py"),
    "models": (*PYTEST, "tests/frontends/torch/test_models.py", "-k", "jax"),
    "training steps, compiled": (*PYTEST, "tests/frontends/torch/compiled/test_jit.py"),
    "DLPack": (*PYTEST, "tests/frontends/torch/device/test_dlpack.py", "tests/frontends/array_api/test_exchange.py"),
    "demo": ("examples/demo.py",),
    "benchmarks": ("-m", "benchmarks.run", "eager", "training_step", "models", "call_overhead"),
}
WITH_PLATFORM = ("pytest", "benchmarks.run")  # others take `JAX_PLATFORMS`
RUN_ON = "Run on: "
HEADER = """# On {what}

These tests are run by `make {platform}` on a machine with one, with `--platform {platform}`: JAX computes there, and
results are compared with PyTorch on the CPU. {machine}

| what | result | seconds |
| --- | --- | --- |
"""
WITHOUT = """
## Checks without an accelerator

Each operation of the hub, in a dtype, and a network with its gradient are traced for the platform, and lowered for CUDA
and for TPUs (`tests/backends/test_lowered.py`; all dtypes with `--slow`). Decisions that apply only to CPUs are tested,
too: the host's memory is not used directly, arrays are not lent to another backend, and 64-byte alignment is not
required. Products use full precision (no TF32, no passes of bfloat16) unless `jax.default_matmul_precision` says
otherwise. `eig` is not available on TPUs, where JAX has none; programs of 32-bit types do not read the bits of 64-bit
numbers, which XLA cannot do there. Errors that occur late, when a value is read, are raised at each read, and values
that are written again are valid again (`tests/backends/test_late_errors.py`).
"""


@dataclass(frozen=True)
class Result:
    what: str
    said: str
    seconds: float


def device(platform: str) -> str | None:
    """The name of the accelerator that JAX finds, or None."""
    program = "import jax; print(*sorted({d.device_kind for d in jax.devices()}), sep=', ')"
    environment = os.environ | {"JAX_PLATFORMS": platforms.JAX_PLATFORMS[platform].partition(",")[0]}
    asked = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    return asked.stdout.strip() or None if asked.returncode == 0 else None


def run(what: str, platform: str) -> Result:
    command = [sys.executable, *STEPS[what]]
    if any(name in command for name in WITH_PLATFORM):
        command += ["--platform", platform]
    log = OUT / f"{re.sub(r'[^a-z]+', '_', what.lower())}.txt"
    began = time.time()
    environment = os.environ | {"JAX_PLATFORMS": platforms.JAX_PLATFORMS[platform]}
    with log.open("w") as output:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    counts = re.findall(r"^.*\d+ (?:passed|failed).*$", log.read_text(), re.MULTILINE)
    said = counts[-1].strip("= ").partition(" in ")[0] if counts else "done"
    return Result(
        what, said if (done.returncode in (0, 1) and counts) or not done.returncode else "failed", time.time() - began
    )


def page(platform: str, name: str | None, results: list[Result]) -> str:
    found = {result.what: (result.said, f"{result.seconds:.0f}") for result in results}
    machine = f"{RUN_ON}{name}." if name else "Not run: there was no such machine."
    rows = [f"| {what} | {' | '.join(found.get(what, ('not run', '')))} |" for what in STEPS]
    what = {"gpu": "GPUs", "tpu": "TPUs"}[platform]
    return HEADER.format(what=what, platform=platform, machine=machine) + "\n".join(rows) + "\n" + WITHOUT


def has_results(path: Path) -> bool:
    """The page is of a machine that had the accelerator: one without it does not write over what was measured."""
    return path.exists() and RUN_ON in path.read_text()


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.accelerators", description=__doc__)
    parser.add_argument("--platform", choices=PAGES, default="gpu")
    parser.add_argument("--only", default="", help="steps whose names contain this; the page stays as it is")
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    name = device(args.platform)
    results = []
    for what in STEPS if name else ():
        if args.only in what:
            results.append(run(what, args.platform))
            print(results[-1], flush=True)
    path = PAGES[args.platform]
    if name is None:
        print(f"not run: JAX finds no {args.platform} here")
    if not args.only and (name or not has_results(path)):
        path.write_text(page(args.platform, name, results))
    return int(any("failed" in result.said for result in results))


if __name__ == "__main__":
    sys.exit(main())
