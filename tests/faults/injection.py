"""Exceptions at the n-th thing that a backend does: a primitive, an allocation, a compilation, a run of a program.

`installed(names)` puts a wrapper around the methods of the backends' classes, what they compile, the cold tier's calls
of CPU PyTorch, and the making of storages. Outside of `counting()` and `raising()` a wrapper does nothing but call.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

# what a backend does beside the operations of the hub
_RUNTIME = (
    *(
        "asarray",
        "to_numpy",
        "adopt",
        "lend",
        "from_dlpack",
        "over_memory",
        "ensure_owned",
        "copy",
        "strided_view",
        "assign",
    ),
    *("stand_in", "constrain", "capsules", "eval_shape", "operand"),
)


@dataclass(frozen=True)
class Kind:
    """What is raised, and when: before a thing is done, or after it, with its result lost."""

    name: str
    after: bool = False

    def __str__(self) -> str:
        return f"{self.name}{', after' if self.after else ''}"


KINDS = (Kind("error"), Kind("error", after=True), Kind("memory"), Kind("interrupt"), Kind("interrupt", after=True))


class InjectedMemoryError(MemoryError):
    """There is no memory left."""


def raised(error: BaseException) -> bool:
    """It, or what it came of, was injected."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt | InjectedMemoryError) or "injected" in str(error):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _backend_error(backend: str) -> Exception:
    if backend == "jax":
        import jax

        return jax.errors.JaxRuntimeError("INTERNAL: injected")
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.errors.InternalError(None, None, "injected")
    return RuntimeError("injected")


class Injector:
    """Counts what is done, and raises at one of them. A thing done inside of another one is counted, too."""

    def __init__(self) -> None:
        self.on = False
        self.count = self.at = 0
        self.kind: Kind | None = None
        self.backend = ""
        self.fired = ""  # at what
        self.names: list[str] | None = None

    def around(self, name: str, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.count += 1
        if self.names is not None:
            self.names.append(name)
        mine = self.count == self.at
        if mine and not self.kind.after:
            self._fire(name)
        out = fn(*args, **kwargs)
        if mine and self.kind.after and not self.fired and (name != DONATING or self.kind.name == "interrupt"):
            self._fire(name)
        return out

    def _fire(self, name: str) -> None:
        self.fired = name
        self.on = False
        if self.kind.name == "interrupt":
            if threading.current_thread() is threading.main_thread():
                signal.raise_signal(signal.SIGINT)  # a real one, which may be put off
                return
            raise KeyboardInterrupt
        raise InjectedMemoryError if self.kind.name == "memory" else _backend_error(self.backend)

    @contextlib.contextmanager
    def counting(self) -> Iterator[list[str]]:
        """The names of what is done inside."""
        self.count, self.at, self.fired, self.names, self.on = 0, 0, "", [], True
        try:
            yield self.names
        finally:
            self.on, self.names = False, None

    @contextlib.contextmanager
    def raising(self, at: int, kind: Kind, backend: str) -> Iterator[None]:
        """Number `at` of what is done inside, from 1 on, raises."""
        self.count, self.at, self.kind, self.backend, self.fired, self.on = 0, at, kind, backend, "", True
        try:
            yield
        finally:
            self.on = False


injector = Injector()
# a program that uses up the memory of its arguments: once it has run, nothing but an interrupt can come before its
# results are where they belong
DONATING = "run, with memory"


def wrapped(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return injector.around(name, fn, args, kwargs) if injector.on else fn(*args, **kwargs)

    return call


def _compiling(fn: Callable[..., Any], at: int = 2) -> Callable[..., Any]:
    """A method that compiles: its result is a program. `at`: where it is told which arguments are donated."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        program = injector.around("compile", fn, args, kwargs) if injector.on else fn(*args, **kwargs)
        donated = kwargs.get("donate") or (args[at] if len(args) > at else ())
        run = wrapped(program, DONATING if donated else "run")
        if hasattr(program, "take"):
            run.take = wrapped(program.take, DONATING)  # type: ignore[attr-defined]
        return run

    return call


def _points(backends: tuple[str, ...]) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """(an owner, a name in it, what is to be there)"""
    from tensorgraft.hub import registry
    from tensorgraft.hub.operations import operations
    from tensorgraft.storage import Storage

    for name in backends:
        xp = registry.get(name)
        with xp.scope():
            xp.asarray(np.zeros(1))  # one that is deferred becomes a backend
        cls = type(xp)
        for method in (*operations(), *_RUNTIME):
            fn = getattr(cls, method, None)
            if callable(fn):
                yield cls, method, wrapped(fn, method)
        yield cls, "compile", _compiling(cls.compile)
        yield cls, "trace", wrapped(cls.trace, "trace")
    if "tensorflow" in backends:
        from tensorflow.python.ops import gen_resource_variable_ops as variables

        from tensorgraft.backends.tensorflow.program import TensorFlowProgram

        yield variables, "assign_variable_op", wrapped(variables.assign_variable_op, "assign a variable")
        yield TensorFlowProgram, "compile", _compiling(TensorFlowProgram.compile, 1)
        for module, function in (("held", "assign_variables"), ("held", "read_variables"), ("held", "tensors_of")):
            owner = importlib.import_module(f"tensorgraft.frontends.tensorflow.{module}")
            yield owner, function, wrapped(getattr(owner, function), function)
    if "jax" in backends:
        from jax._src import compiler

        yield compiler, "compile_or_get_cached", wrapped(compiler.compile_or_get_cached, "XLA compiles")
    import safetensors

    from tensorgraft.frontends.torch.dispatch import cold

    yield safetensors, "serialize_file", wrapped(safetensors.serialize_file, "write a file")
    yield os, "replace", wrapped(os.replace, "rename a file")

    yield cold.ColdOperator, "_run_on_cpu", wrapped(cold.ColdOperator._run_on_cpu, "the cold tier")
    yield cold, "ensure_owned", wrapped(cold.ensure_owned, "memory to write")
    yield Storage, "__init__", wrapped(Storage.__init__, "storage")


@contextlib.contextmanager
def installed(backends: tuple[str, ...]) -> Iterator[Injector]:
    """With the wrappers in their places."""
    before: list[tuple[Any, str, bool, Any]] = []
    for owner, name, new in list(_points(backends)):
        before.append((owner, name, name in vars(owner), vars(owner).get(name)))
        setattr(owner, name, new)
    try:
        yield injector
    finally:
        for owner, name, own, old in reversed(before):
            if own:
                setattr(owner, name, old)
            else:
                delattr(owner, name)
