"""A token of `generate` of transformers, unmodified, on a Llama with random weights: with the cache that grows and with
the static one, whose `forward` is `tg.jit`ted; against CPU PyTorch and a loop by hand in JAX.

Processor time of one core: bursts of whole sequences take turns, and all subjects write the same tokens. A first call
has the prefill and every compilation in it, in a process that has computed on the device before.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from benchmarks.measure import Row, interleaved

import tensorgraft as tg

EAGER, STATIC = "greedy decoding, a token", "greedy decoding with a static cache, compiled, a token"
PYTORCH, COMPILED, HAND = "CPU PyTorch", "torch.compile", "JAX by hand"
LIMITS = {(EAGER, PYTORCH): 1.3, (STATIC, PYTORCH): 0.8, (STATIC, HAND): 1.15}
FIRST = 2.5  # seconds of processor time of the first calls together
ROUNDS = 5

Decode = Callable[[], list[list[int]]]


def llama(words: int = 8192, width: int = 512, heads: int = 8, layers: int = 6) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def prompt(words: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(1, words, (batch, length), generator=torch.Generator().manual_seed(1))


def generate(model: Any, inputs: torch.Tensor, tokens: int, **options: Any) -> Decode:
    attended = torch.ones_like(inputs)

    def decode() -> list[list[int]]:
        out = model.generate(inputs, attention_mask=attended, max_new_tokens=tokens, do_sample=False, **options)
        return out.tolist()

    return decode


def by_hand(model: Any, inputs: torch.Tensor, tokens: int, most: int | None = None) -> Decode:
    """A prefill and a step, each one program; the step's cache is donated, and its token read by the host."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    config = model.config
    heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    weights = {name: jnp.asarray(value.numpy()) for name, value in model.state_dict().items()}
    frequencies = 1 / config.rope_parameters["rope_theta"] ** (np.arange(0, size, 2, dtype=np.float32) / size)
    batch, length = inputs.shape
    most = most or length + tokens

    def linear(x: Any, name: str) -> Any:
        return x @ weights_of[0][name + ".weight"].T

    weights_of: list[Any] = [weights]

    def normed(x: Any, name: str) -> Any:
        scale = jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + config.rms_norm_eps)
        return weights_of[0][name + ".weight"] * (x * scale)

    def turned(x: Any, cos: Any, sin: Any) -> Any:
        first, second = jnp.split(x, 2, -1)
        return x * cos + jnp.concatenate((-second, first), -1) * sin

    def step(weights: Any, cache: Any, ids: Any, start: Any) -> Any:
        weights_of[0] = weights
        n = ids.shape[1]
        places = start + jnp.arange(n)
        angles = jnp.tile(places[:, None] * frequencies, 2)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        seen = jnp.arange(most) <= places[:, None]
        x = weights["model.embed_tokens.weight"][ids]
        new = []
        for i, (keys, values) in enumerate(cache):
            at = f"model.layers.{i}."
            y = normed(x, at + "input_layernorm")
            q, k, v = (linear(y, f"{at}self_attn.{which}_proj").reshape(batch, n, heads, size).swapaxes(1, 2)
                       for which in "qkv")  # fmt: skip
            keys = jax.lax.dynamic_update_slice(keys, turned(k, cos, sin), (0, 0, start, 0))
            values = jax.lax.dynamic_update_slice(values, v, (0, 0, start, 0))
            scores = turned(q, cos, sin) @ keys.swapaxes(2, 3) * size**-0.5
            y = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1) @ values
            x = x + linear(y.swapaxes(1, 2).reshape(batch, n, -1), at + "self_attn.o_proj")
            y = normed(x, at + "post_attention_layernorm")
            y = jax.nn.silu(linear(y, at + "mlp.gate_proj")) * linear(y, at + "mlp.up_proj")
            x = x + linear(y, at + "mlp.down_proj")
            new.append((keys, values))
        logits = linear(normed(x[:, -1], "model.norm"), "lm_head")
        return new, jnp.argmax(logits, -1)[:, None]

    jitted = jax.jit(step, donate_argnums=1)

    def decode() -> list[list[int]]:
        ids = jnp.asarray(inputs.numpy().astype(np.int32))
        cache = [
            tuple(jnp.zeros((batch, heads, most, size)) for _ in range(2)) for _ in range(config.num_hidden_layers)
        ]
        out = [inputs.numpy()]
        for i in range(tokens):
            cache, ids = jitted(weights, cache, ids, 0 if i == 0 else length + i - 1)
            out.append(np.asarray(ids))
        return np.concatenate(out, 1).tolist()

    return decode


