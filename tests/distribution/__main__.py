"""`python -m tests.distribution`: the wheel and the source distribution, their checks, and what a user has of them.

For each extra the wheel is installed in an empty environment, with the versions of constraints.txt, where programs
run that need no more than the extra. With all of them README's programs run, and type checkers read a user's program.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.versions.cells import ROOT
from tests.versions.environment import Impossible, uv

OUT = ROOT / "out" / "distribution"
HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
# extras -> programs that run with these
CHECKS = {
    "": ["nothing.py"],
    "numpy": ["arrays.py"],
    "jax": ["arrays.py", "jax_programs.py"],
    "torch": ["arrays.py", "torch_programs.py"],
    "tensorflow": ["arrays.py", "tensorflow_programs.py"],
    "all": ["arrays.py", "readme.py", "typed.py"],
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.distribution", description=__doc__)
    parser.add_argument("--build", action="store_true", help="build and check the files, and no more")
    parser.add_argument("--extras", nargs="+", help="these alone; `base` is none")
    parser.add_argument("--keep", action="store_true", help="leave the environments")
    args = parser.parse_args()
    wheel = built()
    failed = 0
    for extras, programs in CHECKS.items() if not args.build else ():
        if args.extras and (extras or "base") not in args.extras:
            continue
        place = OUT / "environment"
        try:
            python = installed(place, wheel, extras)
            for program in programs:
                process = subprocess.run([python, "-I", PROGRAMS / program, str(ROOT)], cwd=place)
                print(f"{'failed' if process.returncode else 'ok':<7}{extras or 'base'}: {program}", flush=True)
                failed += process.returncode != 0
        except Impossible as reason:
            print(f"failed {extras or 'base'}: {reason}")
            failed += 1
        finally:
            if not args.keep:
                shutil.rmtree(place, ignore_errors=True)
    return int(failed > 0)


def built() -> Path:
    """The wheel in `dist`, with the source distribution beside it. Both are looked through."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    uv("build", "--out-dir", str(dist), str(ROOT))
    (wheel,), (archive,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    scripts = Path(sys.executable).parent
    subprocess.run([scripts / "twine", "check", "--strict", wheel, archive], check=True)
    subprocess.run([scripts / "check-wheel-contents", wheel], check=True)
    with zipfile.ZipFile(wheel) as files:
        names = {name.partition("/")[2] for name in files.namelist() if name.startswith("tensorgraft/")}
    package = ROOT / "src" / "tensorgraft"
    tracked = subprocess.run(["git", "ls-files", "."], cwd=package, capture_output=True, text=True, check=True)
    missing = set(tracked.stdout.split()) - names
    if missing:
        raise SystemExit(f"the wheel lacks {', '.join(sorted(missing))}")
    return wheel


def installed(place: Path, wheel: Path, extras: str) -> Path:
    """The Python of an environment that has the wheel and what it asks for, at the versions of constraints.txt."""
    shutil.rmtree(place, ignore_errors=True)
    uv("venv", "--python", sys.executable, str(place))
    python = place / "bin" / "python"
    wanted = [f"tensorgraft{f'[{extras}]' if extras else ''} @ {wheel.as_uri()}"]
    if extras == "all":
        wanted += ["equinox", "mypy", "pyright"]  # what README's programs and the type checkers need
    uv("pip", "install", "--python", str(python), "-c", str(ROOT / "constraints.txt"), *wanted)
    listed = json.loads(uv("pip", "list", "--format=json", "--python", str(python)))
    print(f"{extras or 'base'}: {len(listed)} packages", flush=True)
    return python


if __name__ == "__main__":
    sys.exit(main())
