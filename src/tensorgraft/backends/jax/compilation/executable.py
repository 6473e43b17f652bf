"""Compiled programs that are called with less overhead than `jax.jit`.

Before it runs a program, `jax.jit` examines the type and device of every argument, which is half of the cost of a call
(19 of 37 us at 100 arguments). These programs are called with arrays of the same kind many times. After some calls,
arguments with the same shapes and dtypes are passed to the runtime directly. The runtime itself refuses other devices
and several shards, but does not check layouts, so arrays with unusual layouts are excluded (`ordinary`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, iadd, methodcaller
from typing import Any

import jax
from jax._src.array import ArrayImpl
from jax._src.interpreters.pxla import ExecuteReplicated
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

from tensorgraft import warning_filters
from tensorgraft.backends.jax.compilation.program_cache import KeptProgram, NotSmall
from tensorgraft.backends.jax.sharding import processes
from tensorgraft.backends.jax.tracing import EAGER, find_top_trace, is_tracing
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.straight_line import StraightLine

debug_nans, debug_infs, default_precision = jax.debug_nans, jax.debug_infs, jax.default_matmul_precision
_OFTEN = 8  # calls after which a program is worth the third of a millisecond that it takes to ask for what runs it
_OTHERS = (AttributeError, TypeError, jax.errors.JaxRuntimeError)  # raised for no arrays, or others than before
_avals = attrgetter("aval")
_and_where = attrgetter("aval", "sharding")  # an array of several processes may have one piece in this process


def ordinary(x: Array) -> Array:
    """Return an array from outside, in the layout that programs of ours take: DLPack keeps that of other libraries, in
    which a transposed array is."""
    if x.__class__ is not ArrayImpl or x.ndim < 2 or x.sharding.__class__ is not SingleDeviceSharding:
        return x
    layout, rows = x.format.layout, tuple(range(x.ndim))
    return x if layout is None or layout.major_to_minor == rows else jax.device_put(x, Format(Layout(rows), x.sharding))


@dataclass(slots=True)
class _Executable:
    """A compiled program as the runtime runs it, and the arguments that it takes."""

    execute: Any
    arrays_of: methodcaller  # makes arrays of what `execute` returns
    wanted: list[int] | None  # positions of the arguments that are used; None for all
    single: bool  # one array comes out, and no tuple
    properties_of: attrgetter[Any]  # reads the properties of arguments that must not change
    avals: list[Any]  # their values
    precision: Any  # the precision of products that was compiled in


def _executable(cached: KeptProgram, args: Sequence[Any], scope: Callable[[], Any]) -> _Executable | None:
    """Return a function that runs the program compiled for such arguments, or None if JAX itself has to call it.

    Raises NotSmall for arguments of other kinds than before, for which the program is about to be compiled again."""
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
        methodcaller("consume_with_handlers", program.out_handler.handlers),
        None if len(read) == len(args) else read,
        single,
        describe_args,
        list(map(describe_args, args)),
        default_precision.value,
    )


def _settle(cached: KeptProgram, args: Sequence[Any], scope: Callable[[], Any]) -> None:
    """Get the function that runs a program directly, if the program has been called often."""
    if cached.calls <= _OFTEN:
        cached.calls += 1
        if cached.calls > _OFTEN and not is_tracing():
            try:
                cached.direct = _executable(cached, args, scope)
            except NotSmall:
                cached.calls = 0


def often_called(cached: KeptProgram, run: Callable[..., Any], scope: Callable[[], Any]) -> Callable[..., Any]:
    """Return `run`, a CPU function that calls `cached` in `scope`, specialised for many calls with arrays of the same
    kind. It can be written in straight line (`StraightLine.run`)."""

    def call(*args: Any) -> Any:
        direct = cached.direct
        if direct is None:
            _settle(cached, args, scope)
        elif direct.precision == default_precision.value:
            try:
                # inside of a trace a call is a part of it, whatever its arguments are
                found = list(map(direct.properties_of, args))
                is_match = found == direct.avals and find_top_trace(()) is EAGER
                if is_match and not (debug_nans.value or debug_infs.value):
                    cached.used = True
                    # the results of a call are often the arguments of the next one: these very objects are compared at
                    # once
                    direct.avals = found
                    operands = args if direct.wanted is None else [args[k] for k in direct.wanted]
                    outputs = direct.arrays_of(direct.execute(operands))
                    return outputs[0] if direct.single else tuple(outputs)
            except _OTHERS:
                pass
        return run(*args)

    def write(code: StraightLine, arrays: str, outputs: str, cells: Sequence[str]) -> None:
        """Write the same call as straight-line code, for a caller whose key contains the settings. `outputs`: the
        variable of its outputs, an empty list before it; the first ones are put into the storages `cells`."""
        program, direct = code.name(cached), code.let(f"{code.name(cached)}.direct")
        operands, found = code.let(arrays), code.variable()
        code.check(f"{found} = [*map({direct}.properties_of, {operands})]")
        code.require(f"{found} == {direct}.avals and {code.name(find_top_trace)}(()) is {code.name(EAGER)}")
        code.require(f"not ({code.name(debug_nans)}.value or {code.name(debug_infs)}.value)")
        code.check(f"{direct}.avals = {found}")
        taken = f"{operands} if {direct}.wanted is None else [{operands}[k] for k in {direct}.wanted]"
        code.do(f"{program}.used = True")
        with code.block("try:"):
            if cells:
                lists = f"map({direct}.arrays_of, map({direct}.execute, ({taken},)))"
                # one call of C, within which no handler of a signal runs
                code.put(cells, f"{code.name(chain.from_iterable)}(map({code.name(iadd)}, ({outputs},), {lists}))")
            else:
                code.do(f"{outputs} = {direct}.arrays_of({direct}.execute({taken}))")
        with code.block(f"except {code.name(_OTHERS)}:"):  # an error of `run` has no other one as its context
            code.do(f"if {outputs}: raise" if cells else f"{outputs} = None")
        with code.block(f"if not {outputs}:" if cells else f"if {outputs} is None:"):
            code.call_program(run, operands, outputs, cells)

    call.write = write  # type: ignore[attr-defined]
    return call
