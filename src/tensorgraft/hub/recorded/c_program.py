"""Recorded programs compiled by the machine's C++ compiler, for loops over small arrays of the host."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tensorgraft.hub import cpp
from tensorgraft.hub.recorded.c_source import CSource, NoWordError
from tensorgraft.hub.recorded.program import Program
from tensorgraft.hub.recorded.simplification import simplified

# every operation is rounded separately, and integers wrap
_OPTIONS = ("-ffp-contract=off", "-fwrapv")
_LONGEST = 3000  # lines of source, which take some ten seconds


class CProgram:
    """A program as a function of host arrays, whose results are new host arrays. Raises NoWordError where there is no
    compiler, or where the source has no word for what the program does, and OSError where it cannot be compiled."""

    def __init__(self, program: Program) -> None:
        if cpp.compiler() is None:
            raise NoWordError("there is no C++ compiler")
        program = Program(simplified(program.block))
        source = CSource(program.block, program.constants)
        if len(source.lines) > _LONGEST:
            raise NoWordError("the program is too long")
        self.source = source.text
        run: Any = cpp.library(source.text, _OPTIONS).program
        run.argtypes, run.restype = (ctypes.c_void_p, ctypes.c_void_p), None
        self._run = run
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
