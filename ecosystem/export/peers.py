"""Other exporters, called as their documentation says, with the batch and the length open."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Symbols = Sequence[Sequence[Any]]  # for each array its shape, in which open extents are names


def _torch_shapes(args: Any, kwargs: Any, symbols: Symbols) -> Any:
    """Return the argument `dynamic_shapes`, in the structure of the arguments."""
    import torch
    from torch.export import Dim
    from torch.utils import _pytree as pytree

    leaves, structure = pytree.tree_flatten((args, kwargs))
    shapes = [{i: Dim.AUTO for i, n in enumerate(s) if isinstance(n, str)} for s in symbols]
    assert len(leaves) == len(shapes) and all(isinstance(x, torch.Tensor) for x in leaves)
    positional, named = pytree.tree_unflatten(shapes, structure)
    return positional, named


def torch_onnx(program: Any, args: Any, kwargs: Any, symbols: Symbols, path: str) -> None:
    import torch

    positional, named = _torch_shapes(args, kwargs, symbols)
    torch.onnx.export(
        program, args, path, kwargs=kwargs, dynamo=True, external_data=False, verbose=False,
        dynamic_shapes=named or positional,
    )  # fmt: skip


def torch_export(program: Any, args: Any, kwargs: Any, symbols: Symbols, path: str) -> None:
    import torch

    positional, named = _torch_shapes(args, kwargs, symbols)
    with torch.no_grad():
        torch.export.save(torch.export.export(program, args, kwargs, dynamic_shapes=named or positional), path)


def litert_torch(program: Any, args: Any, kwargs: Any, symbols: Symbols, path: str) -> None:
    import litert_torch as converter

    positional, named = _torch_shapes(args, kwargs, symbols)
    has_open = any(isinstance(n, str) for s in symbols for n in s)
    shapes = {"dynamic_shapes": named or positional} if has_open else {}
    converter.convert(program, args, kwargs or None, **shapes).export(path)


def _jax_specs(args: Any, kwargs: Any, symbols: Symbols) -> Any:
    """Return (specifications of the arrays, the function's arguments out of these)."""
    import jax
    from jax import export

    leaves, structure = jax.tree.flatten((args, kwargs))
    scope = export.SymbolicScope()
    shapes = [export.symbolic_shape(", ".join(map(str, s)), scope=scope) if s else () for s in symbols]
    specs = [jax.ShapeDtypeStruct(s, x.dtype) for s, x in zip(shapes, leaves, strict=True)]
    return specs, lambda new: jax.tree.unflatten(structure, new)


def jax_export(program: Any, args: Any, kwargs: Any, symbols: Symbols, path: str) -> None:
    import jax
    from jax import export

    specs, arguments = _jax_specs(args, kwargs, symbols)
    args, kwargs = arguments(specs)
    function = jax.jit(lambda *args, **kwargs: program(*args, **kwargs))
    exported = export.export(function, platforms=("cpu", "cuda", "tpu"))(*args, **kwargs)
    with open(path, "wb") as file:
        file.write(exported.serialize())


def jax2onnx(program: Any, args: Any, kwargs: Any, symbols: Symbols, path: str) -> None:
    import jax
    from jax2onnx import to_onnx

    specs, arguments = _jax_specs(args, kwargs, symbols)

    def function(*arrays: Any) -> Any:
        positional, named = arguments(arrays)
        return tuple(jax.tree.leaves(program(*positional, **named)))

    to_onnx(function, inputs=specs, return_mode="file", output_path=path)


def _tensorflow_specs(args: Any, symbols: Symbols) -> Any:
    import tensorflow as tf

    shapes = [[None if isinstance(n, str) else n for n in s] for s in symbols]
    leaves = tf.nest.flatten(args)
    names = sorted(args[0]) if isinstance(args[0], dict) else [f"x{k}" for k in range(len(leaves))]
    specs = [tf.TensorSpec(s, x.dtype, name=n) for s, x, n in zip(shapes, leaves, names, strict=True)]
    return tf.nest.pack_sequence_as(args, specs)


def _function(program: Any, signature: Any) -> Any:
    import tensorflow as tf

    return tf.function(lambda *args: program(*args), input_signature=signature)


def tf2onnx(program: Any, args: Any, kwargs: Any, symbols: Symbols, path: str) -> None:
    import tf2onnx as converter

    signature = _tensorflow_specs(args, symbols)
    converter.convert.from_function(_function(program, signature), signature, opset=18, output_path=path)


def saved_model(program: Any, args: Any, kwargs: Any, symbols: Symbols, path: str) -> None:
    import keras
    import tensorflow as tf

    signature = _tensorflow_specs(args, symbols)
    if isinstance(program, keras.Model):
        program.export(path, verbose=False, input_signature=list(signature))
        return
    module = tf.Module()
    module.serve = program  # a training step: a function, whose variables are those of the model
    module.owned = list(program.get_concrete_function(*signature).variables)
    tf.saved_model.save(module, path, signatures=program.get_concrete_function(*signature))


def litert(program: Any, args: Any, kwargs: Any, symbols: Symbols, path: str) -> None:
    import tensorflow as tf

    signature = _tensorflow_specs(args, symbols)
    concrete = _function(program, signature).get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], program)
    with open(path, "wb") as file:
        file.write(converter.convert())


WRITERS: dict[str, Callable[[Any, Any, Any, Symbols, str], None]] = {
    "torch.onnx": torch_onnx,
    "torch.export": torch_export,
    "litert-torch": litert_torch,
    "jax.export": jax_export,
    "jax2onnx": jax2onnx,
    "tf2onnx": tf2onnx,
    "tf.saved_model": saved_model,
    "TFLiteConverter": litert,
}


def size_of(path: str) -> int:
    """Return the bytes of a file with what belongs beside it, or of a folder."""
    if os.path.isdir(path):
        return sum(os.path.getsize(os.path.join(at, f)) for at, _, names in os.walk(path) for f in names)
    beside = f"{path}.data"
    return os.path.getsize(path) + (os.path.getsize(beside) if os.path.exists(beside) else 0)


def as_numpy(x: Any) -> np.ndarray:
    if hasattr(x, "detach"):
        x = x.detach()
    return np.asarray(x)
