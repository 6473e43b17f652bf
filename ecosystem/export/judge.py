"""Files in their own runtimes, and how far their results are from the program's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ecosystem.export.peers import as_numpy

# load(path) returns call(names, arrays, args, kwargs) -> arrays
Call = Callable[[Sequence[str], Sequence[np.ndarray], Any, Any], list[np.ndarray]]


def _onnx(path: str) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = [x.name for x in session.get_inputs()]

    def call(names: Sequence[str], arrays: Sequence[np.ndarray], args: Any, kwargs: Any) -> list[np.ndarray]:
        by_name = dict(zip(names, arrays, strict=True))
        if not set(inputs) <= by_name.keys():
            by_name = dict(zip(inputs, arrays, strict=True))
        return list(session.run(None, {name: by_name[name] for name in inputs}))

    return call


def _pt2(path: str) -> Call:
    import torch
    from torch.utils import _pytree as pytree

    module = torch.export.load(path).module()

    def call(names: Any, arrays: Any, args: Any, kwargs: Any) -> list[np.ndarray]:
        args, kwargs = pytree.tree_map(lambda x: torch.from_numpy(np.array(as_numpy(x))), (args, kwargs))
        with torch.no_grad():
            return [as_numpy(x) for x in pytree.tree_leaves(module(*args, **kwargs)) if x is not None]

    return call


def _stablehlo(path: str) -> Call:
    import jax
    from jax import export

    with open(path, "rb") as file:
        exported = export.deserialize(bytearray(file.read()))

    def call(names: Any, arrays: Any, args: Any, kwargs: Any) -> list[np.ndarray]:
        args, kwargs = jax.tree.map(lambda x: jax.numpy.asarray(as_numpy(x)), (args, kwargs))
        return [np.asarray(x) for x in jax.tree.leaves(exported.call(*args, **kwargs))]

    return call


def _saved_model(path: str) -> Call:
    import tensorflow as tf

    loaded = tf.saved_model.load(path)

    def call(names: Any, arrays: Any, args: Any, kwargs: Any) -> list[np.ndarray]:
        args, kwargs = tf.nest.map_structure(lambda x: tf.constant(as_numpy(x)), (args, kwargs))
        function = loaded if callable(loaded) else loaded.serve  # `loaded` owns the variables of its functions
        return [x.numpy() for x in tf.nest.flatten(function(*args, **kwargs))]

    return call


def _litert(path: str) -> Call:
    import tensorflow as tf

    from tensorgraft.exporting.subject import tensor_name

    interpreter = tf.lite.Interpreter(model_path=path)
    (name,) = interpreter.get_signature_list()
    signature = interpreter.get_signature_runner(name)
    inputs = sorted(signature.get_input_details())

    def call(names: Any, arrays: Any, args: Any, kwargs: Any) -> list[np.ndarray]:
        by_name = {tensor_name(name): x for name, x in zip(names, arrays, strict=True)}
        if not set(inputs) <= by_name.keys():
            by_name = dict(zip(inputs, arrays, strict=True))
        details = signature.get_input_details()
        return list(signature(**{n: by_name[n].astype(details[n]["dtype"], copy=False) for n in inputs}).values())

    return call


LOADERS = {"onnx": _onnx, "pt2": _pt2, "stablehlo": _stablehlo, "saved_model": _saved_model, "litert": _litert}


def apart(wanted: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    """Return the largest difference, relative to the largest entry of an array; each array that is wanted is compared
    with the nearest one of its shape, since formats order results by other names.

    Raises ValueError if there is none of its shape.
    """
    worst = 0.0
    for x in wanted:
        same = [y for y in found if y.shape == x.shape]
        if not same:
            raise ValueError(f"no result of shape {x.shape}; shapes are {', '.join(str(y.shape) for y in found)}")
        worst = max(worst, min(_difference(x, y) for y in same))
    return worst


def _difference(x: np.ndarray, y: np.ndarray) -> float:
    if x.size == 0:
        return 0.0
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    a, b = x.astype(wide), y.astype(wide)
    difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.max(difference) / max(float(np.max(np.abs(np.nan_to_num(a)))), 1e-30))
