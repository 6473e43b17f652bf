"""`TensorFlowBackend`: tensors, programs and devices of TensorFlow."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from tensorgraft.backends.tensorflow.control_flow import TensorFlowControlFlow
from tensorgraft.backends.tensorflow.elementwise import TensorFlowElementwise
from tensorgraft.backends.tensorflow.exported import exported
from tensorgraft.backends.tensorflow.fft import TensorFlowFFT
from tensorgraft.backends.tensorflow.framework import EagerTensor, quiet, raw, tf
from tensorgraft.backends.tensorflow.graph import may_be_recorded, order_of
from tensorgraft.backends.tensorflow.indexing import TensorFlowIndexing
from tensorgraft.backends.tensorflow.linalg import TensorFlowLinearAlgebra
from tensorgraft.backends.tensorflow.module import Module, module_class
from tensorgraft.backends.tensorflow.native import differentiable, native_function
from tensorgraft.backends.tensorflow.operation import (
    FLOAT8_AS_FLOAT32,
    NP,
    TF,
    dtype_of,
    is_symbolic,
    is_weak,
    shape_of,
)
from tensorgraft.backends.tensorflow.program import CompiledFunction, TensorFlowProgram
from tensorgraft.backends.tensorflow.reduction import TensorFlowReduction
from tensorgraft.backends.tensorflow.shape import TensorFlowShape
from tensorgraft.backends.tensorflow.sorting import TensorFlowSorting
from tensorgraft.backends.tensorflow.sparse import TensorFlowSparse
from tensorgraft.backends.tensorflow.windowed import TensorFlowWindowed
from tensorgraft.errors import TracedValueError
from tensorgraft.hub import Backend, registry, tiers
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.dlpack import from_dlpack as view_of
from tensorgraft.hub.host_copies import HostCopies
from tensorgraft.hub.interchange import Differentiable, Exported
from tensorgraft.hub.runtime import cpu_devices
from tensorgraft.hub.tape import ByTape

_CPU = 1  # DLPack's number
_ALIGNMENT = 64  # bytes: of Eigen, whatever the processor's vectors
_WORTH_SHARING = 1 << 14  # bytes: fewer are copied in less time


class TensorFlowBackend(
    TensorFlowElementwise,
    TensorFlowReduction,
    TensorFlowShape,
    TensorFlowIndexing,
    TensorFlowSorting,
    TensorFlowSparse,
    TensorFlowLinearAlgebra,
    TensorFlowWindowed,
    TensorFlowFFT,
    TensorFlowControlFlow,
    ByTape,
    Backend,
):
    """Arrays are `tf.Tensor`s, eager or of a graph. Methods may be called inside of `tf.function` and under a
    `tf.GradientTape`."""

    name = "tensorflow"
    grafted_as = "module"
    compiles = True

    def __init__(self, index: int = 0, platform: str | None = None) -> None:
        super().__init__(index, platform)
        devices = _devices(platform)
        if not 0 <= index < len(devices):
            raise ValueError(
                f"TensorFlow has no device {index}{f' on {platform}' if platform else ''}:"
                f" it has {', '.join(d.name for d in tf.config.list_logical_devices())}"
            )
        self.device = devices[index].name
        self._is_default = platform is None and index == 0  # the device that TensorFlow uses by default
        self.host_visible = "CPU" in self.device and tiers.READS_MEMORY
        self._copies = HostCopies()
        self._programs = {}
        self.place = functools.lru_cache(maxsize=4096)(self._place)  # type: ignore[method-assign]

    # ---- arrays ----------------------------------------------------------------------------------------------------

    def is_array(self, x: Any, /) -> bool:
        return isinstance(x, tf.Tensor)

    def is_traced(self, x: Array, /) -> bool:
        return is_symbolic(x)

    def is_tracing(self) -> bool:
        return not tf.executing_eagerly()

    def shape(self, x: Array, /) -> tuple[int, ...]:
        return x._shape_tuple()

    def asarray(self, x: np.ndarray, /) -> Array:
        if x.dtype not in TF:
            raise NotImplementedError(f"TensorFlow has no tensors of {x.dtype}")
        if tf.executing_eagerly():
            return tf.constant(x)  # a copy
        with tf.init_scope():  # in a trace too, a constant has a value
            return tf.constant(x)

    def to_numpy(self, x: Array, /) -> np.ndarray:
        if not isinstance(x, EagerTensor):
            raise TracedValueError(
                f"the values of a {dtype_of(x)} array of shape {shape_of(x)} are needed while a program is being"
                " traced, and are known only when it runs.\nUse the array itself (where, cond, while_loop instead"
                " of Python's if and while), or take this step out of the compiled function."
            )
        return np.asarray(x.numpy())

    def observe(self, fn: Callable[[np.ndarray], None], x: Array, /) -> None:
        if not tf.executing_eagerly():  # in a trace, what has a value now will have others
            raise TypeError(f"a compiled program of {self.name} cannot report intermediate values")
        super().observe(fn, x)

    def copy(self, x: Array, /) -> Array:
        if not isinstance(x, EagerTensor):
            return raw.Identity(input=x)  # results of a program have memory of their own
        return tf.constant(x.numpy()) if dtype_of(x) in FLOAT8_AS_FLOAT32 else raw.DeepCopy(x=x)

    def from_dlpack(self, x: Any, /) -> Array:
        if x.__dlpack_device__()[0] == _CPU:
            try:
                view = view_of(x)
            except (BufferError, RuntimeError):  # a dtype that DLPack lacks
                view = np.asarray(x)
            # TensorFlow's kernels end the process where memory is not aligned
            if view.dtype.kind == "O" or not view.flags.c_contiguous or view.ctypes.data % _ALIGNMENT:
                return self.asarray(view)
        try:
            return tf.experimental.dlpack.from_dlpack(x.__dlpack__())
        except (BufferError, RuntimeError, tf.errors.InvalidArgumentError):  # read-only, or of another device
            values = np.asarray(x)
            if values.dtype.kind == "O":
                raise
            return self.asarray(values)

    @functools.cached_property
    def cold(self) -> Backend | None:  # type: ignore[override]
        return registry.get("numpy")

    def lend(self, x: Array, /) -> Any | None:
        # in a trace, an array with a value represents those of later calls; a tape observes only TensorFlow's own
        # operations
        if type(x) is not EagerTensor or not tf.executing_eagerly():
            return None
        if may_be_recorded() and order_of([x]):
            return None
        if not self.host_visible:
            return self._copies.get(x, lambda x: np.array(x.numpy()))
        return x._numpy() if dtype_of(x) in FLOAT8_AS_FLOAT32 else x  # TensorFlow's DLPack lacks float8

    def adopt(self, x: np.ndarray, /) -> Array:
        with tf.init_scope(), self.scope():
            if self.host_visible and self._is_default and x.nbytes >= _WORTH_SHARING:
                return self.from_dlpack(x)
            array = self.asarray(x)
        if not self.host_visible:
            self._copies.moved(array, x)
        return array

    # ---- programs and devices --------------------------------------------------------------------------------------

    def scope(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._is_default else tf.device(self.device)

    def compile(self, fn: Callable[..., Any], /, donate: Sequence[int] = ()) -> Callable[..., Any]:
        program = CompiledFunction(fn)
        if self._is_default:
            return program
        scope = self.scope

        def run(*args: Any) -> Any:
            with scope():
                return program(*args)

        return run

    def _place(self, n: int) -> Array:
        with self.scope():
            return self.asarray(np.asarray(n, np.int64))

    def trace(self, fn: Callable[[], Sequence[Array]], /) -> TensorFlowProgram:
        return TensorFlowProgram(self, fn)

    def eagerly(self) -> contextlib.AbstractContextManager[None]:
        return tf.init_scope()

    def stand_in(self, x: Array, /) -> Array:
        if not isinstance(x, EagerTensor):
            return raw.Identity(input=x)
        with tf.init_scope():
            return raw.Identity(input=x)

    def as_traced(self, x: Array, /) -> Array:
        return raw.Identity(input=x) if isinstance(x, EagerTensor) else x

    # ---- native callables of TensorFlow's own users ----------------------------------------------------------------

    def is_watched(self, arrays: Sequence[Array], /) -> bool:
        return not tf.executing_eagerly() or bool(order_of(arrays))

    def differentiable(self, function: Differentiable, /) -> Callable[..., tuple[Array, ...]]:
        return differentiable(self, function)

    def native_function(self, primal: Any, forward: Any, backward: Any, /) -> Callable[..., tuple[Array, ...]]:
        return native_function(primal, forward, backward)

    def exported(self, function: Exported, /) -> Callable[..., tuple[Array, ...]]:
        return exported(function)

    def module(
        self,
        call: Callable[..., Any],
        parameters: dict[str, Array],
        constants: dict[str, Array],
        /,
        stateful: bool = False,
        name: str | None = None,
        described: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    ) -> Module:
        return module_class()(call, parameters, constants, stateful, name=name)

    def detached(self, x: Array, /) -> Array:
        return tf.stop_gradient(x)

    def operand(self, x: Any, /) -> Array | None:
        if isinstance(x, tf.__internal__.types.Tensor) and not isinstance(x, tf.Tensor):  # a variable, also of Keras
            return tf.convert_to_tensor(x)
        return super().operand(x)

    def synchronize(self) -> None:
        tf.test.experimental.sync_devices()

    def memory_stats(self) -> dict[str, int]:
        if "GPU" not in self.device:
            return {}
        stats = tf.config.experimental.get_memory_info(self.device.partition("/device:")[2])
        return {"allocated": stats["current"], "peak": stats["peak"]}

    def device_name(self) -> str:
        if "GPU" not in self.device:
            return "CPU"
        details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[self.index])
        return details.get("device_name", "GPU")

    @classmethod
    def device_count(cls) -> int:
        return len(_devices(None))

    # ---- composites ------------------------------------------------------------------------------------------------

    def dtype_of(self, *operands: Any) -> np.dtype:
        """Return the dtype of the first array; a traced argument that is a Python scalar is no array."""
        if len(operands) == 1 and type(operands[0]) is EagerTensor:
            return dtype_of(operands[0])
        arrays = [x for x in operands if isinstance(x, tf.Tensor)]
        strong = [x for x in arrays if not is_weak(x)] or arrays
        return NP[strong[0].dtype] if strong else super().dtype_of(*operands)

    def signature(self, x: Array, /) -> Hashable:
        if type(x) is EagerTensor:
            return x._shape_tuple(), x._datatype_enum()
        return super().signature(x)


@functools.cache
def _number_processors(n: int) -> None:
    with contextlib.suppress(RuntimeError):  # TensorFlow has its devices already
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * n)


def _devices(platform: str | None) -> list[Any]:
    """Return the logical devices of a platform; where none is named, the GPUs if there are any."""
    with quiet():  # TensorFlow reports on its search for GPUs
        if cpu_devices() > 1:
            _number_processors(cpu_devices())
        if platform is not None:
            return tf.config.list_logical_devices(platform.upper())
        return tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
