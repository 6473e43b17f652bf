"""What a program waits for that does what it has not done before: the first training step, a new length, a token of a
sequence that grows. Nothing is kept from other processes; CPU PyTorch takes turns."""

from __future__ import annotations

import importlib.util
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import torch
from benchmarks.measure import Row
from benchmarks.models import peers
from benchmarks.networks import Work, gpt, gpt2
from benchmarks.worker import Worker

import tensorgraft as tg

STEPS: dict[str, tuple[tuple[str, dict[str, Any]], float]] = {  # and of the first step / the first of CPU PyTorch
    "GPT-2 of 4 layers": (("gpt2", {}), 4),
    "ResNet-18, 224 x 224": (("resnet", {"batch": 2, "size": 224}), 3),
}
EAGER, PYTORCH = "tensorgraft, eager", "CPU PyTorch"
BY_HAND = "JAX by hand"
ON_TENSORFLOW = "tensorgraft on TensorFlow, eager"
APART, EACH_COMPILED = "tensorgraft, eager, memory apart", "tensorgraft, every operator compiled"
AT_MOST_APART = 2  # the first step / the first of CPU PyTorch
COMPILED, BACKGROUND = "tensorgraft", "tensorgraft, compiled in the background"
CALLS = {"first": 1, "second": 2, "tenth": 10, "64th": 64}
SMALL = {"batch": 1, "words": 50257, "length": 32, "width": 768, "layers": 12}
NEW_LENGTH, TOKEN = 2, 4
LENGTHS = (33, 21, 54, 40, 27, 48, 36, 59, 24, 44)


def first_steps(name: str, work: tuple[str, dict[str, Any]], limit: float | None = None) -> Iterator[Row]:
    """The first and the tenth training step. Raises AssertionError where they do not compute the same."""
    others = [PYTORCH] + (["torchax"] if peers()["torchax"] is None else [])
    ours = [EAGER] + ([ON_TENSORFLOW] if importlib.util.find_spec("tensorflow") else [])
    losses, first, tenth = {}, {}, {}
    for subject in (*ours, *others):
        with Worker(subject, work, True) as worker:
            value, first[subject], _ = worker.ask("first")
            losses[subject] = [value, *worker.ask("calls", 8)]
            tenth[subject] = worker.ask("burst", 1)
    # at a loss near 0 nothing is left but what rounding has left
    apart = max(
        abs(a - b) / max(abs(b), 0.1) for one in ours for a, b in zip(losses[one], losses[PYTORCH], strict=True)
    )
    assert apart < 1e-3, f"{name}: {losses}"
    for other in others:
        yield Row(f"{name}, first training step", first[EAGER], first[other], other, limit * (other == PYTORCH) or None)
        yield Row(f"{name}, tenth training step", tenth[EAGER], tenth[other], other)
    for one in ours[1:]:
        yield Row(f"{name} on TensorFlow, first training step", first[one], first[PYTORCH], PYTORCH)
        yield Row(f"{name} on TensorFlow, tenth training step", tenth[one], tenth[PYTORCH], PYTORCH)


def in_the_background(name: str, work: tuple[str, dict[str, Any]], training: bool) -> Iterator[Row]:
    """Another thread compiles, on the same core, and the 32nd call switches to the program."""
    seconds = until_the_end((BACKGROUND, COMPILED, EAGER), work, training)
    for (which, n), other in itertools.product(CALLS.items(), (COMPILED, EAGER)):
        ours, reference = seconds[BACKGROUND][n - 1], seconds[other][n - 1]
        yield Row(f"{name}, in the background, until the end of the {which} call", ours, reference, other)


def memory_apart(name: str, work: tuple[str, dict[str, Any]]) -> Iterator[Row]:
    """Training on a device whose memory the host cannot read, as `TENSORGRAFT_TIER=none` makes of the CPU: the first
    calls of each operator are computed on copies on the host, and those that come back often are compiled."""
    seconds = until_the_end((APART, EACH_COMPILED, PYTORCH), work, True)
    for (which, n), other in itertools.product(CALLS.items(), (PYTORCH, EACH_COMPILED)):
        ours, reference = seconds[APART][n - 1], seconds[other][n - 1]
        limit = AT_MOST_APART if which == "first" and other == PYTORCH else None
        yield Row(f"{name}, memory apart, until the end of the {which} step", ours, reference, other, limit)
    first, reference = seconds[EACH_COMPILED][0], seconds[PYTORCH][0]
    yield Row(f"{name}, every operator compiled, first training step", first, reference, PYTORCH)


