"""Calls of Python's standard library with effects outside of the program, or with a different result at each call:
`print`, `open`, `time.time`, `os.urandom`.

While a function is traced, its calls of these are intercepted. Output (`print`, `logging`, `warnings`) is repeated at
every call of the compiled program; a function that calls any other of them runs uncompiled. So does one that calls
methods of a stream, or of another object of the standard library whose state cannot be compared.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import functools
import io
import os
import random
import sys
import sysconfig
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tensorgraft.compiled.asked_attributes import AskedAttributes
from tensorgraft.compiled.captured_objects import in_library, is_python_class
from tensorgraft.compiled.uncompiled import RunsUncompiled

_CLOCKS = ("time", "perf_counter", "monotonic", "process_time", "thread_time")
_ASKS = ("getcwd", "listdir", "scandir", "stat", "lstat", "access", "times", "getloadavg")
_ACTS = ("system", "open", "remove", "unlink", "mkdir", "rmdir", "rename", "replace", "chdir", "truncate", "symlink")
_REFUSED: tuple[tuple[str, str, tuple[str, ...]], ...] = (  # (description, module or class, names)
    ("reads a clock", "time", (*_CLOCKS, *(f"{name}_ns" for name in _CLOCKS), "localtime", "gmtime", "ctime")),
    ("waits", "time", ("sleep",)),
    ("draws random numbers", "os", ("urandom",)),
    ("asks the operating system", "os", _ASKS),
    ("acts outside of the program", "os", _ACTS),
    ("opens a file", "io", ("open",)),
    ("opens a file", "builtins", ("open",)),
    ("opens a file", "numpy", ("load", "loadtxt", "genfromtxt", "fromfile", "memmap")),
    ("opens a file", "torch", ("load", "from_file")),
    ("opens a file", "safetensors.torch", ("load_file",)),
    ("asks for the seed of random numbers", "torch", ("initial_seed",)),
    ("asks whether garbage is collected", "gc", ("isenabled",)),
    ("asks its user", "builtins", ("input",)),
    ("draws random numbers", "random.SystemRandom", ("random", "getrandbits")),
    ("draws random numbers", "random", ("_urandom",)),  # `secrets` calls this
    ("starts a process", "subprocess.Popen", ("__init__",)),
    ("starts a thread", "threading.Thread", ("start",)),
)
_NAMES = frozenset(name for _, _, names in _REFUSED for name in names)
# functions that read settings which are in no key of a trace
_ASKED = (
    ("sys", ("getrecursionlimit", "getswitchinterval", "gettrace", "getprofile")),
    ("gc", ("get_threshold",)),
    ("os", ("getpid",)),
    ("locale", ("getlocale",)),
    ("threading", ("current_thread", "active_count")),
    ("decimal", ("getcontext",)),
    ("logging", ("getLogger",)),
    ("numpy", ("geterr", "get_printoptions")),
    ("torch", ("get_float32_matmul_precision", "get_num_threads", "get_num_interop_threads", "is_warn_always_enabled")),
    ("torch", ("get_autocast_dtype", "get_autocast_cpu_dtype", "get_autocast_gpu_dtype")),
    ("torch", ("is_autocast_enabled", "is_autocast_cpu_enabled")),
)


def decimal_settings() -> list[Any]:
    """Return the settings of the arithmetic of `decimal`."""
    context = sys.modules["decimal"].getcontext()
    return [getattr(context, name) for name in ("prec", "rounding", "Emin", "Emax")]


# of an object that a setting is part of, what is compared
_PARTS: dict[str, Callable[[Any], Any]] = {
    "decimal.getcontext": lambda context: decimal_settings(),
    "threading.current_thread": lambda thread: [thread, thread.name],
    "logging.getLogger": lambda log: [log.level, log.getEffectiveLevel(), log.disabled, log.manager.disable],
}
_ASKING = ("getattr", "hasattr", "vars", "setattr", "delattr")  # functions that take the names of attributes
# the names that a trace replaces, if they exist
REPLACED = _NAMES.union(*(names for _, names in _ASKED), ("print", "warn", "handle", "seed", "id", *_ASKING))
_STANDARD = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_SITE = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})

Call = Callable[[], None]


class _Muted(threading.local):
    on = False


_muted = _Muted()


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Context of a trace that is only compared with another one: its warnings are not shown."""
    before, _muted.on = _muted.on, True
    try:
        yield
    finally:
        _muted.on = before


