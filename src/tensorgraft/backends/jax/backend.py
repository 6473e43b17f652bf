"""`JaxBackend`: arrays, programs and devices of JAX."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax._src.array import ArrayImpl
from jax._src.lib import _jax
from jax.core import ShapedArray
from jax.sharding import SingleDeviceSharding

from tensorgraft import warning_filters
from tensorgraft.backends.jax import native
from tensorgraft.backends.jax.coded import JaxCoded
from tensorgraft.backends.jax.compilation import disk_cache, process
from tensorgraft.backends.jax.compilation.analysis import label_scope
from tensorgraft.backends.jax.compilation.executable import often_called, ordinary
from tensorgraft.backends.jax.compilation.program import JaxProgram
from tensorgraft.backends.jax.compilation.program_cache import INLINE, KeptProgram, NotSmall
from tensorgraft.backends.jax.control_flow import JaxControlFlow, host_callback
from tensorgraft.backends.jax.elementwise import JaxElementwise
from tensorgraft.backends.jax.fft import JaxFFT
from tensorgraft.backends.jax.indexing import JaxIndexing
from tensorgraft.backends.jax.linalg import JaxLinearAlgebra
from tensorgraft.backends.jax.operation import Tracer, is_common, is_tracing, is_weak, operation
from tensorgraft.backends.jax.products import MOST_TURNED
from tensorgraft.backends.jax.reduction import JaxReduction
from tensorgraft.backends.jax.shape import JaxShape
from tensorgraft.backends.jax.sharding import abstract_devices, global_programs, processes
from tensorgraft.backends.jax.sharding.collectives import JaxCollectives
from tensorgraft.backends.jax.sharding.sharded_arrays import JaxSharding
from tensorgraft.backends.jax.sorting import JaxSorting
from tensorgraft.backends.jax.sparse import JaxSparse
from tensorgraft.backends.jax.transforms import JaxTransforms
from tensorgraft.backends.jax.windowed import JaxWindowed
from tensorgraft.errors import TracedValueError
from tensorgraft.hub import Backend, registry, tiers
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.cold import with_cold_tier
from tensorgraft.hub.host_copies import HostCopies
from tensorgraft.hub.interchange import Differentiable
from tensorgraft.hub.runtime import cpu_devices
from tensorgraft.importing import uncollected

process.mind_forks()  # before JAX starts
process.keep_memory()

_sharding = operator.attrgetter("_sharding")
_to_device = KeptProgram(lambda x: x)  # the fastest way that JAX has to move a host array, once it is compiled


@with_cold_tier
class JaxBackend(
    JaxSharding,
    JaxCollectives,
    JaxElementwise,
    JaxReduction,
    JaxShape,
    JaxIndexing,
    JaxSorting,
    JaxSparse,
    JaxLinearAlgebra,
    JaxCoded,
    JaxWindowed,
    JaxFFT,
    JaxControlFlow,
    JaxTransforms,
    Backend,
):
    """Arrays are `jax.Array`s or tracers. The user's configuration of JAX is never changed: 64-bit types are allowed
    inside `scope()` only, in which every method but `scope` and `compile` is to be called."""

    name = "jax"
    grafted_as = "function"
    compiles = True

    def __init__(self, index: int = 0, platform: str | None = None) -> None:
        super().__init__(index, platform)
        devices = jax.local_devices(backend=platform)
        # a launched process takes the device of its number, counted modulo the devices of the machine
        named = max(len(devices), cpu_devices()) if processes.count() > 1 else len(devices)
        if not 0 <= index < named:
            raise ValueError(
                f"JAX has no device {index}{f' on {platform}' if platform else ''}:"
                f" it has {', '.join(map(str, devices))}"
            )
        self.device = devices[index % len(devices)]
        self.for_cpu = self.device.platform == "cpu"  # programs are compiled for CPUs
        self.host_visible = self.for_cpu and tiers.READS_MEMORY
        self.few_rows = MOST_TURNED if self.for_cpu else 0
        self._copies = HostCopies()
        disk_cache.install()
        # arrays of the default device stay uncommitted, so that they mix with sharded ones
        self._is_default = platform is None and index == 0
        self._sharding = SingleDeviceSharding(self.device)
        self.place = functools.lru_cache(maxsize=4096)(self._place)  # type: ignore[method-assign]

    # ---- arrays ----------------------------------------------------------------------------------------------------

    def is_array(self, x: Any, /) -> bool:
        return isinstance(x, jax.Array)

    def is_traced(self, x: Array, /) -> bool:
        return isinstance(x, Tracer)

    def is_differentiated(self, x: Array, /) -> bool:
        return isinstance(x, Tracer) and not isinstance(lax.stop_gradient(x), Tracer)

    def shape(self, x: Array, /) -> tuple[int, ...]:
        return x.shape

    def asarray(self, x: np.ndarray, /) -> Array:
        # JAX on CPU may use the host's memory, which the caller may write later: copy it
        x = np.array(x, order="C")
        if x.dtype.isnative:
            return self.adopt(x)
        with jax.core.eval_context():  # in a trace too, a constant has a value
            return self._put(x)

    def _put(self, x: np.ndarray) -> Array:
        if not self._is_default:
            return jax.device_put(x, self.device)
        return _to_device(x) if is_common((x.shape, x.dtype, "put")) else jax.device_put(x)

    def to_numpy(self, x: Array, /) -> np.ndarray:
        if isinstance(x, Tracer):
            x = lax.stop_gradient(x)  # tracers of derivatives have values, other tracers do not
        if isinstance(x, Tracer):
            raise TracedValueError(
                f"the values of a {x.dtype} array of shape {x.shape} are needed while a program is being traced,"
                " and are known only when it runs.\nUse the array itself (where, cond, while_loop instead of"
                " Python's if and while), or take this step out of the compiled function."
            )
        try:
            return np.asarray(x)
        except RuntimeError:
            if x.is_deleted() or x.is_fully_addressable:
                raise
        return global_programs.gathered(x)

    def observe(self, fn: Callable[[np.ndarray], None], x: Array, /) -> None:
        if isinstance(x, Tracer) or is_tracing():  # in a trace, what has a value now will have others
            host_callback(fn, ordered=False)(lax.stop_gradient(x))
        else:
            fn(self.to_numpy(x))

    copy = operation(lambda x: jax.numpy.copy(x))

    def from_dlpack(self, x: Any, /) -> Array:
        try:
            return ordinary(jax.dlpack.from_dlpack(x))
        except (BufferError, jax.errors.JaxRuntimeError):  # read-only or strided: XLA's arrays are neither
            values = np.asarray(x)
            if values.dtype.kind == "O":
                raise
            return self.asarray(values)

    def ensure_owned(self, x: Array, /) -> Array:
        return ordinary(x)

    def over_memory(self, x: np.ndarray, /) -> Array | None:
        if not (self.for_cpu and self.host_visible):
            return None
        with self.scope():
            array = jax.device_put(x) if self._is_default else jax.device_put(x, self.device)
        # XLA uses memory without a copy if it is aligned to 64 bytes
        return array if array.unsafe_buffer_pointer() == x.ctypes.data else None

    @functools.cached_property
    def cold(self) -> Backend | None:  # type: ignore[override]
        return registry.get("numpy")

    def lend(self, x: Array, /) -> Any | None:
        if x.__class__ is not ArrayImpl or x.sharding.__class__ is not SingleDeviceSharding:
            return None
        return x.block_until_ready() if self.host_visible else self._copies.get(x, np.array)

    def capsules(self, arrays: Sequence[Array], /) -> list[Any] | None:
        single = {*map(type, arrays)} == {ArrayImpl} and {*map(type, map(_sharding, arrays))} == {SingleDeviceSharding}
        if not (single and self.host_visible):
            return None
        try:  # checked for all arrays at once: `__dlpack__` of each takes six times as long
            jax.block_until_ready([*arrays])
            return [*map(_jax.buffer_to_dlpack_managed_tensor, arrays)]
        except jax.errors.JaxRuntimeError:
            return None

    def is_tracing(self) -> bool:
        return is_tracing()

    def adopt(self, x: np.ndarray, /) -> Array:
        # where `TENSORGRAFT_TIER` says that the host's memory is not the device's, it is not
        memory = np.array(x) if self.for_cpu and not self.host_visible else x
        with self.scope():  # `jax.device_put` does the same, and takes seven times as long to find out
            array = _jax.batched_device_put(
                ShapedArray(x.shape, x.dtype), self._sharding, [memory], [self.device], not self._is_default
            )
        if not self.host_visible:
            self._copies.moved(array, x)
        return array

    # ---- programs and devices --------------------------------------------------------------------------------------

    def scope(self) -> contextlib.AbstractContextManager[None]:
        return jax.enable_x64(True) if self._is_default else self._on_device()

    @contextlib.contextmanager
    def _on_device(self) -> Any:
        with jax.enable_x64(True), jax.default_device(self.device):
            yield

    def compile(
        self, fn: Callable[..., Any], /, donate: Sequence[int] = (), options: dict[str, Any] | None = None
    ) -> Callable[..., Any]:
        """See `Compiler.compile`. `options` are those of XLA."""

        def program(*args: Any) -> Any:
            return jax.tree.map(_strong, fn(*args))

        cached = KeptProgram(program, donate_argnums=tuple(donate), inline=INLINE, compiler_options=options)
        scope = self.scope

        def run(*args: Any) -> Any:
            cached.used = True
            with scope():
                try:
                    return (cached.jitted or cached.renewed())(*args)
                except (NotSmall, ValueError) as error:
                    return cached.fully(error, args)(*args)

        def prepare(arrays: Sequence[Any]) -> Callable[[], None]:
            specs = [
                jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding if getattr(x, "committed", False) else None)
                for x in arrays
            ]

            def compile_for_these() -> None:
                with scope(), warning_filters.ignored("Some donated buffers were not usable"):
                    cached.prepare(*specs)

            return compile_for_these

        compiled = False

        def run_donating(*args: Any) -> Any:
            nonlocal compiled
            if compiled and cached.jitted is not None:
                return run(*args)
            # `donate` allows, it does not ask: XLA says where it found no use for the memory
            with (
                uncollected(),
                warning_filters.remembered(),
                warning_filters.ignored("Some donated buffers were not usable"),
            ):
                outputs = run(*args)
            compiled = True
            return outputs

        call: Any = run_donating if donate else run
        call = often_called(cached, call, scope) if self.for_cpu else call
        call.prepare = prepare
        return call

    def _place(self, n: int) -> Array:
        with self.scope():  # a Python number costs as much as all the rest of a call
            return self.asarray(np.asarray(n, np.int64))

    def trace(self, fn: Callable[[], Sequence[Array]], /) -> JaxProgram:
        return JaxProgram(self, fn)

    def eagerly(self) -> contextlib.AbstractContextManager[None]:
        return jax.core.eval_context()

    def labelled(self, label: str, /) -> contextlib.AbstractContextManager[None]:
        return label_scope(label)

    def stand_in(self, x: Array, /) -> Array:
        if x.__class__ is jax.ShapeDtypeStruct:
            return abstract_devices.stand_in(x)
        pieces = [x] if x.sharding.__class__ is SingleDeviceSharding else [s.data for s in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, x.sharding, pieces)

    def as_traced(self, x: Array, /) -> Array:
        return x if isinstance(x, Tracer) else jax.numpy.copy(x)  # a copy would lower to nothing

    def eval_shape(self, fn: Callable[..., Any], /, *operands: Any) -> tuple[tuple[tuple[int, ...], np.dtype], ...]:
        specs = [jax.ShapeDtypeStruct(*x) if isinstance(x, tuple) else x for x in operands]
        with self.scope():
            return tuple((x.shape, x.dtype) for x in jax.eval_shape(fn, *specs))

    def native_dtype(self, dtype: np.dtype, /) -> np.dtype:
        return native.narrow(dtype)

    def seed_words(self, key: Any, /) -> Array:
        if not isinstance(key, jax.Array):  # a key of a function that was read from a file
            return super().seed_words(key)
        words = jax.random.key_data(key) if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key) else key
        return words.reshape(-1)[-2:]  # generators other than Threefry may have more words

    def differentiable(self, function: Differentiable, /) -> Callable[..., tuple[Array, ...]]:
        return native.differentiable(self, function)

    def native_function(self, primal: Any, forward: Any, backward: Any, /) -> Callable[..., tuple[Array, ...]]:
        return native.native_function(primal, forward, backward)

    def synchronize(self) -> None:
        jax.effects_barrier()
        jax.block_until_ready([x for x in jax.live_arrays(self.device.platform) if not x.is_deleted()])
        # programs whose results have no references: a device runs programs in the order in which they were called
        jax.block_until_ready(_small_program(self.device)())

    def memory_stats(self) -> dict[str, int]:
        stats = self.device.memory_stats() or {}
        names = {"allocated": "bytes_in_use", "peak": "peak_bytes_in_use", "limit": "bytes_limit"}
        return {key: stats[jax_key] for key, jax_key in names.items() if jax_key in stats}

    def device_name(self) -> str:
        return "CPU" if self.for_cpu else self.device.device_kind

    @classmethod
    def device_count(cls) -> int:
        local_count = len(jax.local_devices())
        return max(local_count, cpu_devices()) if processes.count() > 1 else local_count

    # ---- composites that JAX has -----------------------------------------------------------------------------------

    def dtype_of(self, *operands: Any) -> np.dtype:
        """Return the dtype of the first array; a traced argument that is a Python scalar is no array."""
        if len(operands) == 1 and operands[0].__class__ is ArrayImpl:
            dtype: np.dtype = operands[0].dtype
            return dtype
        return super().dtype_of(*[x for x in operands if not is_weak(x)] or operands)

    def signature(self, x: Array, /) -> Hashable:
        return x.shape, x.dtype


@functools.cache
def _small_program(device: jax.Device) -> Callable[[], Array]:
    with jax.ensure_compile_time_eval(), warning_filters.remembered():
        one = jax.device_put(np.float32(1), device)
        return functools.partial(jax.jit(operator.neg).lower(one).compile(), one)


def _strong(x: Any) -> Any:
    """Return an array without JAX's weak type, which results have that are Python scalars of the arguments."""
    return lax.convert_element_type(x, x.dtype) if getattr(x, "weak_type", False) else x