def until_the_end(subjects: Sequence[str], work: tuple[str, dict[str, Any]], training: bool) -> dict[str, list[float]]:
    """Return the seconds that have passed when each of the first calls of each subject has ended."""
    seconds = {}
    for subject in subjects:
        with Worker(subject, work, training) as worker:
            worker.ask("ready")
            seconds[subject] = worker.ask("elapsed", max(CALLS.values()))
    return seconds


def second_process(name: str, work: tuple[str, dict[str, Any]], by_hand: bool) -> Iterator[Row]:
    """The first compiled training step of a process that finds what another one has compiled."""
    with TemporaryDirectory() as folder:
        seconds = {}
        for subject in (COMPILED, PYTORCH, *([BY_HAND] if by_hand else [])):
            for _ in range(2):
                with Worker(subject, work, True, os.path.join(folder, subject)) as worker:
                    _, seconds[subject], _ = worker.ask("first")
    for other in seconds:
        if other != COMPILED:
            yield Row(f"{name}, second process, first compiled step", seconds[COMPILED], seconds[other], other)


def cpu_seconds(fn: Callable[..., Any], *args: Any) -> float:
    start = time.process_time()
    fn(*args)
    return time.process_time() - start


def lengths(all_lengths: tuple[int, ...] = LENGTHS, **size: int) -> Iterator[Row]:
    """Training steps of a small transformer, each on sequences of another length; then on these again."""
    seconds: dict[tuple[str, str], list[float]] = {}
    steps = {}
    for name, device in ((EAGER, tg.device("jax")), (PYTORCH, torch.device("cpu"))):
        work: Work = gpt(**{"batch": 8, "words": 50, "length": 64, "width": 32, "heads": 2, "layers": 2, **size})
        work = work.on(device)
        step = work.training_step()
        steps[name] = lambda n, step=step, work=work: step(
            work.inputs[:, :n].contiguous(), work.targets[:, :n].contiguous()
        ).item()
    first = 19
    for n, when in ((first, "first"), *((n, "new") for n in all_lengths), *((n, "seen") for n in all_lengths)):
        for name, step in steps.items():
            seconds.setdefault((name, when), []).append(cpu_seconds(step, n))
    mean = {key: sum(found) / len(found) for key, found in seconds.items()}
    new, seen, native = mean[EAGER, "new"], mean[EAGER, "seen"], mean[PYTORCH, "new"]
    yield Row("a new sequence length, eager training step", new, seen, "a seen one", NEW_LENGTH)
    yield Row("a new sequence length, eager training step", new, native, PYTORCH)
    yield Row("a seen sequence length, eager training step", seen, mean[PYTORCH, "seen"], PYTORCH)


def loop(model: torch.nn.Module, tokens: torch.Tensor, n: int) -> torch.Tensor:
    with torch.no_grad():
        for _ in range(n):
            tokens = torch.cat((tokens, model(tokens)[:, -1].argmax(-1, keepdim=True)), 1)
    return tokens


def library(model: torch.nn.Module, tokens: torch.Tensor, n: int) -> torch.Tensor:
    public: Any = model.model
    attended = torch.ones_like(tokens)
    return public.generate(tokens, attention_mask=attended, max_new_tokens=n, do_sample=False, pad_token_id=0)


def decoding(tokens: int = 24, **size: int) -> Iterator[Row]:
    """Greedy decoding of one sequence that grows: as a loop has it, and as the library does, with a cache."""
    for what, decode in (("a loop", loop), ("generate of transformers", library)):
        seconds, decoded = {}, {}
        for name, device in ((EAGER, tg.device("jax")), (PYTORCH, torch.device("cpu"))):
            work = gpt2(**size).on(device)
            model, prompt = work.model.eval(), work.inputs[:1, :5].contiguous()
            decode(model, prompt, 1)  # start-up
            start = time.process_time()
            decoded[name] = decode(model, prompt, tokens).tolist()
            seconds[name] = (time.process_time() - start) / tokens
        assert decoded[EAGER] == decoded[PYTORCH], decoded
        yield Row(f"greedy decoding by {what}, a token", seconds[EAGER], seconds[PYTORCH], PYTORCH, TOKEN)


def measure() -> Iterator[Row]:
    if (reason := peers()["torchax"]) is not None:
        print(f"left out: {reason}")
    for name, (work, limit) in STEPS.items():
        yield from first_steps(name, work, limit)
    yield from second_process("GPT-2 of 4 layers", ("gpt2", {}), False)
    yield from second_process("GPT-2 of 6 layers", ("gpt", {}), True)
    yield from in_the_background("GPT-2 of 4 layers, training", ("gpt2", {}), True)
    yield from in_the_background("GPT-2 (small), inference", ("gpt2", SMALL), False)
    for name, (work, _) in STEPS.items():
        yield from memory_apart(name, work)
    yield from lengths()
    yield from decoding()
