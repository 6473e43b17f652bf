"""A JAX function as a native function of another framework: `tg.graft(function, onto="torch")`."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tensorgraft.compiled.function import compiles_by
from tensorgraft.errors import ShapeError, TracedValueError
from tensorgraft.frontends.jax.calls import Family, Flat, JaxCall, JaxTrace, Traces
from tensorgraft.frontends.jax.keys import is_key_dtype
from tensorgraft.frontends.jax.objects import Objects
from tensorgraft.frontends.jax.program import JaxprProgram, NumbersNeeded
from tensorgraft.frontends.jax.settings import checks
from tensorgraft.frontends.jax.sparse import with_jax_sparse, with_native_sparse
from tensorgraft.hub import registry
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.precision import current


class Grafted:
    """A function of the backend's arrays, and of pytrees of them. What is neither array nor number is static.

    Arrays of NumPy and of JAX are taken, too; random keys are those of JAX, or their `key_data` as arrays of uint32
    where the function wraps them itself. Dtypes are as in the user's configuration of JAX: without `jax_enable_x64`,
    64-bit arguments are narrowed on their way in.
    """

    def __init__(self, fn: Callable[..., Any], xp: Backend, compiled: bool = False, onto: str | None = None) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn, self.xp, self.is_compiled = fn, xp, compiled
        self.onto = xp.name if onto is None else onto
        self._traces = Traces(fn)

    def compiled(self) -> Grafted:
        """Return the same function, of which each signature is one compiled program (`tg.jit` gives this)."""
        return type(self)(self.fn, self.xp, True, self.onto)

    def __reduce__(self) -> Any:
        """Return how it is pickled: by name where its module has this object under that name, else by its function."""
        name = getattr(self, "__qualname__", "")
        if getattr(sys.modules.get(getattr(self, "__module__", "")), name, None) is self:
            return name
        return _again, (type(self), self.fn, self.onto, self.is_compiled)

    def __deepcopy__(self, memo: Any) -> Grafted:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises TypeError for static arguments that are not hashable, UnsupportedPrimitiveError for a primitive
        without a rule, ShapeError and TracedValueError if the function needs the value of an array, and the function's
        own errors while it is traced."""
        return self.run(args, kwargs)[0]

    def run(
        self, args: Any, kwargs: Any, objects: Objects | None = None, values: Sequence[Any] = ()
    ) -> tuple[Any, Mapping[int, Array]]:
        """Return (the results, the new values of those `values` of held objects that were written)."""
        args, kwargs = with_jax_sparse((args, kwargs))
        call = JaxCall(args, kwargs, self.operand, objects, values)
        family = self._traces.family(call, self.name, f"an array of {self.xp.name}")
        signature = self._of_open_extents(call, family) if family.is_open else family.get(call, self._signature)
        try:
            out, written = signature(call)
        except NumbersNeeded:
            out, written = self._for_numbers(call, family, signature)(call)
        return with_native_sparse(out, self.xp.name), written

    def _signature(self, trace: JaxTrace) -> GraftedSignature:
        program = JaxprProgram(trace.closed, self.is_compiled and trace.lasts, trace.has_numbers, current())
        return GraftedSignature(self.xp, trace, self.xp.differentiable(program), program)

    def _of_open_extents(self, call: JaxCall, family: Family) -> GraftedSignature:
        """Return the signature for arrays some of whose extents are unknown (None) or are the framework's symbols
        (names)."""
        native: list[Callable[..., tuple[Array, ...]]] = []

        def stage(flat: Flat, specs: list[tuple[Any, Any]]) -> Any:
            if any(None in shape for shape, _ in specs):
                from tensorgraft.frontends.jax import symbolic_shapes

                if current() is not None:
                    raise ShapeError(
                        f"{self.name} is called in a region of tg.autocast with arrays of partly unknown shape:"
                        " specify the shapes, or call it outside of the region"
                    )
                closed, function = symbolic_shapes.native(self.xp, flat, specs, self.name)
            else:
                from tensorgraft.frontends.jax import sized

                arrays = [o[0] for o in call.operands if o is not None]
                closed, function = sized.native(self.xp, flat, specs, arrays)
            native.append(function)
            return closed

        return family.get_open(call, stage, lambda trace: GraftedSignature(self.xp, trace, native[0]))

    def _for_numbers(self, call: JaxCall, family: Family, signature: GraftedSignature) -> GraftedSignature:
        """Return a signature that has a derivative: if a loop's number of iterations is known, the function is traced
        again for that number."""
        signature.trace.surroundings.undo()  # the function runs once more
        before = family.fixed, dict(family.by_values)
        family.fix_all(call)
        trace: GraftedSignature = family.get(call, self._signature)
        if trace.program is not None and trace.program.has_derivative():
            return trace
        family.fixed, family.by_values = before
        if signature.program is not None:
            signature.program.has_numbers = False
        return signature

    def operand(self, x: Any) -> tuple[Array, tuple[Any, ...]] | None:
        """Return (an array of the backend, the properties on which a program depends), or None for a static
        argument."""
        xp = self.xp
        array = xp.operand(x)
        if array is None:
            if isinstance(x, jax.Array) and is_key_dtype(x.dtype):
                return xp.asarray(np.array(jax.random.key_data(x))), (x.shape, x.dtype)
            if not isinstance(x, jax.Array | np.ndarray | np.generic):
                return None
            array = xp.asarray(np.array(x))
        dtype = xp.dtype_of(array)
        narrow = jax.dtypes.canonicalize_dtype(dtype)
        if narrow != dtype:
            with xp.native_scope():
                array = xp.astype(array, narrow)
        return array, (self._shape(array), narrow)

    def _shape(self, array: Array) -> tuple[int | str | None, ...]:
        """Return the shape, with None for unknown extents and names for symbols. Raises ShapeError where the rank is
        not known."""
        shape: Any = self.xp.shape(array)
        if shape is None:
            raise ShapeError(f"{self.name} got an array with an unknown number of axes: specify its shape")
        return tuple([None if n is None else int(n) for n in shape])

    @property
    def name(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)


