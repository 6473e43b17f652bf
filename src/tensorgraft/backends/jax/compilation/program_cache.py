"""A cache of compiled programs in memory, which releases the least recently used ones.

XLA keeps 1.2 to 3 MB of the host's memory for each program that it has compiled or loaded, however small (jaxlib 0.10.2
on a CPU), and `jax.jit` releases none before there are thousands. A `KeptProgram` that has not been called for long
releases its compiled form, and is compiled again, or loaded from the cache on disk, at its next call. When released
programs are called again, the limit is raised, so that a training step of 600 operators is not compiled at every step.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from tensorgraft.backends.jax.compilation import effort
from tensorgraft.backends.jax.sharding import global_programs
from tensorgraft.backends.jax.sharding.meshes import on_several_meshes
from tensorgraft.backends.jax.tracing import EAGER, current_trace, is_tracing

# in other traces a program is its operations. Since JAX 0.11 `True` means that XLA sees none of the call
INLINE: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True
LEAST = 128  # programs that may always stay: some 200 MB
MOST = 2048  # the limit where programs come back
_EVERY = 32  # new programs from one check to the next
_OF_ONE = 64  # signatures of a function beyond which it is dropped even if used: only some of them are
_OFTEN = 8  # returning programs among the new ones that raise the limit

Signature = tuple[Any, ...]


class NotSmall(Exception):
    """The program is not small for a new signature, so that it needs all optimisations of XLA."""


class KeptProgram:
    """A function as `jax.jit` compiles it, once for each signature that it is called with. `options` are `jax.jit`'s.

    Whoever calls it says so (`used`), and takes `jitted`, `renewed()` where that is None, and `fully(error)` where it
    raises NotSmall or ValueError; or calls the program, which does all this.
    """

    __slots__ = (
        *("__weakref__", "_fn", "_full", "_options", "_small"),
        *("calls", "direct", "gone", "jitted", "signatures", "used"),
    )

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self._fn = fn
        self._options = options
        self._full: Any = None
        self._small = not options.get("donate_argnums") and not options.get("compiler_options")
        self.signatures: set[Signature] = set()  # compiled signatures
        self.gone: set[Signature] = set()  # signatures that were compiled and released
        self.used = True
        self.jitted: Any = None
        self.direct: Any = None  # the function that runs the compiled program directly, if it is called often
        self.calls = 0  # before that

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.used = True
        try:
            return (self.jitted or self.renewed())(*args, **kwargs)
        except (NotSmall, ValueError) as error:
            return self.fully(error, args)(*args, **kwargs)

    def renewed(self) -> Any:
        """Make a new jitted function, and release everything that JAX has cached for the previous one."""
        fn, self_ref = self._fn, weakref.ref(self)

        @functools.wraps(fn)
        def traced(*args: Any, **kwargs: Any) -> Any:
            program = self_ref()
            if program is not None and _compiling():
                signature = _signature(args, kwargs)
                must_check = program._small and signature not in program.signatures
                if must_check and not effort.suits_least_effort(jax.make_jaxpr(lambda: fn(*args, **kwargs))().jaxpr):
                    raise NotSmall
                _shelf.add(program, signature)
            return fn(*args, **kwargs)

        full = global_programs.jit(traced, **self._options)
        if not self._small or not effort.is_cpu_only():
            self._small = False
            self.jitted = self._full = full
            return full

        def decided(*args: Any, **kwargs: Any) -> Any:
            program = self_ref()
            if program is None or is_tracing():  # a program in a trace has no options of its own
                return full
            program._small = False
            program._small = effort.suits_least_effort(full.trace(*args, **kwargs).jaxpr.jaxpr)
            if program._small:
                program.jitted = global_programs.jit(
                    traced, **program._options | {"compiler_options": effort.options()}
                )
            else:
                program.jitted = full
            return program.jitted

        def first(*args: Any, **kwargs: Any) -> Any:
            return decided(*args, **kwargs)(*args, **kwargs)

        first.decided = decided  # type: ignore[attr-defined]
        self.jitted, self._full = first, full
        return first

    def prepare(self, *specs: Any) -> None:
        """Compile for arguments of these kinds, so that a call with them does not compile."""
        jitted = self.jitted or self.renewed()
        jitted = jitted.decided(*specs) if hasattr(jitted, "decided") else jitted
        try:
            jitted.lower(*specs).compile()
        except (NotSmall, ValueError) as error:
            self.fully(error, specs).lower(*specs).compile()

    def fully(self, error: Exception, args: Sequence[Any]) -> Any:
        """Switch to all of XLA's optimisations: one of its signatures is not small, or it is part of a trace. Raises
        the error of a call with `args` if it had another cause."""
        if (mesh_error := on_several_meshes(error, args)) is not None:
            raise mesh_error from None
        full = self._full
        if not self._small or full is None or (not is_tracing() and not isinstance(error, NotSmall)):
            raise error
        self._small = False
        self.jitted = full
        return full

    def drop(self) -> None:
        self.jitted = self._full = None
        self.direct, self.calls = None, 0
        self.gone = self.signatures if len(self.gone) > MOST else self.gone | self.signatures
        self.signatures = set()


class _ProgramList:
    def __init__(self) -> None:
        self._lock = threading.RLock()  # a program may be collected, and another traced, while one is added
        self._programs: dict[
            weakref.ref[KeptProgram], None
        ] = {}  # in the order in which they were last seen to be used
        self._new = self._returned = 0
        self.room = LEAST

    def add(self, program: KeptProgram, signature: Signature) -> None:
        with self._lock:
            if signature in program.signatures:  # traced to look at it, and then to compile it
                return
            self._programs.setdefault(weakref.ref(program, self._forget), None)
            self._returned += signature in program.gone
            program.signatures.add(signature)
            self._new += 1
            if self._new >= _EVERY:
                self._drop_unused()

    def _forget(self, ref: weakref.ref[KeptProgram]) -> None:
        self._programs.pop(ref, None)

    def _drop_unused(self) -> None:
        """Drop programs that were not called since the last check, oldest first, until the limit is met."""
        if self._returned >= _OFTEN:
            self.room = min(2 * self.room, MOST)
        elif not self._returned:
            self.room = max(LEAST, self.room - _EVERY // 2)
        self._new = self._returned = 0
        known = [(ref, p) for ref in list(self._programs) if (p := ref()) is not None]
        excess = sum(len(p.signatures) for _, p in known) - self.room
        if excess <= 0:
            return
        for ref, program in known:
            if excess <= 0:
                break
            if program.used and len(program.signatures) <= _OF_ONE:
                program.used = False
                self._programs[ref] = self._programs.pop(ref, None)
            else:
                excess -= len(program.signatures)
                program.drop()
                self._programs.pop(ref, None)
        _give_back()

    def count(self) -> int:
        return sum(len(p.signatures) for ref in list(self._programs) if (p := ref()) is not None)


_shelf = _ProgramList()
count = _shelf.count  # compiled programs that are kept


def _compiling() -> bool:
    """Return True if a function is traced on its own, not as a part of another one (nor rerun eagerly, as
    `jax_debug_nans` does to find the operation)."""
    return getattr(current_trace(), "parent_trace", None) is EAGER


def _signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    leaves, structure = jax.tree.flatten((args, kwargs))
    return structure, *(x.aval if isinstance(x, jax.core.Tracer) else repr(x) for x in leaves)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    with contextlib.suppress(OSError, AttributeError, TypeError):  # the C library is not glibc
        return ctypes.CDLL(None).malloc_trim
    return None


def _give_back() -> None:
    """Return the pages of freed memory between blocks in use to the system, which glibc keeps: takes about 5 ms."""
    trim = _trim()
    if trim is not None:
        trim(0)
