"""What is compared in `benchmarks` is the same, and what it found is said as it is."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks import networks
from benchmarks import networks_by_hand as hand
from benchmarks.measure import Row, interleaved
from benchmarks.page import page

SMALL = {
    "gpt": lambda: networks.gpt(batch=2, words=16, length=6, width=12, layers=1),
    "lstm": lambda: networks.lstm(batch=2, length=5),
    "public gpt": lambda: networks.public_gpt(batch=2, words=16, length=6, width=12, heads=1, layers=1),
}


@pytest.mark.parametrize("name", SMALL)
def test_by_hand_learns_as_pytorch_does(name: str) -> None:
    work = SMALL[name]()
    known: dict[int, np.ndarray] = {}
    state = {k: known.setdefault(v.data_ptr(), v.numpy().copy()) for k, v in work.model.state_dict().items()}
    params, statistics = hand.load(state)
    inputs, targets = (jnp.asarray(x.numpy().astype(np.int32)) for x in (work.inputs, work.targets))
    out = hand.inference(work.name)(params, statistics, inputs)
    assert np.allclose(out, work.inference()(work.inputs).numpy(), atol=1e-5)
    held = [params, statistics, hand.NETWORKS[work.name][1].init(params)]
    theirs, step = jax.jit(hand.training_step(work.name)), work.training_step()
    for _ in range(3):
        *held[:], loss = theirs(*held, inputs, targets)
        assert abs(float(loss) - step(work.inputs, work.targets).item()) < 1e-4


def test_the_page_names_what_is_missed() -> None:
    rows = [Row("good", 1.0, 2.0, "b", 1.05), Row("slow", 3.0, 2.0, "b", 1.05), Row("large", 3e6, 2e6, "c", unit="B")]
    report = {"processor": "P", "cores": 2, "load": [1.0, 2.0], "failed": ["convolution ended with 1"],
              "areas": {"models": [dataclasses.asdict(row) for row in rows]}}  # fmt: skip
    text = page(report)
    assert "| good | 0.50 | 1.05 | kept | 1.00 s | 2.00 s | b |" in text
    assert "| slow | 1.50 | 1.05 | **missed** | 3.00 s | 2.00 s | b |" in text
    assert "| large | 1.50 |  |  | 3.0 MB | 2.0 MB | c |" in text
    assert text.endswith("## Missed\n\n- slow: 1.50, target 1.05\n- convolution ended with 1\n")


def test_subjects_take_turns() -> None:
    calls: list[str] = []
    clock = iter(range(100))
    found = interleaved({n: lambda n=n: calls.append(n) for n in "ab"}, 2, 2, lambda: next(clock))
    assert "".join(calls) == "ab" + "aabb" * 2 and found == {"a": 0.5, "b": 0.5}
