"""What is seen of results and variables, and gradients as each framework takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from tests.fuzz.kinds.jax import host, native

import tensorflow as tf
from tensorgraft.frontends.tensorflow.composites import CompositeArrays


def leaves(x: Any) -> dict[str, np.ndarray]:
    """By name, of pytrees of arrays."""
    flat = {
        n: [part for leaf in tf.nest.flatten(v, expand_composites=True) for part in whole(leaf)] for n, v in x.items()
    }
    return {f"{n}.{i}": host(part) for n, parts in flat.items() for i, part in enumerate(parts)}


def whole(leaf: Any) -> Any:
    return leaf.components if isinstance(leaf, CompositeArrays) else [leaf]


def states(variables: dict[str, Any]) -> dict[str, np.ndarray]:
    """Of variables, and of those of layers, optimizers and generators."""
    return leaves({n: x if isinstance(x, tf.Variable) else parts(x) for n, x in variables.items()})


def parts(x: Any) -> list[Any]:
    return [x.state] if isinstance(x, tf.random.Generator) else [w.value for w in x.variables]


def summed(found: Any) -> list[Any]:
    """The floats among the results that a gradient is taken of."""
    flat = tf.nest.flatten(found, expand_composites=True)
    return [x for leaf in flat for x in whole(leaf) if "float" in str(x.dtype)]


def tape_gradient(f: Callable[..., Any], given: list[Any]) -> dict[str, Any]:
    floats = [x for x in given if x.dtype.is_floating]
    if not floats:
        return {}
    with tf.GradientTape() as tape:
        tape.watch(floats)
        total = tf.add_n([tf.reduce_sum(tf.cast(x, tf.float64)) for x in summed(f(*given))])
    return {"gradient": tape.gradient(total, floats, unconnected_gradients="zero")}


def own_gradient(f: Callable[..., Any], given: list[Any], onto: str) -> dict[str, Any]:
    floats = [i for i, x in enumerate(given) if x.dtype.is_floating]
    if not floats:
        return {}
    if onto == "jax":

        def total(*some: Any) -> Any:
            args = [*map(jax.numpy.asarray, map(np.asarray, given))]
            for i, x in zip(floats, some, strict=True):
                args[i] = x
            return sum(x.astype("float64").sum() for x in summed(f(*args)))

        with jax.enable_x64(True):
            return {"gradient": jax.grad(total, tuple(range(len(floats))))(*(np.asarray(given[i]) for i in floats))}
    import torch

    args = [native(np.asarray(x), "torch") for x in given]
    inputs = [args[i].requires_grad_() for i in floats]
    total_here: Any = sum(x.double().sum() for x in summed(f(*args)))
    if not getattr(total_here, "requires_grad", False):
        return {"gradient": [torch.zeros_like(x) for x in inputs]}
    found = torch.autograd.grad(total_here, inputs, allow_unused=True)
    return {"gradient": [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]}
