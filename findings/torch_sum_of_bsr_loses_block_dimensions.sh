#!/usr/bin/env bash
# The sum of two BSR tensors of 1 x 1 blocks has values without the dimensions of blocks.
#
# Versions:  torch 2.13.0 (CPU), Python 3.11
# Expected:  a sum of the operands' structure: values of shape (nnz, 1, 1), which is what the sum of a tensor with itself
#            (one object) has
# Seen:      values of shape (nnz,); to_dense(), to_sparse(), t() and products of the sum raise IndexError or RuntimeError
#            about dimensions that are out of range, far from the sum
#
# Exits with 0 as long as that is so.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import torch

x = torch.eye(3).to_sparse_bsr((1, 1))
total = x + x.clone()
print(f"torch {torch.__version__}: values of x {tuple(x.values().shape)}, of x + x {tuple((x + x).values().shape)},")
print(f"  of x + x.clone() {tuple(total.values().shape)}")
raised = []
for name in ("to_dense", "to_sparse", "t"):
    try:
        getattr(total, name)()
    except (IndexError, RuntimeError) as error:
        raised.append(name)
        print(f"  {name}() of that: {type(error).__name__}: {error}")
raise SystemExit(int(total.values().dim() != 1 or len(raised) != 3))
PROGRAM
