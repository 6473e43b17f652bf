"""Values on their way between TensorFlow and a backend, in the same memory where both can take it."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.framework.ops import EagerTensor

from tensorgraft.hub.backend import Backend

Array = Any
_COPIED = 4096  # bytes: a copy of no more is quicker than to share memory
_ALIGNED = 64  # bytes: what TensorFlow's kernels ask of memory
_assigning_functions: dict[tuple[tf.DType, ...], tuple[Any, bytes]] = {}
_IN_THIS_THREAD = ("executor_type", "SINGLE_THREADED_EXECUTOR", "config_proto", b"")
_HERE = "/job:localhost/replica:0/task:0/device:CPU:0"


def view(tensor: tf.Tensor) -> np.ndarray:
    """What a tensor holds, in its own memory, which stays as it is: TensorFlow writes what nobody else holds."""
    return np.asarray(tensor._numpy())


def tensor_of(xp: Backend, x: Array) -> tf.Tensor:
    """An array as an eager tensor, in the same memory where TensorFlow can take it: it never writes that."""
    return tensor_and_mark(xp, x)[0]


def tensor_and_mark(xp: Backend, x: Array) -> tuple[tf.Tensor, Any]:
    """(the tensor, its mark)"""
    if isinstance(x, tf.Tensor):
        return x, mark_of(x)
    host = xp.to_numpy(x)  # on a CPU the same memory, once it has been computed
    if host.nbytes > _COPIED and host.flags.c_contiguous:
        address = host.__array_interface__["data"][0]
        if address % _ALIGNED == 0:
            try:
                return tf.experimental.dlpack.from_dlpack(x.__dlpack__()), (address, host.shape)
            except (BufferError, TypeError, ValueError, RuntimeError, tf.errors.OpError):
                pass  # a dtype or a device that the protocol, or one side, does not know: a copy serves
    tensor = EagerTensor(host, _HERE, None)
    return tensor, mark_of(tensor)


def mark_of(tensor: tf.Tensor) -> Any:
    """By which a value is known to be the same: where it lies; of a number what it is; None where nothing says."""
    values = tensor._numpy()
    if not tensor.ndim:
        return values.tobytes()
    return (values.__array_interface__["data"][0], values.shape) if values.size else None


def array_of(xp: Backend, tensor: tf.Tensor) -> Array:
    """An eager tensor as an array of the backend."""
    array = xp.operand(tensor)
    return xp.adopt(view(tensor)) if array is None else array


def read_variables(handles: list[tf.Tensor], dtypes: tuple[int, ...]) -> list[tf.Tensor]:
    """All in one operation, which costs little more than one of them. `dtypes`: TensorFlow's numbers of these."""
    if not handles:
        return []
    attributes = ("N", len(handles), "dtypes", dtypes)
    return execute.execute("_ReadVariablesOp", len(handles), handles, attributes, context.context())


def assign_variables(handles: list[tf.Tensor], values: list[tf.Tensor]) -> None:
    """All in one function."""
    if handles:
        values = [in_dtype_of(handle, x) for handle, x in zip(handles, values, strict=True)]
        name = _assigning(tuple(x.dtype for x in values))
        execute.execute(name, 0, [*handles, *values], _IN_THIS_THREAD, context.context())


def in_dtype_of(handle: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """A value in the dtype of the variable that it is for: quantised ones are plain integers elsewhere."""
    dtype = tf.as_dtype(handle._handle_data.shape_and_type[0].dtype)
    return tf.bitcast(x, dtype) if dtype.is_quantized and dtype != x.dtype else x


def _assigning(dtypes: tuple[tf.DType, ...]) -> bytes:
    known = _assigning_functions
    if dtypes not in known:

        def assign(handles: list[tf.Tensor], values: list[tf.Tensor]) -> None:
            for handle, value in zip(handles, values, strict=True):
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)

        handles = [tf.TensorSpec((), tf.resource)] * len(dtypes)
        traced = tf.function(assign, autograph=False).get_concrete_function(
            handles, [tf.TensorSpec(None, dtype) for dtype in dtypes]
        )
        known[dtypes] = traced, traced._inference_function.name
    return known[dtypes][1]