class OutsideCalls:
    """The calls of a traced function that print, log or warn. `refused`: the reason why the function runs uncompiled,
    kept in case the program catches the error."""

    def __init__(self) -> None:
        self.repeated: list[Call] = []  # repeated at every call of the program, also the traced one
        self.warned: list[Call] = []  # repeated at every later call
        self.refused: str | None = None
        self.asked: list[tuple[str, Call]] = []  # settings, by the program's name, that are guards
        self._thread = threading.get_ident()
        self._active = False
        self._is_argument: Callable[[int], bool] | None = None
        self._attributes: AskedAttributes | None = None

    def settled(self) -> None:
        """Raise RunsUncompiled again if the program has caught it."""
        if self.refused is not None:
            raise RunsUncompiled(self.refused)

    def repeat(self, first: bool) -> None:
        """Repeat the output of the trace. `first`: for the traced call, where warnings have already been shown."""
        for call in self.repeated if first else (*self.repeated, *self.warned):
            call()

    def __bool__(self) -> bool:
        return bool(self.repeated or self.warned)

    @contextlib.contextmanager
    def watched(
        self,
        bound: Sequence[tuple[dict[str, Any], str]] = (),
        is_argument: Callable[[int], bool] | None = None,
        attributes: AskedAttributes | None = None,
    ) -> Iterator[None]:
        """Context that intercepts this thread's calls. `bound`: global variables of the program that refer to such
        functions; `is_argument`: of the identity of an object, where the program asks for some by `id`; `attributes`
        notes attributes, where it asks for some by `getattr` or the like."""
        self._is_argument, self._attributes = is_argument, attributes
        with contextlib.ExitStack() as stack:
            wrapped: dict[int, Any] = {}
            for owner, name, make in self._overrides():
                original = vars(owner)[name]
                wrapped[id(original)] = self._wrapped(original, make)
                setattr(owner, name, wrapped[id(original)])
                stack.callback(setattr, owner, name, original)
            for table, name in bound:
                original = table[name]
                table[name] = wrapped.get(id(original), original)
                stack.callback(table.__setitem__, name, original)
            self._active = True
            try:
                yield
            finally:
                self._active = False

    def _overrides(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        """Yield (a module or class, a name in it, the function that is called instead)."""
        for owner, name, reason in _refused():
            yield owner, name, functools.partial(self._refuse, f"{reason} ({getattr(owner, '__name__', owner)}.{name})")
        yield from self._settings()
        if self._is_argument is not None:
            yield builtins, "id", self._identity
        if self._attributes is not None:
            yield from ((builtins, name, functools.partial(self._ask_for, name)) for name in _ASKING)
        yield random.Random, "seed", self._seed
        yield builtins, "print", self._print
        yield warnings, "warn", self._warn
        if "logging" in sys.modules:
            yield sys.modules["logging"].Logger, "handle", self._log

    def _settings(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        for path, names in _ASKED:
            owner = sys.modules.get(path)
            loaded = (name for name in names if owner is not None and name in vars(owner))
            yield from ((owner, name, functools.partial(self._ask, f"{path}.{name}")) for name in loaded)

    def _ask(self, name: str, original: Any, args: Any, kwargs: Any) -> Any:
        part = _PARTS.get(name, lambda setting: setting)
        self.asked.append((f"{name}()", lambda: part(original(*args, **kwargs))))
        return original(*args, **kwargs)

    def _wrapped(self, original: Any, make: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._active and threading.get_ident() == self._thread and _by_program(sys._getframe(1)):
                return make(original, args, kwargs)
            return original(*args, **kwargs)

        return call

    def _refuse(self, reason: str, *_: Any) -> Any:
        self.refused = reason
        raise RunsUncompiled(reason)

    def _identity(self, original: Any, args: Any, kwargs: Any) -> int:
        key: int = original(*args, **kwargs)
        if self._is_argument is not None and self._is_argument(key):
            self._refuse("asks for the identity of an argument (id)", original, args, kwargs)
        return key

    def _ask_for(self, function: str, original: Any, args: Any, kwargs: Any) -> Any:
        assert self._attributes is not None
        if function == "vars" and args:
            self._attributes.note_all(args[0])
        elif function in ("getattr", "hasattr") and len(args) > 1 and type(args[1]) is str:
            self._attributes.note(args[0], args[1])
        elif function in ("setattr", "delattr") and len(args) > 1 and not self._attributes.sees(args[0], args[1]):
            self._refuse(f"sets an attribute by a name that it computes ({args[1]})", original, args, kwargs)
        return original(*args, **kwargs)

    def _seed(self, original: Any, args: Any, kwargs: Any) -> None:
        if not kwargs and args[1:] in ((), (None,)):
            self._refuse("seeds random numbers by the operating system's (random.Random.seed)")
        original(*args, **kwargs)

    def _print(self, original: Any, args: Any, kwargs: Any) -> None:
        texts = tuple(map(str, args))  # raises for a tensor
        if kwargs.keys() - {"sep", "end", "file", "flush"}:
            original(*texts, **kwargs)  # raises
        self.repeated.append(functools.partial(original, *texts, **kwargs))

    def _log(self, original: Any, args: Any, kwargs: Any) -> None:
        logger, record = args
        logged = copy.copy(record)
        logged.msg, logged.args = record.getMessage(), None

        def handle() -> None:
            repeated = copy.copy(logged)
            repeated.created = time.time()
            original(logger, repeated)

        self.repeated.append(handle)

    def _warn(self, original: Any, args: Any, kwargs: Any) -> None:
        names = ("message", "category", "stacklevel", "source")
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        level = arguments.get("stacklevel", 1)
        arguments["stacklevel"] = level + 2
        frame = sys._getframe(2)
        for _ in range(level - 1):
            frame = frame.f_back or frame
        if not _muted.on:
            original(**arguments)
        message = arguments["message"]
        kind = type(message) if isinstance(message, Warning) else arguments.get("category") or UserWarning
        registry = frame.f_globals.setdefault("__warningregistry__", {})
        location = frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__"), registry
        self.warned.append(functools.partial(warnings.warn_explicit, message, kind, *location))


def calling_frame() -> types.FrameType:
    """Return the frame that has called the function which calls this, also if it did so by an intercepted function
    (`getattr`)."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return frame


class NotedCalls(OutsideCalls):
    """The calls of a function that is traced at each of its calls if it makes any of those that are refused elsewhere.
    They are made while it is traced, as prints and warnings are."""

    def _overrides(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        return (override for override in super()._overrides() if override[1] not in ("print", "warn", "handle"))

    def _refuse(self, reason: str, *call: Any) -> Any:
        original, args, kwargs = call
        self.refused = reason
        return original(*args, **kwargs)


def _refused() -> Iterator[tuple[Any, str, str]]:
    """Yield (a module or class, a name in it, the reason) of each refused function whose module is loaded."""
    for reason, path, names in _REFUSED:
        module, _, cls = path.rpartition(".")
        owner = sys.modules.get(path) or getattr(sys.modules.get(module), cls, None)
        yield from ((owner, name, reason) for name in names if owner is not None and name in vars(owner))


def is_outside(value: Any) -> bool:
    """Return True for a refused function, which a program may have bound to another name."""
    if not isinstance(value, types.BuiltinFunctionType | types.FunctionType) or value.__name__ not in _NAMES:
        return False
    return any(vars(owner)[name] is value for owner, name, _ in _refused())


def _by_program(frame: types.FrameType | None) -> bool:
    """Return True if the caller is the program itself, possibly through the standard library; `logging` puts the time
    into its records, which each call does again."""
    while frame is not None and _is_standard(frame.f_code.co_filename):
        if frame.f_code.co_qualname == "LogRecord.__init__":
            return False
        frame = frame.f_back
    return frame is not None and not in_library(frame.f_code.co_filename)


def _is_standard(file: str) -> bool:
    return file.startswith("<frozen") or (file.startswith(_STANDARD) and not file.startswith(_SITE))


# ---- objects ---------------------------------------------------------------------------------------------------------

_OPAQUE_PACKAGES = {"pandas", "PIL", "polars", "pyarrow"}
STREAM_METHODS = (
    *("write", "writelines", "read", "readline", "readlines", "readinto"),
    *("seek", "truncate", "tell", "getvalue", "getbuffer"),
)
_HIDDEN = {  # modules of such objects
    *("_queue", "_csv", "sqlite3", "zlib", "_bz2", "_lzma", "_hashlib", "_md5", "_sha1", "_sha2", "_sha256", "_sha512"),
    *("_sha3", "_blake2", "xml.etree.ElementTree", "pyexpat", "_asyncio", "_socket", "select"),
}
# {class: its methods whose results depend on state that cannot be compared}
HIDDEN_RESULTS = {
    "_thread.lock": ("locked",),
    "_thread.RLock": ("_is_owned",),
    "torch._C.Generator": ("initial_seed",),  # `get_state` is what a program saves elsewhere
}
SIGNALS = (threading.Event, threading.Semaphore, threading.Barrier)
SIGNAL_METHODS = ("set", "clear", "wait", "acquire", "release", "abort", "reset")


def has_hidden_state(value: Any) -> bool:
    """Return whether it is a stream, or an object made in C whose contents cannot be compared."""
    kind = type(value)
    if isinstance(value, io.IOBase | types.CellType) or (kind.__module__, kind.__name__) == ("decimal", "Context"):
        return True
    return kind.__module__ in _HIDDEN and not is_python_class(kind)


def is_iterator(value: Any) -> bool:
    """Return whether it is a generator or one of Python's own iterators, whose position cannot be read."""
    return isinstance(value, Iterator) and not is_python_class(type(value)) and not hasattr(value, "fileno")


def differs_at_each_call(value: Any) -> bool:
    """Return whether a use of it may give another result at each call: a refused function, an iterator, an object of
    `unittest.mock`, which counts its calls and makes attributes when asked, or a table of pandas or an image, whose
    memory is not that of an array."""
    mocks = sys.modules.get("unittest.mock")
    if type(value).__module__.partition(".")[0] in _OPAQUE_PACKAGES and not isinstance(value, type):
        return True
    return is_outside(value) or is_iterator(value) or (mocks is not None and isinstance(value, mocks.NonCallableMock))
