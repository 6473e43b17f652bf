"""Interchange with the users of a backend's framework: memory, native functions, modules, programs in files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.primitive import primitive
from tensorgraft.hub.sparse_arrays import SparseArray


class Differentiable(Protocol):
    """A function of flat arrays, in operations of the hub, that defines its own derivatives.

    Cotangents are transposed, not conjugated, and given for the inexact results, in order; `argnums` are positions of
    inexact arguments, `xp` is a `Backend`.
    """

    def primal(self, xp: Any, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the results."""

    def forward(
        self, xp: Any, arrays: Sequence[Array], argnums: tuple[int, ...]
    ) -> tuple[Sequence[Array], Sequence[Array]]:
        """Return the results, and the residuals that `backward` needs."""

    def backward(
        self, xp: Any, residuals: Sequence[Array], cotangents: Sequence[Array], argnums: tuple[int, ...]
    ) -> Sequence[Array]:
        """Return the cotangents of the arguments `argnums`."""

    def pullback(self, argnums: tuple[int, ...]) -> Differentiable:
        """Return the function (arguments, cotangents) -> cotangents of `argnums`, which can be differentiated again."""

    def pushforward(self, argnums: tuple[int, ...]) -> Differentiable:
        """Return the function (arguments, tangents of `argnums`) -> tangents of the inexact results."""

    def batched(self, axes: tuple[int | None, ...], size: int) -> Differentiable:
        """Return the function of arguments with one more axis, of `size`, where `axes` says one; results have theirs in
        front."""


class HoldingProgram:
    """A program of another framework as a callable, and the arrays that it holds, by name."""

    def __init__(self, call: Callable[..., Any], state: dict[str, Array], stateful: bool) -> None:
        self.state, self._call, self._stateful = state, call, stateful

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outputs = self._call(self.state, *args, **kwargs)
        if not self._stateful:
            return outputs
        results, new_state = outputs
        self.state.update(new_state)
        return results


class Exported(Protocol):
    """A function of flat arrays, of whose shapes some extents are unknown, as a program of StableHLO."""

    @property
    def module(self) -> bytes:
        """Serialised, as `jax.export` has it."""

    @property
    def version(self) -> int:
        """The version of the calling convention."""

    @property
    def reads(self) -> Sequence[int]:
        """Positions of the arguments that the program takes."""

    @property
    def results(self) -> Sequence[tuple[tuple[int | None, ...], np.dtype]]:
        """Shapes and dtypes."""

    def pullback(self, argnums: tuple[int, ...]) -> Exported:
        """Return the program of the cotangents, as `Differentiable.pullback` does."""


