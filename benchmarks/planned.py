"""`tg.parallel.plan` of a training step of Llama with 7 billion parameters on 16 x 16 devices that are not there: time
and the host's memory, against what was promised."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import torch
from benchmarks.measure import Row
from transformers import LlamaConfig, LlamaForCausalLM

import tensorgraft as tg

SECONDS, BYTES = 180.0, 8e9  # promised
BATCH, LENGTH = 256, 2048


def measure() -> Iterator[Row]:
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig())  # its sizes are those of 7 billion parameters
        tokens = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    mesh = tg.parallel.mesh((16, 16), ("data", "model"), device="jax", abstract=True)
    tg.parallel.shard_(model, mesh, tg.parallel.tensor_parallel(model))
    tokens = tg.parallel.shard_batch(tokens, mesh)

    def step(tokens: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    start = time.perf_counter()
    print(tg.parallel.plan(step, tokens))
    seconds = time.perf_counter() - start
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    yield Row("plan of Llama 7B on 16 x 16: time", seconds, SECONDS, "the promise", 1.0)
    yield Row("plan of Llama 7B on 16 x 16: host's memory", 1024.0 * sum(peaks), BYTES, "the promise", 1.0, unit="B")
