"""What is compared in `benchmarks` is the same, and what it found is said as it is."""

from __future__ import annotations

import contextlib
import dataclasses
import runpy
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from benchmarks import first_calls, networks, operators, positions, run, unmodified
from benchmarks import networks_by_hand as hand
from benchmarks.measure import Row, interleaved
from benchmarks.page import page

import tensorgraft as tg
from tensorgraft.frontends.torch.device.accelerator import as_accelerator

SMALL = {
    "gpt": lambda: networks.gpt(batch=2, words=16, length=6, width=12, layers=1),
    "lstm": lambda: networks.lstm(batch=2, length=5),
    "public gpt": lambda: networks.public_gpt(batch=2, words=16, length=6, width=12, heads=1, layers=1),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.slow_with("public gpt")
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
              "modes": {"models": "tiered"},
              "areas": {"models": [dataclasses.asdict(row) for row in rows]}}  # fmt: skip
    text = page(report)
    assert "## Networks\n\nMode: `tiered`.\n" in text
    assert "| good | 0.50 | 1.05 | kept | 1.00 s | 2.00 s | b |" in text
    assert "| slow | 1.50 | 1.05 | **missed** | 3.00 s | 2.00 s | b |" in text
    assert "| large | 1.50 |  |  | 3.0 MB | 2.0 MB | c |" in text
    assert text.endswith("## Missed\n\n- slow: 1.50, target 1.05\n- convolution ended with 1\n")


def test_subjects_take_turns() -> None:
    calls: list[str] = []
    clock = iter(range(100))
    found = interleaved({n: lambda n=n: calls.append(n) for n in "ab"}, 2, 2, lambda: next(clock))
    assert "".join(calls) == "ab" + "aabb" * 2 and found == {"a": 0.5, "b": 0.5}


# ---- first calls, at the size of a toy -------------------------------------------------------------------------------

ARGS = {
    "convnet": "--epochs 1 --images 80",
    "dcgan": "--steps 1 --batch-size 2 --features 4",
    "rnn": "--epochs 1 --images 60 --hidden 8",
    "language_model": "--steps 2 --batch-size 2 --block 8 --layers 1 --width 8 --write 2",
    "diffusion": "--steps 1 --batch-size 2 --channels 8 --timesteps 2",
    "trainer": "--steps 2 --layers 1 --width 16",
}
TINY = {"batch": 2, "words": 16, "length": 8, "width": 8, "layers": 1}


@pytest.fixture
def tiered():
    with tg.eager("tiered"):
        yield


@pytest.mark.usefixtures("tiered")
@pytest.mark.filterwarnings("ignore")  # those of libraries are not ours
@pytest.mark.parametrize("name", unmodified.NAMES)
@pytest.mark.slow_with("trainer")
def test_scripts_print_on_the_device_what_they_print_natively(name: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", [name, *ARGS[name].split()])
    printed = []
    for device in (None, "jax"):
        if name == "trainer":
            pytest.importorskip("accelerate").state.AcceleratorState._reset_state(True)  # it remembers the device
        with as_accelerator(device, tg.jit) if device else contextlib.nullcontext():
            runpy.run_path(str(unmodified.SCRIPTS / f"{name}.py"), run_name="__main__")
        printed.append(unmodified.losses(capsys.readouterr().out))
    unmodified.agree(name, printed[1], printed[0])


def test_a_script_in_a_process(tmp_path) -> None:
    seconds, losses = unmodified.run(unmodified.PLAIN, "dcgan", ARGS["dcgan"].split(), str(tmp_path))
    assert seconds > 0 and len(losses) == 1
    with pytest.raises(AssertionError, match="rnn: loss 1 is 2"):
        unmodified.agree("rnn", [1.0, 2.0], [1.0, 1.0])


@pytest.mark.slow
@pytest.mark.usefixtures("tiered")
def test_first_calls() -> None:
    steps = list(first_calls.first_steps("GPT", ("gpt", {**TINY, "heads": 2}), 4))
    assert [(row.against, row.limit) for row in steps[:2]] == [("CPU PyTorch", 4), ("CPU PyTorch", None)]
    assert [row.against for row in steps if "on TensorFlow" in row.name] == ["CPU PyTorch"] * 2
    waits = list(first_calls.in_the_background("GPT", ("gpt", {**TINY, "heads": 2}), True))
    assert [row.against for row in waits] == ["tensorgraft", "tensorgraft, eager"] * 4
    apart = list(first_calls.memory_apart("GPT", ("gpt", {**TINY, "heads": 2})))
    assert [row.against for row in apart[:2]] == ["CPU PyTorch", "tensorgraft, every operator compiled"]
    assert len(apart) == 9 and apart[0].limit == 2 and all(row.limit is None for row in apart[1:])
    rows = [*first_calls.lengths((5, 7), **{**TINY, "length": 24}), *first_calls.decoding(2, **TINY)]
    assert len(rows) == 5 and all(row.ours > 0 for row in rows)


@pytest.mark.usefixtures("tiered")
def test_operators() -> None:
    seconds = operators.compared("abs", 1024)
    assert seconds is not None and {*seconds} == {"cpu", "eager", "jit"}
    assert operators.compared("set_.source_Storage", 1024) is None  # no arguments are made for it
    slow = {"cpu": 1e-3, "eager": 2e-3, "jit": 4e-3}
    assert [(row.name, row.ratio) for row in operators.beyond("fmod.Tensor", 8, slow)] == [
        (f"fmod.Tensor, 8 elements, jit: {operators.reason('fmod')}", 4)
    ]
    assert operators.reason("abs") == "open"
    assert [row.reference for row in operators.measure(["abs", "neg"], (64, 256))][-1:] == [4]


@pytest.mark.usefixtures("tiered")
def test_positions() -> None:
    rows = {row.name: row for row in positions.compare(3)}
    programs = [row for name, row in rows.items() if name.endswith("programs")]
    assert len(rows) == 2 * len(programs) and all(row.ours <= positions.PROGRAMS for row in programs)
    on_device, native = positions.calls(tg.device("jax")), positions.calls(torch.device("cpu"))
    for name, call in on_device.items():
        got, want = call(2), native[name](2)
        if isinstance(want, torch.Tensor):
            assert torch.allclose(got.cpu(), want), name
        else:
            assert got == want, name


def test_areas_have_a_mode() -> None:
    assert set(run.TIERED) <= set(run.AREAS)
    assert run.mode("eager", "tiered") == "compiled" and run.mode("positions", "tiered") == "tiered"
