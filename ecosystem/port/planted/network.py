"""A network written in two frameworks, in the second one with a switch for a change, and the places of the changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Program = Any
Values = dict[str, np.ndarray]
Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Network:
    """Both programs are made of the same values; a line of `file` with `# planted: NAME` is where a change is."""

    name: str
    file: Path
    shapes: Mapping[str, tuple[int, ...]]
    source: Callable[[Values], Program]
    target: Callable[[Values, str], Program]
    examples: Callable[[int], tuple[Arguments, Arguments]]  # of both programs, at two sizes
    changes: Mapping[str, str]  # the reason of each
    equal: tuple[str, ...] = ()  # changes that compute the same

    def values(self, seed: int) -> Values:
        """Return random weights: kernels that keep the size of values, scales about one, biases about zero."""
        generator = np.random.default_rng(seed)
        result = {}
        for name, shape in self.shapes.items():
            noise = generator.standard_normal(shape).astype(np.float32)
            kind = name.rpartition(".")[2]
            if kind == "variance":
                result[name] = 0.5 + np.abs(noise)
            elif kind in ("scale", "bias", "mean"):
                result[name] = np.float32(0.2) * noise + np.float32(kind == "scale")
            else:
                fan = 1 if kind == "table" else int(np.prod(shape[:-1]))
                result[name] = noise * np.float32(fan**-0.5)
        return result

    def lines(self, change: str) -> list[int]:
        """Return the numbers of the lines that a change is in."""
        found = []
        for number, line in enumerate(self.file.read_text().splitlines(), 1):
            marker = re.search(r"# planted: (.*)", line)
            if marker and change in marker[1].split(", "):
                found.append(number)
        if not found:
            raise LookupError(f"{self.file.name} has no line with `# planted: {change}`")
        return found


def linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.kernel": (inputs, outputs), f"{name}.bias": (outputs,)}


def norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.scale": (width,), f"{name}.bias": (width,)}


def into_torch(module: Program, values: Values) -> Program:
    """Return the PyTorch module, in evaluation mode, with the values: kernels have their outputs first there."""
    import torch

    names = {
        "scale": "weight",
        "table": "weight",
        "kernel": "weight",
        "mean": "running_mean",
        "variance": "running_var",
    }
    state = {}
    for name, value in values.items():
        place, _, kind = name.rpartition(".")
        if kind == "kernel":
            value = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T
        state[f"{place}.{names.get(kind, kind)}".removeprefix(".")] = torch.from_numpy(np.ascontiguousarray(value))
    missing, unexpected = module.load_state_dict(state, strict=False)
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unexpected:
        raise KeyError(f"not in both: {missing + unexpected}")
    return module.eval()


def into_jax(function: Callable[..., Any], values: Values) -> Program:
    """Return the function and its weights."""
    import jax

    return function, {name: jax.numpy.asarray(value) for name, value in values.items()}
