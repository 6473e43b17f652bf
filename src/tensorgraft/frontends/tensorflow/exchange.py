"""Values on their way between TensorFlow and a backend, in the same memory where both can take it."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.framework.ops import EagerTensor

from tensorgraft.hub.backend import Backend

Array = Any
_COPIED = 256  # bytes: a copy of no more is quicker than to share memory
_ALIGNED = 64  # bytes: what TensorFlow's kernels ask of memory
_HERE = "/job:localhost/replica:0/task:0/device:CPU:0"


def view(tensor: tf.Tensor) -> np.ndarray:
    """What a tensor holds, in its own memory, which stays as it is: TensorFlow writes what nobody else holds."""
    return np.asarray(tensor._numpy())


def tensor_of(xp: Backend, x: Array) -> tf.Tensor:
    """An array as an eager tensor, in the same memory where TensorFlow can take it: it never writes that."""
    if isinstance(x, tf.Tensor):
        return x
    host = xp.to_numpy(x)  # on a CPU the same memory, once it has been computed
    if host.nbytes > _COPIED and host.ctypes.data % _ALIGNED == 0 and host.flags.c_contiguous:
        try:
            return tf.experimental.dlpack.from_dlpack(x.__dlpack__())
        except (BufferError, TypeError, ValueError, RuntimeError, tf.errors.OpError):
            pass  # a dtype or a device that the protocol, or one side, does not know: a copy serves
    return EagerTensor(host, _HERE, None)


def array_of(xp: Backend, tensor: tf.Tensor) -> Array:
    """An eager tensor as an array of the backend."""
    array = xp.operand(tensor)
    return xp.adopt(view(tensor)) if array is None else array


def read_variable(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return pywrap_tfe.TFE_Py_FastPathExecute(context.context(), "ReadVariableOp", None, handle, "dtype", dtype)


def assign_variable(handle: tf.Tensor, value: tf.Tensor) -> None:
    pywrap_tfe.TFE_Py_FastPathExecute(
        context.context(), "AssignVariableOp", None, handle, value, "validate_shape", False
    )
