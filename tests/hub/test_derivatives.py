"""Operations on tensors of PyTorch keep their derivatives, which are PyTorch's own."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from tests.hub.cases import CASES, operation
from tests.hub.draw import Draw

from tensorgraft.hub import dtypes, registry
from tensorgraft.hub.tape.backend import RULES

DIFFERENTIABLE = [key for key, case in CASES.items() if operation(key) in RULES and dtypes.float32 in case.dtypes]


@pytest.mark.parametrize("key", DIFFERENTIABLE)
def test_a_result_has_a_history(key: str) -> None:
    xp = registry.get("torch")
    for seed in range(3):
        leaves: list[torch.Tensor] = []

        def tensor(x: Any, leaves: list[torch.Tensor] = leaves) -> Any:
            if isinstance(x, list | tuple) and any(isinstance(v, np.ndarray) for v in x):
                return type(x)(map(tensor, x))
            if not isinstance(x, np.ndarray):
                return x
            out = torch.tensor(x, requires_grad=True) if x.dtype == dtypes.float32 else xp.asarray(x)
            leaves.extend([out] if out.requires_grad else [])
            return out

        arguments = CASES[key].arguments(Draw(random.Random(f"{key} {seed}").randint, dtypes.float32))
        results = getattr(xp, operation(key))(*map(tensor, arguments))
        smooth = [x for x in (results if isinstance(results, tuple | list) else [results]) if x.is_floating_point()]
        if leaves and any(x.numel() for x in smooth):
            assert any(x.requires_grad for x in smooth), arguments


def test_padding_with_an_array() -> None:
    x, value = torch.ones(2, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    y = registry.get("torch").pad(x, value, [(0, 2, 0)])
    (y * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert x.grad.tolist() == [1, 2] and value.grad.item() == 7
