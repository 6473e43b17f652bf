"""`Backend`: what a framework must offer so that programs of every front end run on it.

The methods are split by area into mix-ins. Those marked `@primitive` are required; the others are composites, written
once on the primitives, and overridden where a framework has its own. Arguments before `/` are arrays of the backend.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.analysis import Analysis
from tensorgraft.hub.attention import Attention
from tensorgraft.hub.coded import Coded
from tensorgraft.hub.control_flow import ControlFlow
from tensorgraft.hub.elementwise import Elementwise
from tensorgraft.hub.fft import FFT
from tensorgraft.hub.indexing import Indexing
from tensorgraft.hub.linalg import LinearAlgebra
from tensorgraft.hub.primitive import primitive, primitives
from tensorgraft.hub.random import Random
from tensorgraft.hub.reduction import Reduction
from tensorgraft.hub.shape import ShapeOps
from tensorgraft.hub.sorting import Sorting
from tensorgraft.hub.transforms import Transforms
from tensorgraft.hub.windowed import Windowed

Array = Any


class TracedProgram(Protocol):
    """What `Backend.trace` saw."""

    captured: list[Array]  # the arrays from outside that the program reads, each once

    @property
    def size(self) -> int:
        """How many operations the program has."""

    def compile(self, donate: Sequence[int] = ()) -> Callable[..., tuple[Array, ...]]:
        """(the captured arrays, in order, or others of their shapes and dtypes) -> the results.

        `donate`: positions whose memory may be reused. Where that asks that nobody else holds the arrays, the function
        has `takes`, these positions, and `take(list of arrays)`, which takes them out of the list; on an exception they
        are in it again.
        """

    def analyse(self, donate: Sequence[int] = ()) -> Analysis:
        """What the program has in it, and what it needs once it is compiled (which is done here)."""


class Differentiable(Protocol):
    """A function of flat arrays, in operations of the hub, whose derivatives are its own.

    Cotangents are transposed, not conjugated, and those of the results that are inexact, in order; `wanted` are
    positions of inexact arguments.
    """

    def primal(self, xp: Backend, arrays: Sequence[Array]) -> Sequence[Array]:
        """The results."""

    def forward(
        self, xp: Backend, arrays: Sequence[Array], wanted: tuple[int, ...]
    ) -> tuple[Sequence[Array], Sequence[Array]]:
        """The results, and what `backward` needs."""

    def backward(
        self, xp: Backend, residuals: Sequence[Array], cotangents: Sequence[Array], wanted: tuple[int, ...]
    ) -> Sequence[Array]:
        """The cotangents of the wanted arguments."""

    def pullback(self, wanted: tuple[int, ...]) -> Differentiable:
        """(arguments, cotangents) -> the cotangents of the wanted arguments: to be differentiated again."""

    def pushforward(self, wanted: tuple[int, ...]) -> Differentiable:
        """(arguments, tangents of the wanted ones) -> the tangents of the inexact results."""

    def batched(self, axes: tuple[int | None, ...], size: int) -> Differentiable:
        """Of arguments with one more axis, of `size`, where `axes` says one; results have theirs in front."""


class HoldingProgram:
    """A program of another framework as a callable, and the arrays that it holds, by name."""

    def __init__(self, call: Callable[..., Any], state: dict[str, Array], stateful: bool) -> None:
        self.state, self._call, self._stateful = state, call, stateful

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = self._call(self.state, *args, **kwargs)
        if not self._stateful:
            return made
        results, written = made
        self.state.update(written)
        return results


class Exported(Protocol):
    """A function of flat arrays, of whose shapes some extents are unknown, as a program of StableHLO."""

    @property
    def module(self) -> bytes:
        """Serialised, as `jax.export` has it."""

    @property
    def version(self) -> int:
        """Of the calling convention."""

    @property
    def reads(self) -> Sequence[int]:
        """Positions of the arguments that the program takes."""

    @property
    def results(self) -> Sequence[tuple[tuple[int | None, ...], np.dtype]]:
        """Shapes and dtypes."""

    def pullback(self, wanted: tuple[int, ...]) -> Exported:
        """As that of `Differentiable`."""


class Backend(
    Elementwise,
    Reduction,
    ShapeOps,
    Indexing,
    Sorting,
    LinearAlgebra,
    Coded,
    Attention,
    Windowed,
    FFT,
    Random,
    ControlFlow,
    Transforms,
):
    """One framework's arrays on one of its devices: a class derives from it, has the primitives, and is found by its
    entry point. Arrays are the framework's own, dtypes `numpy.dtype`s.

    Raises TypeError, when one is made, for a class that lacks primitives, which it names.

    >>> import numpy as np
    >>> from tensorgraft.hub import registry
    >>> backend = registry.get("numpy")
    >>> backend.multiply(backend.asarray(np.array([1.0, 2.0])), 2).tolist()
    [2.0, 4.0]
    """

    name: str  # as in `tg.device(name)`
    mutable = False  # arrays can be written in place, and views of them are views
    wraps = False  # arrays may be quantised: see `quantization.backend`
    dynamo: str | None = None  # the backend of `torch.compile` that computes on this framework's own arrays
    compiles = False  # `compile` makes something faster than the function itself
    records = False  # operations are recorded and compiled together: see `hub.recorded.backend`
    cold: Backend | None = None  # computes on this one's memory, and needs no compiler: see `hub.tiers`

    def __init__(self, index: int = 0, platform: str | None = None) -> None:
        """The device `index` of the framework (of the given platform, for example "gpu")."""
        missing = [name for name, f in primitives(type(self)).items() if getattr(type(self), name) is f]
        if missing:
            raise TypeError(f"{type(self).__name__} lacks the primitives {', '.join(missing)}")
        self.index = index
        self.platform = platform

    # ---- arrays ----------------------------------------------------------------------------------------------------

    @primitive
    def is_array(self, x: Any, /) -> bool:
        raise NotImplementedError

    @primitive
    def is_traced(self, x: Array, /) -> bool:
        """`x` stands for a value that a trace has not computed yet."""
        raise NotImplementedError

    @primitive
    def shape(self, x: Array, /) -> tuple[int, ...]:
        raise NotImplementedError

    @primitive
    def asarray(self, x: np.ndarray, /) -> Array:
        """A host array, moved to this backend's device. May share memory only where the backend never writes it."""
        raise NotImplementedError

    @primitive
    def to_numpy(self, x: Array, /) -> np.ndarray:
        """The values on the host; possibly a read-only view. Raises `TracedValueError` inside a trace."""
        raise NotImplementedError

    @primitive
    def copy(self, x: Array, /) -> Array:
        """An array with the same values whose memory is its own."""
        raise NotImplementedError

    @primitive
    def from_dlpack(self, x: Any, /) -> Array:
        """An array over the memory of any object with `__dlpack__`, without a copy where possible."""
        raise NotImplementedError

    def over_memory(self, x: np.ndarray, /) -> Array | None:
        """An array over the memory of a host array, which the host may write later and read what is new; None where
        that cannot be (another device's memory, or memory that does not suit)."""
        return None

    def lend(self, x: Array, /) -> Any | None:
        """Where there is a cold tier: an object with `__dlpack__` over the host's memory in which `x` lies, row-major
        and computed, which nobody may write. None for what is traced or lies elsewhere."""
        return None

    def recurs(self, operation: Any, /) -> bool:
        """Of a backend that records, where it has a cold tier: whether the operation that comes next is to be recorded,
        since what it is part of has come back, or to be computed cold. It is hashable, and is counted."""
        raise NotImplementedError

    def asked(self) -> None:
        """Tell a backend that records that a value is asked for."""
        return None

    def is_tracing(self) -> bool:
        """A program is being traced: what is computed now belongs to it, also where the operands have values."""
        return False

    def adopt(self, x: np.ndarray, /) -> Array:
        """An array of a host array that nobody writes any more: its memory as it is, where that suits. Enters `scope`
        by itself, and has values also where a program is being traced."""
        with self.scope():
            return self.asarray(x)

    # ---- programs and devices --------------------------------------------------------------------------------------

    @primitive
    def scope(self) -> contextlib.AbstractContextManager[None]:
        """The context in which this backend's operations are to be called (JAX: 64-bit types allowed, its device the
        default; NumPy: floating-point warnings off). Compiled functions enter it by themselves."""
        raise NotImplementedError

    @primitive
    def compile(self, fn: Callable[..., Any], /, donate: Sequence[int] = ()) -> Callable[..., Any]:
        """`fn` (arrays and Python scalars in flat positional arguments -> a flat tuple of arrays), compiled once per
        shapes and dtypes. `donate`: positions whose memory may be reused. The identity where nothing compiles."""
        raise NotImplementedError

    def place(self, n: int, /) -> Any:
        """An index as an argument of compiled functions, for many calls: what costs the least to hand over."""
        return n

    @primitive
    def synchronize(self) -> None:
        """Wait until everything that was asked for is computed."""
        raise NotImplementedError

    @primitive
    def memory_stats(self) -> dict[str, int]:
        """`allocated` and `peak` bytes where the framework tells them, else an empty dictionary."""
        raise NotImplementedError

    @primitive
    def device_name(self) -> str:
        """What a person calls the device, for example "NVIDIA H200" or "CPU"."""
        raise NotImplementedError

    @classmethod
    def device_count(cls) -> int:
        """How many devices this backend has; `Backend(index)` is one of them."""
        return 1

    def observe(self, fn: Callable[[np.ndarray], None], x: Array, /) -> None:
        """Call `fn` with the numbers of `x`: now, or, where a program is being traced, whenever it has computed them
        (`synchronize` waits for that). Raises TypeError where such a program calls nobody."""
        if self.is_traced(x):
            raise TypeError(f"a compiled program of {self.name} does not tell what it computes on the way")
        fn(self.to_numpy(x))

    # ---- backends that trace only ----------------------------------------------------------------------------------

    @property
    def traces(self) -> bool:
        """`trace` makes programs of functions: backends that compile do, and some that compile nothing smaller."""
        return self.compiles

    def trace(self, fn: Callable[[], Sequence[Array]], /) -> TracedProgram:
        """Run `fn` once on stand-ins for what it computes; the arrays that it takes from outside are found out."""
        raise TypeError(f"the backend {self.name} does not trace")

    def eagerly(self) -> contextlib.AbstractContextManager[None]:
        """Inside `trace`: the context in which operations on known values are computed at once."""
        raise TypeError(f"the backend {self.name} does not trace")

    def labelled(self, label: str, /) -> contextlib.AbstractContextManager[None]:
        """Inside `trace`: the context whose operations `Program.analyse` counts under this label, where it counts so
        finely."""
        return contextlib.nullcontext()

    def stand_in(self, x: Array, /) -> Array:
        """Another object for the same array, without a copy: `trace` tells captured arrays apart by identity."""
        raise TypeError(f"the backend {self.name} does not trace")

    def eval_shape(self, fn: Callable[..., Any], /, *operands: Any) -> tuple[tuple[tuple[int, ...], np.dtype], ...]:
        """Shapes and dtypes of what `fn`, a `compile`d function, returns for operands given as (shape, dtype) or as
        Python scalars. Raises what `fn` raises while it is traced."""
        raise TypeError(f"the backend {self.name} does not trace")

    # ---- native callables of a framework's own users -----------------------------------------------------------------

    def native_dtype(self, dtype: np.dtype, /) -> np.dtype:
        """What the framework has for a dtype in the user's configuration (JAX narrows 64-bit types by default)."""
        return dtype

    def seed_words(self, key: Any, /) -> Array:
        """uint32 (2,): the seed that a random key of the framework stands for. Here: an int, or two integers."""
        if isinstance(key, int | np.integer):
            return self.asarray(np.array([int(key) >> 32 & 0xFFFFFFFF, int(key) & 0xFFFFFFFF], np.uint32))
        words = self.asarray(np.array(key)) if isinstance(key, list | tuple) else self.operand(key)
        if words is None or self.shape(words) != (2,) or not dtypes.is_integer(self.dtype_of(words)):
            raise TypeError(f"a seed is an int, or an array of two integers, not {key!r}")
        return self.astype(words, dtypes.uint32)

    def in_trace(self) -> bool:
        """The framework's own tracer follows what is computed here: new arrays belong to it, older ones do not."""
        return False

    def native_scope(self) -> contextlib.AbstractContextManager[None]:
        """`scope` for functions that the framework's users call: what follows their operations follows these, too."""
        return self.scope()

    def native_function(
        self,
        primal: Callable[..., Sequence[Array]],
        forward: Callable[..., tuple[Sequence[Array], Sequence[Array]]],
        backward: Callable[[Sequence[Array], Sequence[Array]], Sequence[Array | None]],
        /,
    ) -> Callable[..., tuple[Array, ...]]:
        """A function of the framework out of three functions of arrays in hub operations; its users may compile,
        differentiate and batch it.

        Arguments:
            primal: arrays -> results.
            forward: arrays -> results and residuals, where it is differentiated.
            backward: residuals, cotangents of the inexact results -> cotangents of the arguments, None for zero;
                transposed, not conjugated.
        """
        raise TypeError(f"the backend {self.name} makes no native functions")

    def differentiable(self, function: Differentiable, /) -> Callable[..., tuple[Array, ...]]:
        """A function of the framework with the derivatives of `function`."""
        known: list[bool] = []  # which arguments have a derivative: one function is for one signature

        def wanted() -> tuple[int, ...]:
            return tuple(i for i, smooth in enumerate(known) if smooth)

        def forward(*arrays: Array) -> tuple[Sequence[Array], Sequence[Array]]:
            known[:] = [dtypes.is_inexact(self.dtype_of(a)) for a in arrays]
            return function.forward(self, arrays, wanted())

        def backward(residuals: Sequence[Array], cotangents: Sequence[Array]) -> Sequence[Array | None]:
            found = iter(function.backward(self, residuals, cotangents, wanted()))
            return [next(found) if smooth else None for smooth in known]

        return self.native_function(lambda *arrays: function.primal(self, arrays), forward, backward)

    def exported(self, function: Exported, /) -> Callable[..., tuple[Array, ...]]:
        """A function of the framework that runs a program of StableHLO, with its derivatives."""
        raise TypeError(f"the backend {self.name} runs no programs of StableHLO")

    def module(
        self,
        call: Callable[..., Any],
        parameters: dict[str, Array],
        constants: dict[str, Array],
        /,
        stateful: bool = False,
        name: str | None = None,
        described: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    ) -> Any:
        """A callable object of the framework's own kind of module, `call(arrays by name, *args, **kwargs)`: it holds
        the arrays under names with dots, of which the parameters are to be trained. Where it is `stateful`, `call`
        gives results and, by name, what the arrays become. `described`: class and fields, for those to see who print
        it, of what is in it. Here: a plain callable, whose `state` has the arrays."""
        return HoldingProgram(call, {**parameters, **constants}, stateful)

    def detached(self, x: Array, /) -> Array:
        """`x` without the history by which its framework would differentiate it."""
        return x

    def operand(self, x: Any, /) -> Array | None:
        """What users of the framework hand over as an array, as an array; None for anything else."""
        return x if self.is_array(x) else None

    # ---- mutable backends only -------------------------------------------------------------------------------------

    def strided_view(
        self, x: Array, /, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: np.dtype
    ) -> Array:
        """A view of the memory of the contiguous array `x`; strides and offset in elements of `dtype`."""
        raise TypeError(f"arrays of the backend {self.name} have no views")

    def assign(self, view: Array, value: Array, /) -> None:
        """Write `value` into a view; they may overlap."""
        raise TypeError(f"arrays of the backend {self.name} cannot be written")

    def memory(self, x: Array, /) -> tuple[Array, tuple[int, ...], int] | None:
        """(a one-dimensional contiguous array over the memory in which `x` lies, strides and offset of `x` in it, in
        elements); None where the memory cannot be written, or has no such strides."""
        raise TypeError(f"arrays of the backend {self.name} have no memory of their own")

    def own(self, x: Array, /) -> Array:
        """`x` itself if it is row-major and no other array shares its memory, else a copy."""
        return x

    # ---- backends that compute later -------------------------------------------------------------------------------

    def settled(self, x: Array, /) -> Array:
        """`x` as an array of the framework itself."""
        return x

    def lifted(self, x: Array, /) -> Array:
        """An array of the backend that this one computes on, as an array of this one; else `x`."""
        return x

    def when_known(self, x: Array, judge: Callable[[np.ndarray], None], /) -> None:
        """Call `judge`, which raises where something is wrong, with the values of `x` as soon as they are known."""
        judge(self.to_numpy(x))

    # ---- composites ------------------------------------------------------------------------------------------------

    def dtype_of(self, *operands: Any) -> np.dtype:
        """The dtype of the first operand that is an array."""
        for x in operands:
            dtype = getattr(x, "dtype", None)
            if dtype is not None:
                return np.dtype(dtype)
        raise TypeError("no operand is an array")

    def signature(self, x: Array, /) -> Hashable:
        """Equal for two arrays of this backend if, and only if, their shapes and dtypes are; quickly told."""
        return self.shape(x), self.dtype_of(x)
