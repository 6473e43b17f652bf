#!/usr/bin/env bash
# Compiling any function turns off the checks of arguments of all distributions, for the rest of the process.
#
# Versions:  torch 2.13.0, Python 3.11 (seen with torch 2.11.0 and 2.15.0 on Python 3.12 as well)
# Expected:  Normal(0.0, -1.0) raises ValueError, before torch.compile as after it: its documentation says that arguments
#            are checked unless the program, or python -O, turns that off
# Seen:      after one call of a compiled function that has nothing to do with distributions it is accepted
#
# Exits with 0 as long as that is so.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import torch


def refused():
    try:
        torch.distributions.Normal(0.0, -1.0)
    except ValueError:
        return True
    return False


before = refused()
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
after = refused()
print(f"torch {torch.__version__}: a negative scale is refused before: {before}, after torch.compile: {after}")
raise SystemExit(int(not before or after))
PROGRAM
