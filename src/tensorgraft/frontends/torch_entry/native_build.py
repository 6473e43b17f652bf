"""The library of native kernels (`dispatch/native.cpp`): where it is kept, and how it is compiled.

It is compiled for one Python and one PyTorch, on request (`tensorgraft doctor --build`), and kept in the cache
directory. `TENSORGRAFT_NATIVE=0` leaves it unused. PyTorch is not imported here.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

from tensorgraft.hub import compile_cache, cpp

_SOURCE = Path(__file__).parents[1] / "torch" / "dispatch" / "native.cpp"
_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared")
_MADE_FOR_LINUX = ("-Wl,--no-as-needed",) if sys.platform == "linux" else ()
COMMAND = "tensorgraft doctor --build"


def _torch() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def _options() -> tuple[str, ...]:
    torch, python = _torch(), sysconfig.get_paths()["include"]
    include = torch / "include"
    headers = (python, str(include), str(include / "torch" / "csrc" / "api" / "include"))
    libraries = ("-lc10", "-ltorch_cpu", "-ltorch_python")
    folders = (f"-I{folder}" for folder in headers)
    return *_FLAGS, *folders, *_MADE_FOR_LINUX, f"-L{torch / 'lib'}", *libraries


def is_wanted() -> bool:
    """Return True unless `$TENSORGRAFT_NATIVE` is 0."""
    return os.environ.get("TENSORGRAFT_NATIVE", "").lower() not in ("0", "off", "false", "no")


def place() -> Path | None:
    """Return the file of the library, which may not have been built; None where there is nowhere to keep it, or on a
    system for which it is not made."""
    root = compile_cache.default_root()
    if root is None or sys.platform == "win32":
        return None
    # which environment they are in makes no difference
    version = (_torch() / "version.py").read_text(encoding="utf-8")
    parts = (_SOURCE.read_text(encoding="utf-8"), version, sys.version, *_FLAGS)
    return root / "native" / f"{cpp.key(*parts)}.so"


def build() -> Path:
    """Compile the library, if it is not there, and return its file: some 20 seconds and 1 GB of memory.

    Raises OSError where it cannot be compiled, or there is nowhere to keep it.
    """
    library = place()
    if library is None:
        raise OSError("the native kernels are made for Linux and macOS, and for users who have a home directory")
    if library.exists():
        return library
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        raise OSError("the native kernels need the headers of Python (the package python3-dev, or the like)")
    library.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # the file is run as code
    library.parent.mkdir(exist_ok=True)
    try:
        cpp.build(_SOURCE.read_text(encoding="utf-8"), _options(), library)
    except cpp.NoCompilerError:
        raise OSError("the native kernels need a C++ compiler (g++ or clang++, or the one that $CXX names)") from None
    return library


def state() -> str:
    """Return in words whether eager operators use the native kernels."""
    if not is_wanted():
        return "not used (TENSORGRAFT_NATIVE=0)"
    library = place()
    if library is None:
        return "none for this system"
    if library.exists():
        return f"built, in {library.parent}"
    return f"not built; `{COMMAND}` compiles them, and small operators then take about a third of the time"
