"""Ragged tensors, composite ones and maps as single values, as lists and loops have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.tensorflow.rule import EVERY, rule
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.frontends.tensorflow.rules.flow.by_tensorflow import FailedCheckError
from tensorgraft.frontends.tensorflow.rules.flow.hosted import on_the_host
from tensorgraft.frontends.tensorflow.values import is_known, lifted
from tensorgraft.frontends.tensorflow.variants import Components, RaggedRows, TensorMap, key_of
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

# ---- ragged ----------------------------------------------------------------------------------------------------------


def _splits(xp: Backend, splits: Sequence[Any]) -> tuple[np.ndarray, ...]:
    for x in splits:
        if not is_known(x) and xp.is_traced(x):
            raise TracedValueError(
                "rows of a ragged tensor are separated (tf.map_fn), but its row splits are being traced: call the"
                " program without compiling it"
            )
    return tuple(on_the_host(xp, x) for x in splits)


@rule("RaggedTensorToVariant", either=EVERY, folds=False)
def from_ragged(xp: Backend, *operands: Any, batched_input: bool) -> Any:
    """Return a variant for each row, or (not batched) one for all."""
    *splits, values = operands
    known, values = _splits(xp, splits), lifted(xp, values)
    if not batched_input:
        return RaggedRows(known, values)
    rows = []
    for a, b in zip(known[0][:-1].tolist(), known[0][1:].tolist(), strict=True):
        inner = []
        for split in known[1:]:
            part = split[a : b + 1]
            inner.append(part - part[:1])
            a, b = int(split[a]), int(split[b])
        rows.append(RaggedRows(tuple(inner), xp.take_slice(values, 0, a, b)))
    return tuple(rows)


@rule("RaggedTensorFromVariant", either=EVERY, folds=False)
def to_ragged(xp: Backend, encoded: Any, *, output_ragged_rank: int, Tsplits: np.dtype, Tvalues: np.dtype) -> list[Any]:
    if isinstance(encoded, RaggedRows):
        return [*(s.astype(Tsplits) for s in encoded.splits), encoded.values]
    rows = list(encoded)
    if any(not isinstance(row, RaggedRows) for row in rows):
        raise NotImplementedError(
            "tensors of ragged tensors with more than one axis are not supported: use one axis, with nested tf.map_fn"
        )
    splits = [np.cumsum([0, *map(len, rows)])]
    for axis in range(output_ragged_rank - 1):
        parts = [np.diff(row.splits[axis]) for row in rows]
        splits.append(np.cumsum([0, *np.concatenate([*parts, np.zeros(0, np.int64)]).tolist()]))
    values = [lifted(xp, row.values) for row in rows]
    return [*(s.astype(Tsplits) for s in splits), xp.concat(values, axis=0) if values else xp.zeros((0,), Tvalues)]


@rule("RaggedTensorToVariantGradient", either=EVERY, folds=False)
def from_ragged_grad(xp: Backend, encoded: Any, splits: Any, shape: Any, *, Tvalues: np.dtype) -> Array:
    extents = ints(on_the_host(xp, shape))
    rows = [encoded] if isinstance(encoded, RaggedRows) else list(encoded)
    parts = [lifted(xp, row.values) for row in rows]
    parts = [x for x in parts if math.prod(xp.shape(x))]
    joined = xp.concat(parts, axis=0) if parts else xp.zeros(extents, Tvalues)
    return xp.reshape(joined, extents)


# ---- composite -------------------------------------------------------------------------------------------------------


@rule("CompositeTensorVariantFromComponents", either=EVERY, folds=False)
def from_components(xp: Backend, *components: Any) -> Components:
    return Components(components)


@rule("CompositeTensorVariantToComponents", either=EVERY, folds=False)
def to_components(xp: Backend, encoded: Components) -> list[Any]:
    return list(encoded.parts)


# ---- maps ------------------------------------------------------------------------------------------------------------


@rule("EmptyTensorMap", either=EVERY, folds=False)
def empty_map(xp: Backend) -> TensorMap:
    return TensorMap({})


@rule("TensorMapInsert", either=EVERY, folds=False)
def insert(xp: Backend, tensor_map: TensorMap, key: Any, value: Any) -> TensorMap:
    by, host = key_of(xp, key)
    return TensorMap({**tensor_map.items, by: (host, value)})


@rule("TensorMapLookup", either=EVERY, folds=False)
def look_up(xp: Backend, tensor_map: TensorMap, key: Any) -> Any:
    by, host = key_of(xp, key)
    if by not in tensor_map.items:
        raise FailedCheckError(f"Trying to lookup non-existent key. Could not find key {host}.")
    return tensor_map.items[by][1]


@rule("TensorMapErase", either=EVERY, folds=False)
def erase(xp: Backend, tensor_map: TensorMap, key: Any) -> TensorMap:
    by, host = key_of(xp, key)
    if by not in tensor_map.items:
        raise FailedCheckError(f"Trying to erase non-existent item. Could not find key {host}.")
    return TensorMap({k: item for k, item in tensor_map.items.items() if k != by})


@rule("TensorMapHasKey", either=EVERY, folds=False)
def has_key(xp: Backend, tensor_map: TensorMap, key: Any) -> np.ndarray:
    return np.asarray(key_of(xp, key)[0] in tensor_map.items)


@rule("TensorMapSize", either=EVERY, folds=False)
def size(xp: Backend, tensor_map: TensorMap) -> np.ndarray:
    return np.asarray(len(tensor_map.items), np.int32)


@rule("TensorMapStackKeys", either=EVERY, folds=False)
def keys(xp: Backend, tensor_map: TensorMap, *, key_dtype: np.dtype) -> np.ndarray:
    """Return the keys in the order of insertion: TensorFlow promises no order."""
    return np.stack([key for key, _ in tensor_map.items.values()]) if tensor_map.items else np.zeros((0,), key_dtype)
