#!/usr/bin/env bash
# torch.export of a scan whose two states start as the same tensor gives a program with other results, without an error.
#
# Versions:  torch 2.13.0 (CPU), Python 3.11
# Expected:  the results of the scan itself: the last states are 6 and 3
# Seen:      the exported program's are 6 and 5: its step reads the first state in place of the second
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
from torch._higher_order_ops.scan import scan


def step(state, x):
    a, b = state
    a, b = a + x, a * b + 1
    return (a.clone(), b.clone()), b.clone()


class Model(torch.nn.Module):
    def forward(self, x):
        zero = x.new_zeros(1)
        return scan(step, (zero, zero), x)[0]


x = torch.tensor([[0.0], [2.0], [4.0]])
expected = [v.item() for v in Model()(x)]
seen = [v.item() for v in torch.export.export(Model(), (x,)).module()(x)]
print(f"torch {torch.__version__}: expected {expected}, seen {seen}")
raise SystemExit(not (expected == [6.0, 3.0] and seen == [6.0, 5.0]))
PROGRAM
