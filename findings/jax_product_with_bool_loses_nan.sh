#!/usr/bin/env bash
# A product of floating-point numbers with a boolean mask is a selection: NaN and infinity times False are 0.
#
# Versions:  jax 0.12.0.1, numpy 2.5.5, Python 3.12 (the same with jax 0.10.2 on Python 3.11)
# Expected:  [nan nan] for [nan inf] * [False False], as a mask of float32 gives
# Seen:      [0. 0.]: XLA turns multiply(x, convert(mask)) into select(mask, x, 0)
#
# Exits with 0 as long as that is so.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.12}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jax==0.12.0.1 numpy==2.5.5

cd "$folder"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PROGRAM'
import jax
import jax.numpy as jnp

x, mask = jnp.array([jnp.nan, jnp.inf]), jnp.array([False, False])
seen, of_floats = x * mask, x * mask.astype(jnp.float32)
print(f"jax {jax.__version__}: with a mask of bool {seen}, with a mask of float32 {of_floats}")
raise SystemExit(not ((seen == 0).all() and jnp.isnan(of_floats).all()))
PROGRAM
