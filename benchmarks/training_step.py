"""The demo's compiled training steps against the same steps written by hand in JAX (`by_hand`).

Both start from the same parameters and see the same batch; they are compared only after their losses agree.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from benchmarks import by_hand
from benchmarks.measure import Row, interleaved

import tensorgraft as tg

EXAMPLES = Path(__file__).parent.parent / "examples" / "pytorch"
CHECKED, CALLS, ROUNDS = 5, 5, 15
LIMIT = 1.3
LR = 1e-3


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def digits() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], Callable[..., Any], Callable[..., Any]]:
    module = script("digits")
    generator = torch.Generator().manual_seed(0)
    images, labels = next(iter(module.load(64, generator)[0]))
    keep = torch.bernoulli(torch.full((64, module.HIDDEN), 0.75), generator=generator)
    return module.Net(), (images, labels, keep), lambda model: module.training(model, LR, 100)[1], by_hand.digits


def gpt() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], Callable[..., Any], Callable[..., Any]]:
    module = script("gpt")
    characters, train, _ = module.load(module.TEXT)
    batch = module.batch(train, 16, 64, torch.Generator().manual_seed(0))
    return module.GPT(len(characters)), batch, lambda model: module.training(model, LR, 100, 0)[1], by_hand.gpt


def compare(name: str, build: Callable[[], Any]) -> Row:
    """Raises AssertionError where the two steps do not compute the same losses."""
    torch.manual_seed(0)
    model, batch, training, hand = build()
    state = {k: np.array(v) for k, v in model.state_dict().items()}
    device = tg.device("jax")
    compiled = tg.jit(training(model.to(device)))
    ours_batch = [x.contiguous().to(device) for x in batch]
    hand_batch = [jnp.asarray(x.numpy().astype(np.int32) if x.dtype == torch.int64 else x.numpy()) for x in batch]
    hand_step = hand(state, LR)
    for _ in range(CHECKED):
        ours, reference = compiled(*ours_batch).item(), float(hand_step(*hand_batch))
        assert abs(ours - reference) < 1e-4, f"{name}: losses {ours} and {reference}"
    subjects = {
        "ours": lambda: compiled(*ours_batch).item(),
        "by hand": lambda: float(hand_step(*hand_batch)),
    }
    seconds = interleaved(subjects, CALLS, ROUNDS)
    return Row(f"compiled training step, {name}.py", seconds["ours"], seconds["by hand"], "JAX by hand", LIMIT)


def measure() -> list[Row]:
    return [compare("digits", digits), compare("gpt", gpt)]
