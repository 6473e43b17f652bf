"""Look-ups in tables: of integers a search among sorted keys; of strings, which are values of the host, by the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.tensorflow.rule import EVERY, rule
from tensorgraft.frontends.tensorflow.tables import LookupTable
from tensorgraft.frontends.tensorflow.values import is_known, lifted
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend

WRITTEN = (
    "a look-up table that can be written is read in a program that is being compiled, which would keep what it holds"
    " now: call the program without compiling it, or use tf.lookup.StaticHashTable"
)


def _content(xp: Backend, table: LookupTable, *key_and_value: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    key, value = key_and_value
    if (xp.in_trace() or xp.is_tracing()) and not table.is_fixed((key, value)):
        raise TracedValueError(WRITTEN)
    return table.content((key, value))


@rule("LookupTableFindV2", either=EVERY, folds=False)
def find(xp: Backend, table: LookupTable, keys: Any, default: Any, *, Tin: np.dtype, Tout: np.dtype) -> Any:
    table_keys, values = _content(xp, table, Tin, Tout)
    if values.ndim != 1:
        raise NotImplementedError(
            "a look-up table has rows as values: only tables with one value for each key are supported"
        )
    if not is_known(keys) and ("O" in (table_keys.dtype.kind, values.dtype.kind)):
        if xp.is_traced(keys):
            raise TracedValueError("a look-up table of strings is read on the host, but its keys are being traced")
        keys = xp.to_numpy(keys)
    if is_known(keys):
        if not is_known(default):
            default = xp.to_numpy(default)
        pairs = dict(zip(table_keys.tolist(), values, strict=True))
        matches = [pairs.get(k, default.reshape(-1)[0]) for k in map(_plain, np.asarray(keys).reshape(-1).tolist())]
        return np.asarray(matches, values.dtype).reshape(keys.shape)
    default = xp.broadcast_to(lifted(xp, default), xp.shape(keys))
    if not table_keys.size:
        return default
    order = np.argsort(table_keys, kind="stable")
    ascending = lifted(xp, table_keys[order])
    at = xp.clip(xp.astype(xp.searchsorted(ascending, keys), dtypes.int64), 0, table_keys.size - 1)
    return xp.where(xp.equal(xp.take(ascending, at, 0), keys), xp.take(lifted(xp, values[order]), at, 0), default)


def _plain(key: Any) -> Any:
    """TensorFlow's strings are bytes."""
    return key.encode() if isinstance(key, str) else key


@rule("LookupTableSizeV2", either=EVERY, folds=False)
def size(xp: Backend, table: LookupTable) -> np.ndarray:
    if (xp.in_trace() or xp.is_tracing()) and not table.frozen:
        raise TracedValueError(WRITTEN)
    return table.size()
