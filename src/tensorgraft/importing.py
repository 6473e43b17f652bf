"""Helpers for imports: checks of installed packages, a pause of the garbage collector (also for traces), and callbacks
after an import."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_freezes = False


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """The collector of cyclic garbage is off inside. While much is imported or traced it goes through all that lives,
    again and again, and finds next to nothing: a quarter of the time of `import torch`."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not program_freezes():  # freeze new objects, which would otherwise be examined at the next collection
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def program_freezes() -> bool:
    """Return True if the program has frozen objects for the garbage collector, which `unfreeze` would thaw. Cached once
    true: the count goes through all of them, a tenth of a second for a million."""
    global _freezes
    _freezes = _freezes or gc.get_freeze_count() > 0
    return _freezes


@contextlib.contextmanager
def random_numbers_kept() -> Iterator[None]:
    """A context after which Python's and NumPy's global random states are restored. JAX does when it is imported, and
    that may be in the middle of a program that has seeded them."""
    states = random_states()
    try:
        yield
    finally:
        set_random_states(states)


def random_states() -> list[Any]:
    """Return the states of Python's and NumPy's global random numbers, None of one that is not imported."""
    python, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    return [python and python.getstate(), numpy and numpy.get_state()]


def set_random_states(states: Sequence[Any]) -> None:
    python, numpy = states
    if python is not None:
        sys.modules["random"].setstate(python)
    if numpy is not None:
        sys.modules["numpy.random"].set_state(numpy)


@functools.cache
def _every_entry_point() -> Any:
    return importlib.metadata.entry_points()


def entry_points(group: str) -> importlib.metadata.EntryPoints:
    """Return the entry points of a group, from a list of all installed ones that is read once."""
    return _every_entry_point().select(group=group)


def is_ours(point: importlib.metadata.EntryPoint) -> bool:
    return point.value.startswith("tensorgraft.")


def required(package: str, by: str, extra: str | None = None) -> None:
    """Raises ModuleNotFoundError with the install command (of an extra, else of the package's name) if a package is
    missing."""
    if importlib.util.find_spec(package) is None:
        command = f'pip install "tensorgraft[{extra or package}]"'
        raise ModuleNotFoundError(f"{by} needs {package}, which is not installed: {command}", name=package)


def load_triton() -> None:
    """Load the library of Triton, if it is installed, where PyTorch and TensorFlow are used in one process.

    PyTorch's wheels for CUDA bring Triton, and import it for the first optimizer or compiled function. TensorFlow makes
    its symbols global, LLVM's among them: a library that is loaded later and has its own LLVM registers options twice,
    which ends the process. Here it is loaded before TensorFlow, or with its own symbols in front."""
    if sys.platform != "linux" or "triton" in sys.modules or importlib.util.find_spec("triton") is None:
        return
    flags = sys.getdlopenflags()
    if "tensorflow" in sys.modules:
        sys.setdlopenflags(flags | os.RTLD_DEEPBIND)
    try:
        importlib.import_module("triton._C.libtriton")
    except ImportError:  # PyTorch does without it, too
        pass
    finally:
        sys.setdlopenflags(flags)


# ---- what is to happen once a module is there ------------------------------------------------------------------------


class _Watch:
    """A finder of modules that finds one as the others do, and sees to it that a function is called afterwards."""

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self._name, self._callback = name, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name:
            return None
        self.forget()
        spec = importlib.util.find_spec(name)
        if spec is not None:
            _when_executed(spec, self._callback)
        return spec

    def forget(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _when_executed(spec: Any, then: Callable[[], object]) -> None:
    """Call `then` when the module of a specification has been executed, which may have begun."""
    before = type(spec)

    class Executing(before):  # type: ignore[valid-type, misc]
        @property
        def _initializing(self) -> bool:
            return self.__dict__["_initializing"]

        @_initializing.setter
        def _initializing(self, value: bool) -> None:
            self.__dict__["_initializing"] = value
            if not value:
                self.__class__ = before
                if self.name in sys.modules:  # it raised nothing
                    then()

    spec.__class__ = Executing


def when_imported(name: str, then: Callable[[], object]) -> Callable[[], None]:
    """Call `then` once a module is imported, which takes long and few programs need. Returns a function that cancels
    this."""
    watch = _Watch(name, then)
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if name not in sys.modules:
        sys.meta_path.insert(0, watch)
    elif getattr(spec, "_initializing", False):  # the program's first use of PyTorch is this import
        _when_executed(spec, then)
    else:
        then()
    return watch.forget
