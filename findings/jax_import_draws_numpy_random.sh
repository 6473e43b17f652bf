#!/usr/bin/env bash
# Importing JAX draws five numbers of NumPy's global generator: a program that has seeded it gets other numbers afterwards.
#
# Versions:  jax 0.10.2, numpy 2.4.6, Python 3.11 (seen with jax 0.12.0.1 and numpy 2.5.5 on Python 3.12 as well)
# Expected:  numpy.random.seed(0); import jax; numpy.random.rand() is 0.5488135039273248, the first number of that seed
# Seen:      0.6458941130666561, the sixth: a module of JAX for clusters computes waiting times as it is imported
#
# Exits with 0 as long as that is so.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6

cd "$folder"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PROGRAM'
import numpy

numpy.random.seed(0)
numbers = numpy.random.rand(6)
numpy.random.seed(0)
import jax

seen = numpy.random.rand()
print(f"jax {jax.__version__}, numpy {numpy.__version__}: expected {numbers[0]}, seen {seen}")
raise SystemExit(int(seen != numbers[5]))
PROGRAM
