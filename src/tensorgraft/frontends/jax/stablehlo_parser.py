"""Modules of StableHLO from files, parsed in a process of their own first.

The parser of MLIR, in C++, ends the process on some broken modules. One that it has read in another process can be
parsed here.
"""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import sys
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, sdy, stablehlo
context = ir.Context()
for dialect in (stablehlo, chlo, sdy):
    dialect.register_dialect(context)
with context:
    stablehlo.deserialize_portable_artifact(context, sys.stdin.buffer.read()).operation.verify()
"""
SECONDS = 600


def check_module(module: bytes) -> None:
    """Parse and verify a portable artifact in another process.

    Raises ValueError with what the parser says, or that it has ended the process.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    completed = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=module, capture_output=True, env=environment, timeout=SECONDS, check=False
    )
    if completed.returncode:
        lines = completed.stderr.decode(errors="replace").strip().split("\n")
        said = next((line for line in lines if "error:" in line), lines[-1])[-300:]
        end = f"it ends its process with signal {-completed.returncode}" if completed.returncode < 0 else said
        raise ValueError(f"the parser of StableHLO does not read its module: {end}")
