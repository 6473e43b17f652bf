#!/usr/bin/env bash
# torch.add(csr, dense, alpha=a) multiplies the first operand by a, instead of the second.
#
# Versions:  torch 2.13.0 (CPU), Python 3.11
# Expected:  input + alpha * other, as documented: [[11, 10], [10, 12]]
# Seen:      alpha * input + other: [[11, 1], [1, 21]]
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

x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
expected = torch.add(x, torch.ones(2, 2), alpha=10).tolist()
seen = torch.add(x.to_sparse_csr(), torch.ones(2, 2), alpha=10).tolist()
print(f"torch {torch.__version__}: expected {expected}, seen {seen}")
raise SystemExit(seen != [[11, 1], [1, 21]])
PROGRAM
