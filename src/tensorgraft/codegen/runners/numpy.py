"""Runs a generated NumPy or Array API file: python -I numpy.py model.py model.safetensors FUNCTION JOB."""

import importlib.util
import sys

sys.path = [p for p in sys.path if not p.endswith("runners")]  # this file is not NumPy
for _name in ("torch", "tensorgraft", "tensorflow", "jax"):
    sys.modules[_name] = None  # type: ignore[assignment]
import glob
import os

import numpy as np


def main() -> None:
    source, weights, function, job = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("model", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    state: tuple = ()
    if hasattr(module, "load_weights"):
        state = module.load_weights(weights)
        state = state if isinstance(state, tuple) else (state,)
    for path in sorted(glob.glob(os.path.join(job, "inputs_*.npz"))):
        data = np.load(path)
        arrays = [data[f"a{i}"] for i in range(sum(k[0] == "a" for k in data))]
        if "key" in data:
            arrays[-1] = SameGenerator() if "numbers" in data else np.random.default_rng(arrays[-1])
        with np.errstate(all="ignore"):
            out = flat(getattr(module, function)(*state, *arrays))
        found = {f"o:{k}": widened(x) for k, x in out.items() if hasattr(x, "dtype")}
        np.savez(path.replace("inputs_", "outputs_"), **found)


def uniform(shape):
    """Return the float32 numbers that stand for random ones while results are compared."""
    shape = tuple(int(n) for n in shape)
    return ((np.arange(np.prod(shape, dtype=int)) * 0.6180339887498949 + 0.1) % 1).astype(np.float32).reshape(shape)


def normal(shape):
    return 2 * np.cos(6 * uniform(shape))


class SameGenerator:
    """A generator whose numbers are those that were drawn for the program that results are compared with."""

    def random(self, shape=(), dtype=np.float32):
        return uniform(shape).astype(dtype)

    def standard_normal(self, shape=(), dtype=np.float32):
        return normal(shape).astype(dtype)

    def standard_exponential(self, shape=(), dtype=np.float32):
        return -np.log1p(-uniform(shape)).astype(dtype)

    def integers(self, low, high, size=(), dtype=np.int64):
        return (low + np.floor(uniform(size) * (high - low))).astype(dtype)

    def permutation(self, n):
        return np.argsort(uniform((n,)))

    def spawn(self, n):
        return [self] * n


def flat(tree, prefix=""):
    """The leaves of tuples, lists and dictionaries by their places, None left out."""
    if isinstance(tree, dict):
        return {k: v for name, child in tree.items() for k, v in flat(child, f"{prefix}{name}.").items()}
    if isinstance(tree, list | tuple):
        return {k: v for i, child in enumerate(tree) for k, v in flat(child, f"{prefix}{i}.").items()}
    return {} if tree is None else {prefix[:-1] or "result": tree}


def widened(x):
    x = np.asarray(x)
    return x if x.dtype.isbuiltin == 1 else x.astype(np.float32)


main()
