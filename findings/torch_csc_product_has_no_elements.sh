#!/usr/bin/env bash
# torch.sparse.mm of two CSC matrices gives a tensor with column pointers and no elements, which says it is valid.
#
# Versions:  torch 2.13.0 (CPU, with MKL), Python 3.11
# Expected:  the product, as for CSR matrices and for the operator @
# Seen:      ccol_indices count the product's elements; row_indices and values are empty
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

x = torch.tensor([[1.0, 2.0], [0.0, 3.0]]).to_sparse_csc()
product = torch.sparse.mm(x, x)
pointers, count = product.ccol_indices().tolist(), product.values().numel()
print(f"torch {torch.__version__}: expected 3 elements, seen {count}, with pointers {pointers}")
raise SystemExit(not (pointers[-1] == 3 and count == 0))
PROGRAM