class Interchange:
    """Native callables of a framework's own users, and their arrays."""

    name: str
    # The form of a grafted PyTorch module for the framework's users: a pure function and its state, a module of the
    # framework (`module`), or a recorded program; None: not supported
    grafted_as: Literal["function", "module", "program"] | None = None
    modules_have_modes = False  # True: the modules that `module` makes have training modes of their own

    @primitive
    def from_dlpack(self, x: Any, /) -> Array:
        """Return an array over the memory of any object with `__dlpack__`, without a copy where possible."""
        raise NotImplementedError

    def native_dtype(self, dtype: np.dtype, /) -> np.dtype:
        """Return the framework's dtype under the user's configuration (JAX narrows 64-bit types by default)."""
        return dtype

    def seed_words(self, key: Any, /) -> Array:
        """Return the seed of a random key of the framework, as uint32 (2,). Here a key is an int, or two integers."""
        if isinstance(key, int | np.integer):
            return self.asarray(np.array([int(key) >> 32 & 0xFFFFFFFF, int(key) & 0xFFFFFFFF], np.uint32))
        words = self.asarray(np.array(key)) if isinstance(key, list | tuple) else self.operand(key)
        if words is None or self.shape(words) != (2,) or not dtypes.is_integer(self.dtype_of(words)):
            raise TypeError(f"expected a seed that is an int or an array of two integers, got {key!r}")
        return self.astype(words, dtypes.uint32)

    def in_trace(self) -> bool:
        """Return True if the framework's own tracer is active: new arrays belong to it, older ones do not."""
        return False

    def is_watched(self, arrays: Sequence[Array], /) -> bool:
        """Return True if the framework may trace, batch or differentiate what is computed from these arrays."""
        xp: Any = self
        return self.in_trace() or xp.is_tracing() or any(map(xp.is_traced, arrays))

    def native_scope(self) -> contextlib.AbstractContextManager[None]:
        """Return `scope` for functions that the framework's users call, so that their tracers and modes see the
        operations inside."""
        return self.scope()

    def native_function(
        self,
        primal: Callable[..., Sequence[Array]],
        forward: Callable[..., tuple[Sequence[Array], Sequence[Array]]],
        backward: Callable[[Sequence[Array], Sequence[Array]], Sequence[Array | None]],
        /,
    ) -> Callable[..., tuple[Array, ...]]:
        """Return a function of the framework out of three functions of arrays in hub operations; its users may compile,
        differentiate and batch it.

        Arguments:
            primal: arrays -> results.
            forward: arrays -> results and residuals, where it is differentiated.
            backward: residuals, cotangents of the inexact results -> cotangents of the arguments, None for zero;
                transposed, not conjugated.
        """
        raise TypeError(f"the backend {self.name} cannot make native functions")

    def differentiable(self, function: Differentiable, /) -> Callable[..., tuple[Array, ...]]:
        """Return a function of the framework with the derivatives of `function`."""
        xp: Any = self
        known: list[bool] = []  # for each argument, True if it has a derivative: one function serves one signature

        def argnums() -> tuple[int, ...]:
            return tuple(i for i, smooth in enumerate(known) if smooth)

        def forward(*arrays: Array) -> tuple[Sequence[Array], Sequence[Array]]:
            known[:] = [dtypes.is_inexact(self.dtype_of(a)) for a in arrays]
            return function.forward(xp, arrays, argnums())

        def backward(residuals: Sequence[Array], cotangents: Sequence[Array]) -> Sequence[Array | None]:
            gradients = iter(function.backward(xp, residuals, cotangents, argnums()))
            return [next(gradients) if smooth else None for smooth in known]

        return self.native_function(lambda *arrays: function.primal(xp, arrays), forward, backward)

    def exported(self, function: Exported, /) -> Callable[..., tuple[Array, ...]]:
        """Return a function of the framework that runs a program of StableHLO, with its derivatives."""
        raise TypeError(f"the backend {self.name} cannot run StableHLO programs")

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
        """Return a module of the framework that calls `call(arrays by name, *args, **kwargs)`: it holds the arrays
        under names with dots, and the parameters are trainable. If it is `stateful`, `call` returns (results, new
        arrays by name). `described`: (class, fields) of its submodules, for printing. Here: a plain callable, whose
        `state` has the arrays."""
        return HoldingProgram(call, {**parameters, **constants}, stateful)

    def detached(self, x: Array, /) -> Array:
        """Return `x` without the history by which its framework would differentiate it."""
        return x

    def operand(self, x: Any, /) -> Array | None:
        """Return an object that users of the framework pass as an array, as one; None for anything else."""
        return x if self.is_array(x) else None

    def sparse_parts(self, x: Any, /) -> SparseArray | None:
        """Return a sparse array of the framework as its parts; None for anything else."""
        return None

    def sparse_array(self, layout: str, shape: tuple[int, ...], is_coalesced: bool, parts: tuple[Array, ...]) -> Any:
        """Return the parts of a `SparseArray` as a sparse array of the framework. Raises TypeError where it has none
        of the layout."""
        raise SparseArray(layout, shape, is_coalesced, parts).refused(self.name, "dense arrays")
