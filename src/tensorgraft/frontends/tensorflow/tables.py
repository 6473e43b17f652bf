"""Look-up tables: their form in a graph, and how their contents are read from TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np


class LookupTable:
    """The keys and values of a lookup table, which are never arrays of a backend: rules take them as constants.

    Arguments:
        handle: the handle of an initialised table of TensorFlow.
        frozen: whether it is as it was when it was first read; otherwise a table that can be written is read at each
            look-up, and refused where a program is compiled.
    """

    def __init__(self, handle: Any, frozen: bool) -> None:
        self._handle, self.frozen = handle, frozen
        self._content: tuple[np.ndarray, np.ndarray] | None = None
        self._size: np.ndarray | None = None

    def is_fixed(self, dtypes: tuple[np.dtype, np.dtype]) -> bool:
        """Return True if the contents of the table cannot change."""
        return self.frozen or not _can_be_written(self._handle, *dtypes)

    def size(self) -> np.ndarray:
        import tensorflow as tf

        if self._size is not None:
            return self._size
        with tf.init_scope():
            count = np.asarray(tf.raw_ops.LookupTableSizeV2(table_handle=self._handle).numpy())
        if self.frozen:
            self._size = count
        return count

    def content(self, dtypes: tuple[np.dtype, np.dtype]) -> tuple[np.ndarray, np.ndarray]:
        """Return (keys, values), for their dtypes."""
        if self._content is not None:
            return self._content
        import tensorflow as tf

        keys, values = map(tf.as_dtype, dtypes)
        with tf.init_scope():
            pair = tf.raw_ops.LookupTableExportV2(table_handle=self._handle, Tkeys=keys, Tvalues=values)
            content = pair[0].numpy(), pair[1].numpy()
        if self.is_fixed(dtypes):
            self._content = content
        return content


def table_of(handle: Any, frozen: bool) -> LookupTable | None:
    """None for a resource that is no table."""
    import tensorflow as tf

    try:
        with tf.init_scope():
            tf.raw_ops.LookupTableSizeV2(table_handle=handle)
    except tf.errors.FailedPreconditionError as error:
        raise ValueError("a look-up table that the program uses is not initialised") from error
    except tf.errors.OpError:
        return None
    return LookupTable(handle, frozen)


def _can_be_written(handle: Any, key: np.dtype, value: np.dtype) -> bool:
    """Return whether a table takes more keys, found by inserting none."""
    import tensorflow as tf

    empty = [tf.constant([], tf.as_dtype(d)) for d in (key, value)]
    try:
        with tf.init_scope():
            tf.raw_ops.LookupTableInsertV2(table_handle=handle, keys=empty[0], values=empty[1])
    except tf.errors.UnimplementedError:
        return False
    except tf.errors.OpError:  # a table of rows, which can be written
        return True
    return True
