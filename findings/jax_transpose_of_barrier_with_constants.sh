#!/usr/bin/env bash
# An optimization barrier that has other operands beside the linear one is not transposed any more.
#
# Versions:  jax 0.11.2, numpy 2.5.2, Python 3.12 (seen with jax 0.12.0.1; right with jax 0.10.2)
# Expected:  linear_transpose of x -> optimization_barrier((2 x, constant))[0] at ones gives [2. 2.]
# Seen:      AttributeError: 'jaxlib._jax.ArrayImpl' object has no attribute 'accum'
#
# Exits with 0 as long as that is so.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.12}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jax==0.11.2 jaxlib==0.11.2 numpy==2.5.2

cd "$folder"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PROGRAM'
import jax
import jax.numpy as jnp


def doubled(x):
    return jax.lax.optimization_barrier((2.0 * x, jnp.arange(2.0)))[0]


x = jnp.ones(2)
try:
    seen = jax.linear_transpose(doubled, x)(x)
except AttributeError as error:
    print(f"jax {jax.__version__}: expected [2. 2.], seen {type(error).__name__}: {error}")
else:
    raise SystemExit(f"jax {jax.__version__}: {seen}")
PROGRAM
