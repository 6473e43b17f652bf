"""The dtypes that TensorFlow's kernels have and arrays may have, and arrays of them. Of quantised ones an array is a
`Code`, plain integers that say what they are; in a program they are bitcast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tests.frontends.tensorflow.samples import FLOATS, NUMBERS
from tests.frontends.tensorflow.samples_of_quantized import PLAIN, Code

DTYPES = (*NUMBERS, *PLAIN)
Combination = Mapping[str, str]  # type attribute -> dtype


def converted(x: Any, dtype: str, ordered: bool = False) -> np.ndarray:
    """An array of nearly these numbers, which every dtype has. `ordered`: the greater stays the greater, where otherwise
    unsigned integers are moduli."""
    x = np.asarray(x)
    if dtype in PLAIN:
        code = converted(x, np.dtype(PLAIN[dtype]).name, ordered).view(Code)
        code.quantised = dtype
        return code
    kind = tf.as_dtype(dtype).as_numpy_dtype
    if x.dtype == kind:
        return x
    if x.dtype.kind == "c" and not dtype.startswith("complex"):
        x = x.real
    if dtype.startswith("complex"):
        wide = x.astype("complex128")
        return (wide if x.dtype.kind in "cb" else wide + 1j * np.roll(wide, 1)).astype(kind)
    if dtype == "bool":
        return np.asarray(x > 0)
    if dtype in FLOATS:
        return x.astype(kind)
    wide = np.round(x.astype("float64")) if x.dtype.kind not in "iu" else x
    if dtype.startswith("u") and wide.dtype.kind != "u":
        wide = np.maximum(wide, 0) if ordered else np.abs(wide)
    return np.asarray(wide).astype(kind)


def same_kind(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    """What a change of shape has lost: that these are codes."""
    x = np.asarray(x)
    if isinstance(like, Code):
        x = x.view(Code)
        x.quantised = like.quantised
    return x


def quantised(x: Any, like: np.ndarray) -> Any:
    """A tensor of plain integers, in the dtype that it is for TensorFlow."""
    name = getattr(like, "quantised", "")
    return tf.bitcast(x, getattr(tf, name)) if name else x


def plain(y: Any) -> Any:
    is_quantised = isinstance(y, tf.Tensor) and y.dtype.is_quantized
    return tf.bitcast(y, tf.as_dtype(PLAIN[y.dtype.name])) if is_quantised else y
