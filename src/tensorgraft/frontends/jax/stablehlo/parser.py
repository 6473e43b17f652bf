"""Modules of StableHLO from files, parsed in a process of their own first.

The parser of MLIR, in C++, ends the process on some broken modules, and does not end on others. One that it has read
in another process, within limits of time and memory, can be parsed here.
"""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import sys
data = sys.stdin.buffer.read()
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (seconds := {seconds} + (len(data) >> 20), seconds))
    resource.setrlimit(resource.RLIMIT_AS, (size := (8 << 30) + 64 * len(data), size))
except (ImportError, ValueError):  # of Windows, or less is allowed already
    pass
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, sdy, stablehlo
context = ir.Context()
for dialect in (stablehlo, chlo, sdy):
    dialect.register_dialect(context)
with context:
    stablehlo.deserialize_portable_artifact(context, data).operation.verify()
"""
SECONDS = 30  # of computing, and one for each MiB


def check_module(module: bytes) -> None:
    """Parse and verify a portable artifact in another process.

    Raises ValueError with what the parser says, or that it has ended the process.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    completed = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(seconds=SECONDS)],
        input=module,
        capture_output=True,
        env=environment,
        check=False,
    )
    if completed.returncode:
        lines = completed.stderr.decode(errors="replace").strip().split("\n")
        message = next((line for line in lines if "error:" in line), lines[-1])[-300:]
        message = "it asks for more memory than it may have" if "bad_alloc" in message else message
        end = f"it ends its process with signal {-completed.returncode}" if completed.returncode < 0 else message
        raise ValueError(f"the parser of StableHLO does not read its module: {end}")
