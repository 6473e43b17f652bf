"""PyTorch's operator database (OpInfo) on every backend, against CPU PyTorch."""

from __future__ import annotations

import pytest
import torch
from tests.conformance import cases, derivatives, modes
from tests.conformance.moving import Move

pytestmark = pytest.mark.filterwarnings("ignore")
CASES = cases.operator_cases
DERIVATIVES = ("backward", "gradgrad", "forward_ad", "vmap", "jvp", "jacrev")


def test_operator(case: cases.Case, device: torch.device, samples: int) -> None:
    op = cases.operators()[case.name]
    dtype = getattr(torch, case.dtype)
    torch.manual_seed(0)
    if case.mode == "error":
        found = list(op.error_inputs("cpu"))
    else:
        found = list(op.sample_inputs("cpu", dtype, requires_grad=case.mode in DERIVATIVES and case.mode != "vmap"))
        found = found[:: max(1, len(found) // samples)][:samples]
    check = getattr(derivatives if case.mode in DERIVATIVES else modes, case.mode)
    compared = 0
    for sample in found:
        try:
            check(op, sample, Move(device))
        except modes.Skip:
            continue
        compared += 1
    if not compared:
        pytest.skip("no sample that the CPU can do")
