"""Pytrees in files: their arrays under their paths, in the safetensors format (https://github.com/huggingface/safetensors)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import optree
import safetensors

import tensorgraft.hub.dtypes  # noqa: F401  (which gives NumPy the names of small floats)
from tensorgraft.arrays import framework_of, is_array_like
from tensorgraft.files import replacing
from tensorgraft.transforms.filters import filter

_MOST_LINES = 8
# the format's names of dtypes that are not NumPy's names with a number of bits
_NAMED = {"BOOL": "bool", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "C64": "complex64"}
_METADATA = "tensorgraft"  # metadata for dtypes that the format lacks: complex128 is stored as pairs of float64
_NUMBERS = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}


class _Slot(NamedTuple):
    name: str
    leaf: Any
    shape: tuple[int, ...]
    dtype: np.dtype


def tree_serialise_leaves(
    path: str | os.PathLike[str],
    tree: Any,
    filter_spec: Any = is_array_like,
    is_leaf: Callable[[Any], bool] | None = None,
) -> None:
    """Write the arrays of a pytree, of any framework, and its Python numbers (0-dimensional arrays) to a file.

    Each is named by its path, as `layers.0.weight`; other programs can read the file. A previous file is replaced only
    when the new one is complete: it is written under another name and then renamed.

    Arguments:
        filter_spec: which leaves, as `filter` takes it. Others are left out.

    Raises ValueError where two leaves have one name; TypeError for a leaf that cannot be saved.
    """
    slots = _slots("tree_serialise_leaves", tree, filter_spec, is_leaf)
    pairs, specs, alive = [], {}, []
    for slot in slots:
        values = np.asarray(slot.leaf, slot.dtype) if type(slot.leaf) in _NUMBERS else _host(slot)
        values = np.array(values, order="C")
        if slot.dtype == np.complex128:
            pairs.append(slot.name)
            values = values.reshape(*slot.shape, 1).view(np.float64)
        alive.append(values)  # the memory is read below
        specs[slot.name] = safetensors.TensorSpec(
            dtype=values.dtype.name, shape=list(values.shape), data_ptr=values.ctypes.data, data_len=values.nbytes
        )
    with replacing(path) as file:
        safetensors.serialize_file(specs, file.name, {_METADATA: json.dumps({"complex128": pairs})})


def tree_deserialise_leaves(
    path: str | os.PathLike[str],
    like: Any,
    filter_spec: Any = is_array_like,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Return the pytree `like` with the arrays and numbers of a file, in the framework and on the device of its leaves.

    Arguments:
        like: a pytree like the one that was saved; of arrays only shape, dtype and place count. Leaves that have a
            shape and a dtype and are no arrays (`filter_eval_shape`) become arrays on the default device.
        filter_spec: as it was saved.

    Raises ValueError, with a line for every name, shape and dtype that differs, before any array is made; and for a
    file that is broken.
    """
    slots = _slots("tree_deserialise_leaves", like, _or_abstract(filter_spec), is_leaf)
    with open(path, "rb") as file:
        content = file.read()
    try:
        tensors = dict(safetensors.deserialize(content))
        pairs = _pairs(content)
        stored = {name: _stored(spec, name in pairs) for name, spec in tensors.items()}
    except Exception as error:  # safetensors' own, and those of a header that says what there is not
        raise ValueError(f"tree_deserialise_leaves: {os.fspath(path)} is broken: {error}") from error
    problems = [f"{s.name}: is not in the file" for s in slots if s.name not in stored]
    problems += [f"{name}: is not in the tree" for name in stored.keys() - {s.name for s in slots}]
    for s in slots:
        if s.name in stored and stored[s.name] != (s.dtype, s.shape):
            dtype, shape = stored[s.name]
            problems.append(f"{s.name}: {dtype}{list(shape)} in the file, {s.dtype}{list(s.shape)} in the tree")
    if problems:
        omitted = [f"... and {len(problems) - _MOST_LINES} more"] if len(problems) > _MOST_LINES else []
        lines = "\n  ".join(sorted(problems)[:_MOST_LINES] + omitted)
        raise ValueError(f"tree_deserialise_leaves: {os.fspath(path)} does not hold this tree:\n  {lines}")
    new = {}
    for s in slots:
        values = np.frombuffer(tensors[s.name]["data"], s.dtype).reshape(s.shape).copy()
        new[s.name] = _placed_like(values, s.leaf)
    leaves, structure = optree.tree_flatten(like, is_leaf=is_leaf)
    names = [_name(p) for p in optree.tree_paths(like, is_leaf=is_leaf)]
    return optree.tree_unflatten(structure, [new.get(n, x) for n, x in zip(names, leaves, strict=True)])


