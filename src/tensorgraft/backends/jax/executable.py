"""Compiled programs, called with less on the way than `jax.jit` has.

`jax.jit` finds out at every call, of every argument, what it is and where, before it runs what it has compiled: half of
what a call costs (at 100 arguments 37 us, of which 19). A program of ours is called with arrays of the same kind again
and again. After some calls it is handed to the runtime at once, where its arguments have the shapes and dtypes that
they had; the runtime itself refuses other devices and several shards. What it does not look at is layouts, so that no
array of another than the usual one comes in (`ordinary`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import jax
from jax._src.array import ArrayImpl
from jax._src.interpreters.pxla import ExecuteReplicated
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

from tensorgraft import warning_filters
from tensorgraft.backends.jax.program_cache import KeptProgram, NotSmall
from tensorgraft.backends.jax.sharding import processes
from tensorgraft.backends.jax.tracing import EAGER, find_top_trace, is_tracing
from tensorgraft.hub.array import NativeArray as Array

debug_nans, debug_infs, default_precision = jax.debug_nans, jax.debug_infs, jax.default_matmul_precision
_OFTEN = 8  # calls after which a program is worth the third of a millisecond that it takes to ask for what runs it
_avals = attrgetter("aval")
_and_where = attrgetter("aval", "sharding")  # of an array of several processes this one may have one piece


def ordinary(x: Array) -> Array:
    """An array from outside, in the layout that programs of ours take: DLPack keeps that of other libraries, in which a
    transposed array is."""
    if x.__class__ is not ArrayImpl or x.ndim < 2 or x.sharding.__class__ is not SingleDeviceSharding:
        return x
    layout, rows = x.format.layout, tuple(range(x.ndim))
    return x if layout is None or layout.major_to_minor == rows else jax.device_put(x, Format(Layout(rows), x.sharding))


class _Executable(NamedTuple):
    """A compiled program as the runtime runs it, and the arguments that it takes."""

    execute: Any
    handlers: Any  # of the outputs
    wanted: list[int] | None  # of the arguments; None for all
    single: bool  # one array comes out, and no tuple
    looks: attrgetter[Any]  # what of arguments has to be the same
    avals: list[Any]  # which they are
    precision: Any  # of products, which was compiled in


def _executable(cached: KeptProgram, args: tuple[Any, ...], scope: Callable[[], Any]) -> _Executable | None:
    """Return what runs a program that has been compiled for such arguments; None where JAX itself has to.

    Raises NotSmall where these are others than before: it is about to be compiled anew."""
    if not hasattr(cached.jitted, "lower"):  # it was dropped, or has run in traces alone
        return None
    if not all(a.__class__ is ArrayImpl and a.sharding.__class__ is SingleDeviceSharding for a in args):
        return None
    with scope(), warning_filters.remembered(), warning_filters.ignored("Some donated buffers were not usable"):
        compiled = cached.jitted.lower(*args).compile()  # it has been, and is only looked up
    program, tree = compiled._executable.unsafe_call, compiled.out_tree
    single = tree == jax.tree.structure(0)
    flat = single or tree == jax.tree.structure((0,) * tree.num_leaves)
    if not flat or not isinstance(program, ExecuteReplicated) or compiled._params.const_args:
        return None
    if program.ordered_effects or program.has_unordered_effects or program.has_host_callbacks or program.mut:
        return None
    read = sorted(program.kept_var_idx)
    describe_args = _avals if processes.count() == 1 else _and_where
    return _Executable(
        program.xla_executable.execute_sharded,
        program.out_handler.handlers,
        None if len(read) == len(args) else read,
        single,
        describe_args,
        list(map(describe_args, args)),
        default_precision.value,
    )


def often_called(cached: KeptProgram, run: Callable[..., Any], scope: Callable[[], Any]) -> Callable[..., Any]:
    """Return `run`, a CPU function that calls `cached` in `scope`, specialised for many calls with arrays of the same
    kind."""
    calls = 0
    avals: list[Any] | None = None
    execute: Any = None
    handlers: Any = None
    used: list[int] | None = None
    single = False
    describe_args = _avals
    precision: Any = None

    def forget() -> None:
        nonlocal avals, execute, handlers, calls
        avals = execute = handlers = None
        calls = 0

    cached.forget = forget

    def settle(args: tuple[Any, ...]) -> None:
        nonlocal avals, calls, execute, handlers, describe_args, precision, used, single
        try:
            compiled = _executable(cached, args, scope)
        except NotSmall:
            calls = 0
            return
        if compiled is not None:
            execute, handlers, used, single, describe_args, avals, precision = compiled

    def directly(args: Sequence[Any]) -> Any:
        """Return the outputs; None, with nothing done, for arguments or settings that are others than before."""
        nonlocal avals
        if avals is None:
            return None
        try:
            # inside of a trace a call is a part of it, whatever its arguments are
            found = list(map(describe_args, args))
            if found != avals or find_top_trace(()) is not EAGER or debug_nans.value or debug_infs.value:
                return None
            cached.used = True
            avals = found  # what one call gives and the next one takes has these very objects, compared at once
            return execute(args if used is None else [args[k] for k in used]).consume_with_handlers(handlers)
        except (AttributeError, TypeError, jax.errors.JaxRuntimeError):  # no arrays, or others than these
            return None

    def call(*args: Any) -> Any:
        nonlocal calls
        if avals is None:
            if calls <= _OFTEN:
                calls += 1
                if calls > _OFTEN and not is_tracing():
                    settle(args)
        elif precision == default_precision.value:
            outputs = directly(args)
            if outputs is not None:
                return outputs[0] if single else tuple(outputs)
        return run(*args)

    call.directly = directly  # type: ignore[attr-defined]
    return call
