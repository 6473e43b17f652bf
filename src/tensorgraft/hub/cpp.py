"""Libraries from C++ source, compiled by the machine's compiler and kept in the cache of compiled programs."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tensorgraft.hub import compile_cache

_OPTIONS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fPIC", "-shared")


class NoCompilerError(Exception):
    """The machine has no C++ compiler."""


@functools.cache
def compiler() -> str | None:
    """Return the path of a C++ compiler; None without one."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))), None)


def library(text: str, options: Sequence[str] = ()) -> ctypes.CDLL:
    """Return the compiled library of a source text, which stays in memory when its file is removed. Raises
    NoCompilerError, and OSError where the source cannot be compiled."""
    path = compiler()
    if path is None:
        raise NoCompilerError
    options = (*_OPTIONS, *options)
    folder = compile_cache.directory("c++")
    with tempfile.TemporaryDirectory() as scratch:
        kept = Path(scratch if folder is None else folder, f"{key(path, *options, text)}.so")
        if not kept.exists():
            build(text, options, kept)
        return ctypes.CDLL(str(kept))


def key(*parts: str) -> str:
    """Return the name of what is built from these texts."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def build(text: str, options: Sequence[str], library: Path) -> None:
    """Compile a source text into the file `library`, which is there whole or not at all. Raises NoCompilerError, and
    OSError where the source cannot be compiled."""
    path = compiler()
    if path is None:
        raise NoCompilerError
    with tempfile.TemporaryDirectory() as scratch:
        source, built = Path(scratch, "program.cpp"), Path(scratch, "program.so")
        source.write_text(text, encoding="utf-8")
        command = (path, str(source), *options, "-o", str(built))
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise OSError(f"{path} failed: {result.stderr[:2000]}")
        staged = library.with_name(f"{library.stem}.{os.getpid()}")
        shutil.copy(built, staged)
        staged.replace(library)
