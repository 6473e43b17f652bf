"""Generated source against the same networks written by hand, and against Ivy's published figures.

Ivy's are quoted (its transpiler's documentation and issue 19), not measured here: 62 files and 77 s for a small model.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import torch
from benchmarks.measure import Row, interleaved
from benchmarks.source_gallery import NETWORKS, ROOT, lines_of_code, network, written

from tensorgraft.codegen.generation import GeneratedSource
from tensorgraft.transforms.source import source

TWINS = {"lstm": "lstm_model"}  # the function of a twin, where it is not the file's name
LONGER, SLOWER, CONVERTED = 2.0, 1.05, 10.0
IVY_FILES, IVY_SECONDS = 62, 77.0
SECONDS = 0.2  # of a burst
ROUNDS = 15


def measure() -> Iterator[Row]:
    jax.config.update("jax_platforms", "cpu")
    sources = {name: written(name) for name in NETWORKS}
    for name, s in sources.items():
        twin = ROOT / "benchmarks" / "source_twins" / f"{name}.py"
        lines = lines_of_code(s.text), lines_of_code(twin.read_text())
        yield Row(f"{NETWORKS[name]}: lines", *map(float, lines), "by hand", LONGER, unit="")
    for name, s in sources.items():
        yield from speed(name, s)
    yield Row("files for a network", 1.0, float(IVY_FILES), "Ivy, quoted", unit="")
    yield conversion()


def speed(name: str, s: GeneratedSource) -> Iterator[Row]:
    """Under `jax.jit`, and how far both are from PyTorch."""
    net, example = network(name)
    with torch.no_grad():
        expected = [x.numpy() for x in torch.utils._pytree.tree_leaves(net(*example))]
    with tempfile.TemporaryDirectory() as folder:
        s.save(f"{folder}/{name}_generated.py")
        generated = _imported(Path(folder) / f"{name}_generated.py")
        weights = generated.load_weights(f"{folder}/{name}_generated.safetensors")
    weights = weights if isinstance(weights, tuple) else (weights,)
    arrays = [jax.numpy.asarray(x.numpy()) for x in torch.utils._pytree.tree_leaves(example)]
    twin = importlib.import_module(f"benchmarks.source_twins.{name}")
    functions = {
        "generated": jax.jit(getattr(generated, s.function)),
        "by hand": jax.jit(getattr(twin, TWINS.get(name, name))),
    }
    for title, f in functions.items():
        found = jax.tree.leaves(f(*weights, *arrays))
        worst = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, expected, strict=True))
        yield Row(f"{NETWORKS[name]}: {title}, furthest from PyTorch, of 1e-5", worst / 1e-5, 1.0, "1e-5", 1.0, unit="")

    def call(f: Any) -> Any:
        return lambda: jax.block_until_ready(f(*weights, *arrays))

    subjects = {title: call(f) for title, f in functions.items()}
    once = interleaved(subjects, 3, 3, time.process_time)
    calls = max(1, int(SECONDS / max(once.values())))
    found = interleaved(subjects, calls, ROUNDS, time.process_time)
    yield Row(f"{NETWORKS[name]}: under jax.jit", found["generated"], found["by hand"], "by hand", SLOWER)


def conversion() -> Row:
    """GPT-2 of 12 layers, 768 wide, of random weights; CPU seconds, without the check."""
    sys.path.insert(0, str(ROOT))
    gpt2 = importlib.import_module("examples.networks.gpt2")
    net = gpt2.GPT2(vocabulary=50257, context=1024, width=768, heads=12, layers=12).eval()
    start = time.process_time()
    source(net, torch.randint(0, 50257, (1, 16)), onto="jax", check=False)
    seconds = time.process_time() - start
    return Row("GPT-2 of 12 layers to JAX", seconds, IVY_SECONDS, "Ivy, quoted, a small model", CONVERTED / IVY_SECONDS)


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
