#!/usr/bin/env bash
# A tensor of bfloat16 and a complex number no longer add or multiply: their result type is a dtype without kernels.
#
# Versions:  torch 2.15.0, Python 3.12 (seen on 3.13); torch 2.13.0 gives complex64
# Expected:  complex64, as torch.promote_types(torch.bfloat16, torch.complex32) still says
# Seen:      torch.result_type is the new torch.bcomplex32, and +, * and / raise NotImplementedError on the CPU
#
# Exits with 0 as long as that is so.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.12}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 numpy==2.5.5

cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import operator

import torch

x, raised = torch.ones(2, dtype=torch.bfloat16), []
for name in ("add", "mul", "truediv"):
    try:
        getattr(operator, name)(x, 1j)
    except NotImplementedError as error:
        raised.append(f"{name}: {error}")
print(f"torch {torch.__version__}: the result type is {torch.result_type(x, 1j)}; {'; '.join(raised)}")
raise SystemExit(len(raised) != 3)
PROGRAM
