"""Other people's suites on every backend: `make harness`.

Calls a folder of harnesses that is not part of this repository (`--harness`): `models/` trains classic networks, and
`opinfo/` runs the operator database in PyTorch's wheel. Results go to `out/conformance/`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# area -> (folder, command); {out} is the result without suffix
AREAS = {
    "models": ("models", "run.py --subject graft_adapter --fresh --match ^classic/ --jobs 2 --out {out}"),
    "opinfo": (
        "opinfo",
        "op_info.py --adapter graft --modes forward --dtypes float32 --samples 5 --split all --json {out}.json",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--harness", type=Path, default=ROOT.parent / "shared" / "conformance")
    parser.add_argument("--areas", nargs="+", choices=AREAS, default=list(AREAS))
    parser.add_argument("--backends", nargs="+", default=["jax", "numpy"])
    args, more = parser.parse_known_args()  # what is left goes to the harness, for example --ops add
    if not args.harness.is_dir():
        parser.error(f"there are no harnesses in {args.harness}: name their folder by --harness (make: CONFORMANCE=)")
    results = ROOT / "out" / "conformance"
    results.mkdir(parents=True, exist_ok=True)
    failed = []
    for area in args.areas:
        for backend in args.backends:
            folder, command = AREAS[area]
            out = results / f"{area}-{backend}"
            print(f"\n==== {area} on {backend}", flush=True)
            env = {**os.environ, "GRAFT_BACKEND": backend, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT / "src")}
            call = [sys.executable, *command.format(out=out).split(), *more]
            if subprocess.run(call, cwd=args.harness / folder, env=env, check=False).returncode:
                failed.append(f"{area} on {backend}")
    if failed:
        print(f"\nended with an error: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
