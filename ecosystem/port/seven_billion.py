"""Converts a sharded checkpoint of 7 billion parameters of zeros, with the names and shapes of Llama, and prints the
peak memory above the interpreter's, and the time.

    python -m ecosystem.port.seven_billion FOLDER

FOLDER is on a disk with 14 GB free: shards are sparse files of bfloat16, what is written is not.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from pathlib import Path

from tensorgraft.porting.expressions import View
from tensorgraft.porting.mapping import Entry, Mapping

WIDTH, HIDDEN, LAYERS, HEADS, VOCABULARY, SHARDS = 4096, 11008, 32, 32, 32000, 8


def shapes() -> dict[str, tuple[int, ...]]:
    """The arrays of the checkpoint."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, WIDTH)}
    for i in range(LAYERS):
        block = f"model.layers.{i}"
        found |= {f"{block}.self_attn.{n}_proj.weight": (WIDTH, WIDTH) for n in "qkvo"}
        found |= {f"{block}.mlp.{n}_proj.weight": (HIDDEN, WIDTH) for n in ("gate", "up")}
        found[f"{block}.mlp.down_proj.weight"] = (WIDTH, HIDDEN)
        found |= {f"{block}.{n}_layernorm.weight": (WIDTH,) for n in ("input", "post_attention")}
    return found | {"model.norm.weight": (WIDTH,), "lm_head.weight": (VOCABULARY, WIDTH)}


def entry(name: str, shape: tuple[int, ...]) -> Entry:
    """Kernels of Flax: transposed, those of attention with an axis of heads."""
    target = name.replace("weight", "kernel" if len(shape) == 2 else "scale")
    split = shape
    order: tuple[int, ...] = (1, 0) if len(shape) == 2 else (0,)
    if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
        split, order = (HEADS, WIDTH // HEADS, WIDTH), (2, 0, 1)
    elif "embed" in name:
        order = (0, 1)
    made = tuple(split[a] for a in order)
    return Entry(target, made, View(name, shape, split, tuple((0, n, 1) for n in split), order, (), made))


def write_zeros(folder: Path, arrays: dict[str, tuple[int, ...]]) -> None:
    """Sparse files of bfloat16."""
    names = list(arrays)
    for k in range(SHARDS):
        header, at = {}, 0
        for name in names[k::SHARDS]:
            size = 2 * math.prod(arrays[name])
            header[name] = {"dtype": "BF16", "shape": arrays[name], "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        with (folder / f"model-{k:05}.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + at)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(folder: Path) -> int:
    arrays = shapes()
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    write_zeros(source, arrays)
    mapping = Mapping({e.target: e for e in (entry(n, s) for n, s in arrays.items())})
    largest = 2 * max(map(math.prod, arrays.values()))
    before, start = peak(), time.process_time()
    mapping.convert(source, folder / "out.safetensors")
    above = peak() - before
    count, seconds = sum(map(math.prod, arrays.values())) / 1e9, time.process_time() - start
    print(f"{count:.2f} billion parameters, {seconds:.0f} s of CPU")
    print(f"peak {above / 2**20:.0f} MiB above the interpreter; the largest array has {largest / 2**20:.0f} MiB")
    return 0 if above <= largest + 2e9 else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
