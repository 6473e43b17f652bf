"""Functions that all runners have. `script` writes them into each."""

import glob
import importlib.util
import os
import sys

import numpy as np


class Absent:
    """Refuses to import frameworks that a generated file has to do without."""

    def __init__(self, *names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(
                f"{name} must not be imported here: the generated file has to run without it", name=name
            )


def hide(*names):
    sys.meta_path.insert(0, Absent(*names))


def main(compute):
    """Write the results of `compute(module, name, weights, arrays, example)` next to each example."""
    source, weights, name, job = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("model", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for path in sorted(glob.glob(os.path.join(job, "inputs_*.npz"))):
        example = dict(np.load(path))
        arrays = [example[f"a{i}"] for i in range(sum(k[0] == "a" for k in example))]
        np.savez(path.replace("inputs_", "outputs_"), **compute(module, name, weights, arrays, example))


def program_of(module, name, weights):
    """Return the program, as it is before its buffers are written, and the state that its function takes first."""
    program = getattr(module, name)
    if not hasattr(module, "load_weights"):
        return (program() if isinstance(program, type) else program), ()
    state = module.load_weights(weights)
    if hasattr(module, "named") or isinstance(program, type):
        return state, ()
    return program, state if isinstance(state, tuple) else (state,)


def cosines(shape):
    """Return the weights with which the elements of a result are summed up for its gradients."""
    return np.cos(np.arange(np.prod(shape, dtype=int)) * 0.7 + 0.3).reshape(shape)


def uniform(shape):
    """Return the float32 numbers that stand for random ones while results are compared."""
    shape = tuple(int(n) for n in shape)
    return ((np.arange(np.prod(shape, dtype=int)) * 0.6180339887498949 + 0.1) % 1).astype(np.float32).reshape(shape)


def normal(shape):
    return 2 * np.cos(6 * uniform(shape))


def flat(tree, prefix=""):
    """Return the leaves of tuples, lists and dictionaries by their places, None left out."""
    if isinstance(tree, dict):
        return {k: v for name, child in tree.items() for k, v in flat(child, f"{prefix}{name}.").items()}
    if isinstance(tree, list | tuple):
        return {k: v for i, child in enumerate(tree) for k, v in flat(child, f"{prefix}{i}.").items()}
    return {} if tree is None else {prefix[:-1] or "result": tree}


def widened(x):
    x = np.asarray(x)
    return x if x.dtype.isbuiltin == 1 else x.astype(np.float32)
