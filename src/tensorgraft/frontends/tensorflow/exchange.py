"""Values on their way between TensorFlow and a backend, in the same memory where both can take it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context, execute
from tensorflow.python.framework.ops import EagerTensor

from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

_assigning_functions: dict[tuple[tf.DType, ...], tuple[Any, bytes]] = {}
_IN_THIS_THREAD = ("executor_type", "SINGLE_THREADED_EXECUTOR", "config_proto", b"")
_HERE = "/job:localhost/replica:0/task:0/device:CPU:0"
_shape = EagerTensor._shape_tuple
_capsule = pywrap_tfe.TFE_ToDlpackCapsule
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_first = ctypes.c_void_p.from_address


def view(tensor: tf.Tensor) -> np.ndarray:
    """Return a tensor's value in the tensor's memory. It does not change: TensorFlow writes only memory without other
    references."""
    return np.asarray(tensor._numpy())


def tensor_of(xp: Backend, x: Array) -> tf.Tensor:
    """Return an array as an eager tensor, in the same memory where TensorFlow can take it: it never writes that."""
    return x if isinstance(x, tf.Tensor) else tensors_of(xp, [x])[0]


def tensors_of(xp: Backend, arrays: Sequence[Array]) -> list[tf.Tensor]:
    """Convert many arrays without a Python function call for each: after a large program has run, the processor's
    caches are cold, and a call takes ten times as long as usual."""
    capsules, runtime = xp.capsules(arrays), context.context()._handle
    if capsules is not None:
        try:
            return [pywrap_tfe.TFE_FromDlpackCapsule(x, runtime) for x in capsules]
        except tf.errors.OpError:
            pass  # a dtype, or a layout, that TensorFlow does not take so
    return [EagerTensor(xp.to_numpy(x), _HERE, None) for x in arrays]


def marks_of(tensors: Sequence[tf.Tensor]) -> tuple[list[Any], list[Any]]:
    """Return the addresses and shapes of tensors, by which values are known to be the same while the tensors are kept.
    Of a dtype that DLPack lacks nothing is known, which a new `object()` says in place of the address."""
    try:  # the first field of what a capsule points to
        addresses: list[Any] = [_first(_pointer(x, b"dltensor")).value for x in map(_capsule, tensors)]
    except tf.errors.OpError:
        addresses = [object() if len(tensors) == 1 else marks_of([x])[0][0] for x in tensors]
    return addresses, [*map(_shape, tensors)]


def array_of(xp: Backend, tensor: tf.Tensor) -> Array:
    """Return an eager tensor as an array of the backend."""
    array = xp.operand(tensor)
    return xp.adopt(view(tensor)) if array is None else array


def read_variables(handles: list[tf.Tensor], dtypes: tuple[int, ...]) -> list[tf.Tensor]:
    """Read all variables in one operation, which costs little more than one. `dtypes`: TensorFlow's numbers."""
    if not handles:
        return []
    attributes = ("N", len(handles), "dtypes", dtypes)
    return execute.execute("_ReadVariablesOp", len(handles), handles, attributes, context.context())


def assign_variables(handles: Sequence[tf.Tensor], values: Sequence[tf.Tensor], assigning: bytes) -> None:
    """Write all variables in one function, that of their dtypes; quantised values are plain integers elsewhere."""
    execute.execute(assigning, 0, [*handles, *values], _IN_THIS_THREAD, context.context())


def in_dtype_of(handle: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Return a value in the dtype of the variable that it is for: quantised values are plain integers elsewhere."""
    dtype = tf.as_dtype(handle._handle_data.shape_and_type[0].dtype)
    return tf.bitcast(x, dtype) if dtype.is_quantized and dtype != x.dtype else x


def assigning(dtypes: tuple[tf.DType, ...]) -> bytes:
    """Return TensorFlow's name of the function that writes variables of these dtypes."""
    known = _assigning_functions
    if dtypes not in known:

        def assign(handles: list[tf.Tensor], values: list[tf.Tensor]) -> None:
            for handle, value in zip(handles, values, strict=True):
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)

        handles = [tf.TensorSpec((), tf.resource)] * len(dtypes)
        traced = tf.function(assign, autograph=False).get_concrete_function(
            handles, [tf.TensorSpec(None, dtype) for dtype in dtypes]
        )
        known[dtypes] = traced, traced.inference_fn.name
    return known[dtypes][1]
