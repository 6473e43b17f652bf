"""Run a Python program as `python program` does: `__main__`, `sys.argv`, `sys.path`, traceback and exit code."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import runpy
import sys
import traceback
import types
from collections.abc import Sequence
from types import TracebackType

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Frames of tensorgraft that call code on behalf of the program: see `_own_frames`.
WRAPPERS = (os.path.join(PACKAGE, "frontends", "torch", "device", "accelerator.py"), os.path.abspath(__file__))
INTERRUPTED = 130  # the exit status of a shell for a program that was ended by Ctrl-C


def refusal(program: Sequence[str], module: bool = False) -> int | None:
    """Return the exit code that `python` has for a program that is not there, once the reason is printed; None where it
    is. Looks at files alone. (Whether there is a module in a package only the package can tell, when the program
    runs.)"""
    name = program[0]
    if module:
        top = name.partition(".")[0]
        spec = importlib.machinery.PathFinder.find_spec(top, [os.getcwd(), *sys.path[1:]])
        spec = spec or importlib.util.find_spec(top)
        if spec is None:
            print(f"tensorgraft: No module named {name}", file=sys.stderr)
            return 1
        paths = spec.submodule_search_locations
        if top != name or paths is None or importlib.machinery.PathFinder.find_spec("__main__", [*paths]):
            return None
        print(_no_program(name), file=sys.stderr)
        return 1
    if _find_main(name) is not None:
        return None
    if os.path.isdir(name):
        print(f"tensorgraft: can't find '__main__' module in {os.path.abspath(name)!r}", file=sys.stderr)
        return 1
    try:
        with open(name, "rb"):
            return None
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        print(f"tensorgraft: can't open file {os.path.abspath(name)!r}: {reason}", file=sys.stderr)
        return 2


def execute(program: Sequence[str], module: bool = False) -> int:
    """Run `program` (a script, or with `module` a module's name, then its arguments); returns its exit code.

    An exception that the program does not catch is printed to standard error as Python prints it, without the frames
    of tensorgraft and of the framework below it.
    """
    try:
        if module:
            _run_module(program)
        else:
            _run_script(program)
    except SystemExit as exit_:
        return _exit_code(exit_.code)
    except KeyboardInterrupt as error:
        print_exception(error)
        return INTERRUPTED
    except BaseException as error:
        print_exception(error)
        return 1
    return 0


def _run_script(program: Sequence[str]) -> None:
    path = program[0]
    sys.argv[:] = program
    # Not runpy.run_path: it takes `__main__` away again when the script ends, before `atexit` functions run.
    main = types.ModuleType("__main__")
    if (spec := _find_main(path)) is not None and spec.loader is not None:
        sys.path[0] = os.path.abspath(path)
        code = spec.loader.get_code("__main__")  # type: ignore[attr-defined]
        main.__dict__.update(__file__=spec.origin, __loader__=spec.loader, __spec__=spec, __package__="")
    else:
        # `python script.py` puts the script's folder where the folder of the command `tensorgraft` is now.
        sys.path[0] = os.path.dirname(os.path.realpath(path))
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        main.__dict__.update(__file__=path)
    main.__dict__.update(__builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _find_main(path: str) -> importlib.machinery.ModuleSpec | None:
    """Find `__main__` in a directory or a zip file, which Python runs as a script, too."""
    return importlib.machinery.PathFinder.find_spec("__main__", [os.path.abspath(path)])


def _no_program(package: str) -> str:
    return f"tensorgraft: No module named {package}.__main__; {package!r} is a package and cannot be directly executed"


def _run_module(program: Sequence[str]) -> None:
    name = program[0]
    sys.path[0] = os.getcwd()
    try:
        spec = importlib.util.find_spec(name)
    except ImportError:
        spec = None
    if spec is not None and spec.submodule_search_locations and not importlib.util.find_spec(f"{name}.__main__"):
        print(_no_program(name), file=sys.stderr)
        raise SystemExit(1)
    if spec is None:
        print(f"tensorgraft: No module named {name}", file=sys.stderr)
        raise SystemExit(1)
    sys.argv[:] = program
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1


# ---- tracebacks ------------------------------------------------------------------------------------------------------


def print_exception(error: BaseException) -> None:
    """Print as Python does an exception that ends a program, with only the program's own frames."""
    cut_traceback(error)
    sys.stdout.flush()
    traceback.print_exception(error)


def cut_traceback(error: BaseException, seen_errors: set[int] | None = None) -> None:
    """Take our frames out of an exception, of its causes and of its group's members."""
    seen_errors = set() if seen_errors is None else seen_errors
    if id(error) in seen_errors:
        return
    seen_errors.add(id(error))
    links: list[TracebackType] = []
    tb = error.__traceback__
    while tb is not None:
        links.append(tb)
        tb = tb.tb_next
    kept_link: TracebackType | None = None
    for link, is_own in zip(reversed(links), reversed(_own_frames(links)), strict=True):
        if is_own:
            link.tb_next = kept_link
            kept_link = link
    error.__traceback__ = kept_link
    for other in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())):
        if other is not None:
            cut_traceback(other, seen_errors)


def _own_frames(links: Sequence[TracebackType]) -> list[bool]:
    """Return for each frame True if it belongs to the program.

    Frames of tensorgraft do not, and neither do frames of a framework that it calls (JAX's own, PyTorch's
    decompositions), up to a call of the program's code, as `tg.jit` makes.
    """
    flags, below = [], False
    for link in links:
        file = link.tb_frame.f_code.co_filename
        if file in WRAPPERS or file == "<frozen runpy>":
            flags.append(False)
        elif file.startswith(PACKAGE):
            below = True
            flags.append(False)
        else:
            below = below and (_installed(file) or file.startswith("<frozen "))
            flags.append(not below)
    return flags


def _installed(file: str) -> bool:
    """Return True for a file of an installed library or of Python's own, not of the program."""
    return f"{os.sep}site-packages{os.sep}" in file or file.startswith(os.path.dirname(os.__file__) + os.sep)