def _slots(function: str, tree: Any, filter_spec: Any, is_leaf: Callable[[Any], bool] | None) -> list[_Slot]:
    missing_leaf = object()
    selected = optree.tree_leaves(filter(tree, filter_spec, replace=missing_leaf, is_leaf=is_leaf), is_leaf=is_leaf)
    paths = optree.tree_paths(tree, is_leaf=is_leaf)
    out: dict[str, _Slot] = {}
    for p, x in zip(paths, selected, strict=True):
        if x is missing_leaf:
            continue
        name = _name(p)
        if name in out:
            raise ValueError(f"{function}: two leaves are called {name!r}; names are paths, joined by points")
        if type(x) in _NUMBERS:
            out[name] = _Slot(name, x, (), np.dtype(_NUMBERS[type(x)]))
        elif hasattr(x, "shape") and hasattr(x, "dtype"):
            out[name] = _Slot(name, x, tuple(x.shape), _numpy_dtype(x))
        else:
            raise TypeError(f"{function}: {name} is a {type(x).__qualname__}, neither an array nor a number")
    return list(out.values())


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path)) or "value"


def _or_abstract(filter_spec: Any) -> Any:
    if filter_spec is not is_array_like:
        return filter_spec
    return lambda x: is_array_like(x) or (hasattr(x, "shape") and hasattr(x, "dtype"))


def _numpy_dtype(x: Any) -> np.dtype:
    framework = framework_of(x)
    if framework == "torch":
        return np.dtype(str(x.dtype).removeprefix("torch."))
    return np.dtype(x.dtype.as_numpy_dtype) if framework == "tensorflow" else np.dtype(x.dtype)


def _host(slot: _Slot) -> np.ndarray:
    from tensorgraft.frontends.array_api.standard.creation import asarray

    framework, x = framework_of(slot.leaf), slot.leaf
    if framework in ("numpy", "tensorgraft"):
        return np.asarray(x)
    if framework == "torch":
        return np.asarray(asarray(x.detach().cpu()))
    if framework == "tensorflow":
        return np.asarray(x.numpy())
    if framework == "jax":
        return np.asarray(x)
    raise TypeError(f"tree_serialise_leaves: {slot.name} has a shape and a dtype, but no values")


def _placed_like(values: np.ndarray, like: Any) -> Any:
    """Values as an array of the framework and on the device of another."""
    from tensorgraft.frontends.array_api.standard.creation import asarray

    if type(like) in _NUMBERS:
        return type(like)(values[()])
    framework = framework_of(like)
    if framework == "tensorgraft":
        return asarray(values, device=like.device)
    if framework == "numpy":
        return values if isinstance(like, np.ndarray) else values[()]
    if framework == "jax":
        return sys.modules["jax"].device_put(values, like.sharding)
    if framework == "torch":
        torch = sys.modules["torch"]
        tensor = asarray(values, device="torch").native.to(like.device)
        if isinstance(like, torch.nn.Parameter):
            return torch.nn.Parameter(tensor, requires_grad=like.requires_grad)
        return tensor.requires_grad_(like.requires_grad)
    if framework == "tensorflow":
        tf = sys.modules["tensorflow"]
        if isinstance(like, tf.Variable):
            return tf.Variable(values, trainable=like.trainable)
        return tf.constant(values)
    return asarray(values)


def _pairs(content: bytes) -> set[str]:
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return set(json.loads(header.get("__metadata__", {}).get(_METADATA, "{}")).get("complex128", ()))


def _stored(spec: dict[str, Any], pair: bool) -> tuple[np.dtype, tuple[int, ...]]:
    name, shape = spec["dtype"], tuple(spec["shape"])
    if pair:
        if name != "F64" or shape[-1:] != (2,):
            raise ValueError(f"pairs of float64 are declared to be {name}{list(shape)}")
        return np.dtype(np.complex128), shape[:-1]
    return np.dtype(_NAMED.get(name) or {"F": "float", "I": "int", "U": "uint"}[name[0]] + name[1:]), shape
