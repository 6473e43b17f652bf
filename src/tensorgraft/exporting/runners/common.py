"""Functions that all runners have. `script` writes them into each."""

import glob
import json
import os
import sys

import ml_dtypes
import numpy as np


def hide(*names):
    """Make imports of frameworks fail that an exported file has to do without."""
    sys.modules.update(dict.fromkeys(names))


def main(load, array):
    """Write the results of `load(path, job)(args, kwargs)` beside each example; `array` makes an array of the
    framework."""
    path, folder = sys.argv[1:]
    with open(os.path.join(folder, "job.json")) as file:
        job = json.load(file)
    for inputs in sorted(glob.glob(os.path.join(folder, "inputs_*.npz"))):
        found = dict(np.load(inputs))
        arrays = [found[f"a{k}"].astype(dtype_of(name)) for k, name in enumerate(job["dtypes"])]
        args, kwargs = filled(job["structure"], [array(x) for x in arrays])
        outputs = flat(load(path, job, folder)(args, kwargs))
        np.savez(inputs.replace("inputs_", "outputs_"), **{f"o:{k}": widened(x) for k, x in outputs.items()})


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def filled(structure, arrays):
    if isinstance(structure, int):
        return arrays[structure]
    if "dict" in structure:
        return {name: filled(s, arrays) for name, s in structure["dict"].items()}
    kind, parts = next(iter(structure.items()))
    return (tuple if kind == "tuple" else list)(filled(s, arrays) for s in parts)


def positions(structure, tree):
    """Return {position: array} for the arrays in a tree."""
    if isinstance(structure, int):
        return {structure: tree}
    if "dict" in structure:
        return {k: x for name, s in structure["dict"].items() for k, x in positions(s, tree[name]).items()}
    (parts,) = structure.values()
    return {k: x for s, t in zip(parts, tree, strict=True) for k, x in positions(s, t).items()}


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