def _again(kind: type[Grafted], fn: Callable[..., Any], onto: str, compiled: bool) -> Grafted:
    return kind(fn, registry.get(onto), compiled, onto)


compiles_by(Grafted, operator.methodcaller("compiled"))


class GraftedSignature:
    """The function for calls with the same key."""

    def __init__(
        self, xp: Backend, trace: JaxTrace, native: Callable[..., Sequence[Array]], program: JaxprProgram | None = None
    ) -> None:
        self.xp, self.trace, self.native, self.program = xp, trace, native, program

    def __call__(self, call: JaxCall) -> tuple[Any, Mapping[int, Array]]:
        xp = self.xp
        arrays = []
        for i in self.trace.inputs:
            operand = call.operands[i]
            arrays.append(xp.asarray(np.asarray(call.slots[i], call.numbers[i])) if operand is None else operand[0])
        results = self.native(*arrays) if self.program is None or not checks() else self._checked(self.program, arrays)
        return self.trace.finish(call, list(results), xp.detached, self._into_jax)

    def _checked(self, program: JaxprProgram, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the results under `jax_debug_nans` and `jax_debug_infs`, which need values: they are computed
        operation by operation, because compiled programs do not show them."""
        if not self.xp.is_watched(arrays):
            with self.xp.native_scope():
                return program.primal(self.xp, arrays)
        return self._differentiable(*arrays)

    @functools.cached_property
    def _differentiable(self) -> Callable[..., Sequence[Array]]:
        assert self.program is not None
        return self.xp.differentiable(self.program)

    def _into_jax(self, x: Array, dtype: Any) -> jax.Array:
        xp = self.xp
        x = xp.detached(x)
        if xp.is_traced(x):
            raise TracedValueError(
                "an object among the arguments holds arrays of JAX and is written while another framework traces"
                " the call, when there are no values yet that could be written.\n"
                "  graft the object itself:  its state is then that of a native module\n"
                "  call it:                  outside of the traced function"
            )
        host = xp.to_numpy(x)
        if is_key_dtype(dtype):
            return jax.random.wrap_key_data(jax.numpy.asarray(host), impl=dtype._impl.name)
        return jax.numpy.asarray(host)
