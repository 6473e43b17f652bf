"""Shapes of the results of functions of a framework's own arrays, computed by that framework."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.hub.abstract import ShapeDtype

Function = Callable[..., Any]


def kind_of(x: Any) -> str | None:
    """Return the framework to which `x`, a description of an array or a module, belongs (for JAX also a pytree of a
    class of its own with arrays in it, as Equinox's modules are); None for anything else."""
    for name, module, attributes in (
        ("jax", "jax", ("ShapeDtypeStruct",)),
        ("tensorflow", "tensorflow", ("TensorSpec", "Module")),
        ("torch", "torch.nn", ("Module",)),
    ):
        imported_module = sys.modules.get(module)
        if imported_module is not None and isinstance(
            x, tuple(getattr(imported_module, a) for a in attributes if hasattr(imported_module, a))
        ):
            return name
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(x, keras.Layer):
        return keras.backend.backend()
    jax = sys.modules.get("jax")
    if jax is not None and any(isinstance(y, jax.Array) for y in jax.tree.leaves(x) if y is not x):
        return "jax"
    return None


def of_jax(fn: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    import jax

    leaves, structure = jax.tree.flatten((fn, tuple(args), kwargs))
    at = [i for i, x in enumerate(leaves) if isinstance(x, jax.Array | jax.ShapeDtypeStruct | np.ndarray | ShapeDtype)]
    specs = [
        jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, ShapeDtype) else x for x in (leaves[i] for i in at)
    ]
    outputs: dict[str, Any] = {}
    from tensorgraft.frontends.jax import traced_value_errors

    def flat(*arrays: Any) -> list[Any]:
        new_leaves = list(leaves)
        for i, x in zip(at, arrays, strict=True):
            new_leaves[i] = x
        function, positional, named = jax.tree.unflatten(structure, new_leaves)
        try:
            result = function(*positional, **named)
        except Exception as error:
            raise traced_value_errors.Failed(error) from error
        out, outputs["structure"] = jax.tree.flatten(result)
        outputs["static"] = [None if isinstance(x, jax.Array | np.ndarray) else x for x in out]
        return [x for x in out if isinstance(x, jax.Array | np.ndarray)]

    failed = None
    try:
        remaining = iter(jax.eval_shape(flat, *specs))
    except traced_value_errors.Failed as error:
        failed = error
    if failed is not None:
        traced_value_errors.raise_(failed, "filter_eval_shape", fn)
    shapes = []
    for x in outputs["static"]:
        shapes.append(ShapeDtype(tuple((like := next(remaining)).shape), like.dtype) if x is None else x)
    return jax.tree.unflatten(outputs["structure"], shapes)


def of_torch(fn: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    from tensorgraft.transforms import torch_shapes  # another version of PyTorch may lack names that it imports

    return torch_shapes.evaluate(fn, args, kwargs)


def of_tensorflow(fn: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    import tensorflow as tf

    leaves = tf.nest.flatten((tuple(args), kwargs))
    kinds = (tf.Tensor, tf.Variable, tf.TensorSpec, np.ndarray, ShapeDtype)
    at = [i for i, x in enumerate(leaves) if isinstance(x, kinds) and not isinstance(x, tf.Variable)]
    specs = [leaves[i] if isinstance(leaves[i], tf.TensorSpec) else tf.TensorSpec(leaves[i].shape, leaves[i].dtype)
             for i in at]  # fmt: skip
    outputs: dict[str, Any] = {}

    def flat(*arrays: Any) -> list[Any]:
        new_leaves = list(leaves)
        for i, x in zip(at, arrays, strict=True):
            new_leaves[i] = x
        positional, named = tf.nest.pack_sequence_as((tuple(args), kwargs), new_leaves)
        out = outputs["out"] = fn(*positional, **named)
        return [tf.convert_to_tensor(x) for x in tf.nest.flatten(out) if isinstance(x, tf.Tensor | tf.Variable)]

    tf.function(flat).get_concrete_function(*specs)
    return tf.nest.map_structure(
        lambda x: (
            ShapeDtype(tuple(x.shape), np.dtype(x.dtype.as_numpy_dtype))
            if isinstance(x, tf.Tensor | tf.Variable)
            else x
        ),
        outputs["out"],
    )


EVALUATE: dict[str, Callable[[Function, Sequence[Any], dict[str, Any]], Any]] = {
    "jax": of_jax,
    "torch": of_torch,
    "tensorflow": of_tensorflow,
}