def subjects(batch: int, tokens: int, length: int = 8, **size: int) -> dict[tuple[str, str], Decode]:
    """Each by the row that it is of, and who it is."""
    import copy

    model = llama(**size)
    inputs = prompt(model.config.vocab_size, batch, length)
    device = tg.device("jax")
    there, static = copy.deepcopy(model).to(device), copy.deepcopy(model).to(device)
    static.forward = tg.jit(static.forward)
    moved = inputs.to(device)
    found = {
        (EAGER, "ours"): generate(there, moved, tokens),
        (STATIC, "ours"): generate(static, moved, tokens, cache_implementation="static"),
        (EAGER, PYTORCH): generate(model, inputs, tokens),
        (STATIC, HAND): by_hand(model, inputs, tokens),
    }
    if shutil.which("g++") or shutil.which("clang++"):
        native = copy.deepcopy(model)
        native.forward = torch.compile(native.forward)
        found[STATIC, COMPILED] = generate(native, inputs, tokens, cache_implementation="static")
    return found


def compare(batch: int, tokens: int, clock: Callable[[], float] = time.process_time, **size: int) -> Iterator[Row]:
    """Raises AssertionError where the tokens differ."""
    import jax.numpy as jnp

    (jnp.ones(3) + 1).block_until_ready()
    (torch.ones(3, device=tg.device("jax")) + 1).tolist()
    first, written = {}, {}
    all_subjects = subjects(batch, tokens, **size)
    for who, decode in all_subjects.items():
        start = clock()
        written[who] = decode()
        first[who] = clock() - start
    for who, found in written.items():
        assert found == written[EAGER, PYTORCH], f"{who}: {found}, {PYTORCH} {written[EAGER, PYTORCH]}"
    seconds = {who: each / tokens for who, each in interleaved(all_subjects, 1, ROUNDS, clock).items()}
    rows = "" if batch == 1 else f" (batches of {batch})"
    native = seconds[EAGER, PYTORCH]
    for row in (EAGER, STATIC):
        ours = seconds[row, "ours"]
        others = {PYTORCH: native} | {who: each for (of, who), each in seconds.items() if of == row and who != "ours"}
        for who, each in others.items():
            yield Row(row + rows, ours, each, who, LIMITS.get((row, who)) if batch == 1 else None)
    extra = FIRST if batch == 1 else None
    ours, others = first[STATIC, "ours"], first[EAGER, PYTORCH]
    yield Row(f"greedy decoding with a static cache, first call{rows}", ours, others, PYTORCH, extra=extra)
    yield Row(f"greedy decoding with a static cache, first call{rows}", ours, first[STATIC, HAND], HAND)


def measure(tokens: int = 48) -> Iterator[Row]:
    for batch in (1, 8, 32):
        yield from compare(batch, tokens)


if __name__ == "__main__":
    from benchmarks.run import shown
    from benchmarks.worker import pinned

    parser = argparse.ArgumentParser()
    parser.add_argument("--wall", action="store_true", help="wall time rather than processor time")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=48)
    given = parser.parse_args()
    pinned()
    torch.set_num_threads(1)
    for row in compare(given.batch, given.tokens, time.perf_counter if given.wall else time.process_time):
        print(f"{row.name}: {row.ratio:.2f} of {row.against}: {shown(row.ours, 's')}, {shown(row.reference, 's')}")
