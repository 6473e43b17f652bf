"""Recorded programs compiled by the machine's C++ compiler, for loops over small arrays of the host."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensorgraft.hub import compile_cache
from tensorgraft.hub.recorded.c_source import CSource, NoWordError
from tensorgraft.hub.recorded.program import Program
from tensorgraft.hub.recorded.simplification import simplified

# every operation is rounded separately, and integers wrap
_OPTIONS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fwrapv", "-fPIC", "-shared")
_LONGEST = 3000  # lines of source, which take some ten seconds


@functools.cache
def compiler() -> str | None:
    """Return the path of a C++ compiler; None without one."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))), None)


class CProgram:
    """A program as a function of host arrays, whose results are new host arrays. Raises NoWordError where there is no
    compiler, or where the source has no word for what the program does, and OSError where it cannot be compiled."""

    def __init__(self, program: Program) -> None:
        path = compiler()
        if path is None:
            raise NoWordError("there is no C++ compiler")
        program = Program(simplified(program.block))
        source = CSource(program.block, program.constants)
        if len(source.lines) > _LONGEST:
            raise NoWordError("the program is too long")
        self.source = source.text
        self._run = _compiled(path, source.text)
        self._constants = [np.ascontiguousarray(v.known()) for v in source.large]
        self._inputs, self._outputs, self._arena = program.inputs, program.outputs, source.arena + 64

    def __call__(self, *arrays: Any) -> list[np.ndarray]:
        for x, spec in zip(arrays, self._inputs, strict=True):
            if x.shape != spec.shape or x.dtype != spec.dtype:
                raise ValueError(f"a {x.dtype} array of shape {x.shape} was given to a program of {spec}")
        inputs = [np.require(x, requirements=["C", "A"]) for x in arrays]
        outputs = [np.empty(spec.shape, spec.dtype) for spec in self._outputs]
        arena = np.empty(self._arena, np.uint8)
        places = [x.ctypes.data for x in (*self._constants, *inputs, *outputs)]
        start = arena.ctypes.data
        self._run((ctypes.c_void_p * len(places))(*places), start + -start % 64)
        return outputs


def _compiled(path: str, text: str) -> Callable[[Any, int], None]:
    name = hashlib.sha256("\n".join((path, *_OPTIONS, text)).encode()).hexdigest()[:32]
    folder = compile_cache.directory("c++")
    with tempfile.TemporaryDirectory() as scratch:
        library = Path(scratch if folder is None else folder, f"{name}.so")
        if not library.exists():
            source, built = Path(scratch, "program.cpp"), Path(scratch, f"{name}.so")
            source.write_text(text)
            command: Sequence[str] = (path, *_OPTIONS, "-o", str(built), str(source))
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                raise OSError(f"{path} failed: {result.stderr[:2000]}")
            if folder is not None:
                staged = Path(folder, f"{name}.{os.getpid()}")
                shutil.copy(built, staged)
                staged.replace(library)
        run: Any = ctypes.CDLL(str(library)).program  # it stays in memory when its file is removed
    run.argtypes, run.restype = (ctypes.c_void_p, ctypes.c_void_p), None
    return run
