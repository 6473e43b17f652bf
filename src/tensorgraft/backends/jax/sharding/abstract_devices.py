"""Arrays without memory, on devices that do not exist: their programs are traced, lowered and compiled, but not run.

An abstract array is a `jax.ShapeDtypeStruct`. A trace replaces one from outside by a stand-in, as it does for any
array: here the result of an operation without operands, which becomes an input of the program after the trace. XLA
compiles for the devices of its process: another process simulates them (`simulated_compile`).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Jaxpr, Primitive, Var
from jax.sharding import NamedSharding

from tensorgraft.backends.jax.sharding import simulated_compile
from tensorgraft.backends.jax.tracing import current_trace
from tensorgraft.hub.array import NativeArray as Array

_MOST_SECONDS = 3600

_given = Primitive("abstract_input")
_given.def_abstract_eval(lambda *, number, shape, dtype: ShapedArray(shape, dtype))


class _Thread(threading.local):
    inputs: AbstractInputs | None = None


_now = _Thread()


class AbstractInputs:
    """The abstract arrays that a trace takes."""

    def __init__(self) -> None:
        self._specs: list[jax.ShapeDtypeStruct] = []
        self._stand_ins: list[Array] = []
        self._trace: Any = None

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Context in which a trace replaces abstract arrays by stand-ins, nested traces included."""
        before, _now.inputs = _now.inputs, self
        self._trace = current_trace()
        try:
            yield
        finally:
            _now.inputs, self._trace = before, None

    def take(self, x: jax.ShapeDtypeStruct) -> Array:
        params = {"number": len(self._specs), "shape": x.shape, "dtype": np.dtype(x.dtype)}
        stand_in = self._trace.process_primitive(_given, (), params)
        self._specs.append(x)
        self._stand_ins.append(stand_in)
        return stand_in

    def out_of(self, jaxpr: Jaxpr) -> tuple[Jaxpr, list[Array], list[jax.ShapeDtypeStruct]]:
        """Return (the program whose last constants are the abstract arrays that it reads, their stand-ins, they
        themselves)"""
        if not self._specs:
            return jaxpr, [], []
        placeholders = [e for e in jaxpr.eqns if e.primitive is _given]
        read = {v for e in jaxpr.eqns for v in e.invars if isinstance(v, Var)} | {
            v for v in jaxpr.outvars if isinstance(v, Var)
        }
        placeholders = [e for e in placeholders if e.outvars[0] in read]
        numbers = [e.params["number"] for e in placeholders]
        rest = [e for e in jaxpr.eqns if e.primitive is not _given]
        closed = jaxpr.replace(constvars=[*jaxpr.constvars, *(e.outvars[0] for e in placeholders)], eqns=rest)
        return closed, [self._stand_ins[n] for n in numbers], [self._specs[n] for n in numbers]


def stand_in(x: jax.ShapeDtypeStruct) -> Array:
    if _now.inputs is None:
        raise TypeError(
            f"a {x.dtype} array of shape {x.shape} is on an abstract mesh and has no memory: programs with it are"
            " planned, not run"
        )
    return _now.inputs.take(x)


def devices_of(arrays: Any) -> int:
    """Return the number of simulated devices of abstract arrays; 0 if there are no abstract arrays."""
    for x in arrays:
        sharding = getattr(x, "sharding", None)
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, jax.sharding.AbstractMesh):
            return sharding.mesh.size
    return 0


class LoweredElsewhere:
    """A `jax.stages.Lowered` whose `compile` runs in a process that simulates its devices."""

    def __init__(self, traced: Any, devices: int, options: Mapping[str, Any] | None) -> None:
        self._lowered = traced.lower(lowering_platforms=("cpu",))
        self._devices, self._options = devices, dict(options or {})

    def compile(self) -> CompiledElsewhere:
        code = io.BytesIO()
        self._lowered.compiler_ir("stablehlo").operation.write_bytecode(code)
        flags = " ".join(  # XLA takes what does not begin with a dash for the name of a file: a space too
            re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", "")).split()
        )
        env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        with tempfile.TemporaryDirectory() as folder:
            program, result = Path(folder) / "program", Path(folder) / "result"
            program.write_bytes(code.getvalue())
            command = [sys.executable, "-P", simulated_compile.__file__, str(program), str(result), str(self._devices)]
            command += [f"{name}={value}" for name, value in self._options.items()]
            run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_MOST_SECONDS)
            if run.returncode:
                output = "\n".join((run.stderr or run.stdout).strip().splitlines()[-5:])
                reason = f"it was ended by signal {-run.returncode}" if run.returncode < 0 else f"it said: {output}"
                raise RuntimeError(f"the process that compiles for {self._devices} devices has failed: {reason}")
            return CompiledElsewhere(simulated_compile.load(result))


class CompiledElsewhere:
    """The part of `jax.stages.Compiled` that is read from another process."""

    def __init__(self, results: simulated_compile.CompilationResult) -> None:
        self._results = results

    def cost_analysis(self) -> dict[str, float]:
        return self._results.costs

    def memory_analysis(self) -> Any:
        return self._results

    def as_text(self) -> str:
        return self._results.text
