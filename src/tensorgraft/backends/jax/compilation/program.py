"""Programs traced by JAX: a jaxpr whose captured constants have become inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.extend.core.primitives import jit_p
from jax.sharding import SingleDeviceSharding

from tensorgraft import warning_filters
from tensorgraft.backends.jax.compilation.analysis import analyse
from tensorgraft.backends.jax.products import with_ordered_products
from tensorgraft.backends.jax.sharding import global_programs, processes
from tensorgraft.backends.jax.sharding.abstract_devices import AbstractInputs, LoweredElsewhere, devices_of
from tensorgraft.backends.jax.sharding.common_subexpressions import is_spread, merged
from tensorgraft.backends.jax.sharding.traced_collectives import collecting
from tensorgraft.backends.jax.tracing import current_trace
from tensorgraft.hub.analysis import Analysis
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.importing import uncollected


class _Backend(Protocol):
    """The part of `JaxBackend` that programs use."""

    barriers: int  # the number of optimisation barriers made so far
    for_cpu: bool

    def scope(self) -> contextlib.AbstractContextManager[None]: ...
    def compile(self, fn: Any, donate: Sequence[int] = (), options: Any = None, /) -> Any: ...


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    """Raise exceptions of the traced function without JAX's note about its own frames."""
    try:
        yield
    except BaseException as error:
        notes = getattr(error, "__notes__", [])
        notes[:] = [note for note in notes if "JAX_TRACEBACK_FILTERING" not in note]
        raise


def _as_function(jaxpr: Jaxpr) -> Callable[..., Sequence[Array]]:
    """Return the function of a jaxpr's constants that a trace records as one call. To evaluate the jaxpr would trace
    each of its equations again, which takes a fifth of the time of the first."""
    open_jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    (like,) = jax.make_jaxpr(jax.jit(_identity))(0).eqns  # the other parameters are what this release has
    extents = {"in": len(open_jaxpr.invars), "donated": len(open_jaxpr.invars), "out": len(open_jaxpr.outvars)}
    params = {
        name: value * extents[side] if (side := name.partition("_")[0]) in extents else value
        for name, value in like.params.items()
    } | {"jaxpr": ClosedJaxpr(open_jaxpr, ()), "name": "traced"}
    return lambda *captured: jit_p.bind(*captured, **params)


def _identity(x: Array) -> Array:
    return x


class JaxProgram:
    """`jax.make_jaxpr` of a function without arguments: every array that it used is a constant of the jaxpr."""

    def __init__(self, backend: _Backend, fn: Callable[[], Sequence[Array]]) -> None:
        self._backend = backend
        barriers = backend.barriers
        inputs = AbstractInputs()

        def traced() -> tuple[Array, ...]:
            trace = current_trace()
            try:
                with inputs.taken():
                    return tuple(fn())
            except BaseException:
                # JAX holds a trace for as long as its constants live, and the trace holds these (jaxlib 0.10.2)
                trace.invalidate()
                raise

        with backend.scope(), _own_errors(), uncollected(), collecting() as meeting:
            closed = jax.make_jaxpr(traced)()
        self._meeting, self._process_programs = meeting, meeting.across
        jaxpr, stand_ins, self._abstract = inputs.out_of(closed.jaxpr)
        # XLA for the CPU removes barriers before it eliminates common subexpressions and schedules operations
        keep_barriers = backend.barriers > barriers and backend.for_cpu
        self._options = {"xla_disable_hlo_passes": "cse_barrier_expander"} if keep_barriers else None
        self.captured: list[Array] = [*closed.consts, *stand_ins]
        if is_spread([*closed.consts, *self._abstract], jaxpr):
            jaxpr = merged(jaxpr)
        elif backend.for_cpu:  # not of several devices: their axes stay apart
            jaxpr = with_ordered_products(jaxpr)
        self._jaxpr = jaxpr

    @property
    def size(self) -> int:
        return len(self._jaxpr.eqns)

    def listing(self) -> list[str]:
        names: dict[Any, str] = {}

        def name(v: Any) -> str:
            return f"{v.val!r}" if isinstance(v, Literal) else names.setdefault(v, f"v{len(names)}")

        lines = [f"takes {name(v)}: {v.aval.str_short()}" for v in self._jaxpr.invars]
        for eqn in self._jaxpr.eqns:
            operands = ", ".join(map(name, eqn.invars))
            params = ", ".join(f"{key}={value}" for key, value in sorted(eqn.params.items()))
            results = ", ".join(f"{name(v)}: {v.aval.str_short()}" for v in eqn.outvars)
            lines.append(f"{eqn.primitive.name}({operands}; {params}) -> {results}")
        return [*lines, f"gives {', '.join(map(name, self._jaxpr.outvars))}"]

    def frames_of(self, line: int) -> Sequence[tuple[str, int]]:
        k = line - len(self._jaxpr.invars)
        traceback = self._jaxpr.eqns[k].source_info.traceback if 0 <= k < len(self._jaxpr.eqns) else None
        return () if traceback is None else [(frame.file_name, frame.line_num) for frame in traceback.frames]

    def analyse(self, donate: Sequence[int] = ()) -> Analysis:
        jaxpr = self._jaxpr
        with self._backend.scope(), warning_filters.ignored("Some donated buffers were not usable"):
            run = _as_function(jaxpr)
            options: dict[str, Any] = {"donate_argnums": tuple(donate), "compiler_options": self._options}
            if self._process_programs is not None:
                return analyse(jaxpr, self._process_programs.lowered(run, self.captured, **options))
            program = global_programs.jit(run, **options)
            own_captured = self.captured[: len(self.captured) - len(self._abstract)]
            operands = [*_lowering_operands(own_captured, bool(self._abstract)), *self._abstract]
            if devices := devices_of(self._abstract):
                return analyse(jaxpr, LoweredElsewhere(program.trace(*operands), devices, self._options))
            return analyse(jaxpr, program.lower(*operands))

    def compile(self, donate: Sequence[int] = ()) -> Callable[..., tuple[Array, ...]]:
        traced = _as_function(self._jaxpr)

        def run(*captured: Array) -> tuple[Array, ...]:
            return tuple(traced(*captured))

        if self._process_programs is None:
            compiled = self._backend.compile(run, donate, self._options)
            if processes.count() > 1 or self._abstract:
                del compiled.prepare
            return compiled
        agreement = self._meeting.agreement(self._process_programs)
        return self._process_programs.compiled(run, agreement, self._backend.scope, donate, self._options)


def _lowering_operands(arrays: Sequence[Array], on_mesh: bool) -> Sequence[Array]:
    """Return arrays to lower with: if some are on a mesh, specs of those on one device, which may be placed
    anywhere."""
    if not on_mesh and all(x.sharding.__class__ is SingleDeviceSharding for x in arrays):
        return arrays
    single = [x.sharding.__class__ is SingleDeviceSharding for x in arrays]
    return [jax.ShapeDtypeStruct(x.shape, x.dtype) if one else x for x, one in zip(arrays, single, strict=True)]
