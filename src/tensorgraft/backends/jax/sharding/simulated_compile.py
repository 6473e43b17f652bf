"""A process that compiles one program for simulated devices, and reports XLA's analysis of it. It is run as a file, and
imports nothing of this package."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_MEMORY = tuple(
    f"{name}_in_bytes" for name in ("argument_size", "output_size", "alias_size", "temp_size", "peak_memory")
)


@dataclass
class CompilationResult:
    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    peak_memory_in_bytes: int
    costs: dict[str, float]
    text: str


def load(path: Path) -> CompilationResult:
    return CompilationResult(**json.loads(path.read_text()))


def main(program: str, result: str, count: str, *settings: str) -> None:
    import jax
    import numpy as np
    from jax._src import compiler
    from jax._src.lib import xla_client
    from jax.extend import backend
    from jax.extend.mlir import ir

    n = int(count)
    jax.config.update("jax_num_cpu_devices", n)
    client = backend.get_backend("cpu")
    # memory and exchanges are determined before LLVM runs, and the code will not be executed
    overrides: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    overrides |= dict(setting.split("=", 1) for setting in settings)
    options = backend.get_compile_options(1, n, np.arange(n).reshape(1, n), overrides, backend=client)
    options.executable_build_options.use_spmd_partitioning = True
    options.executable_build_options.use_shardy_partitioner = True
    lowered: Any = jax.jit(abs).lower(0.0).compiler_ir()
    with lowered.context:  # it knows the dialects that JAX lowers to
        module = ir.Module.parse(Path(program).read_bytes())
        devices = xla_client.DeviceList(tuple(client.devices()))
        executable = compiler.backend_compile_and_load(client, module, devices, options, [])
    stats = executable.get_compiled_memory_stats()
    sizes = {name: getattr(stats, name, 0) for name in _MEMORY}
    flops = {k: v for k, v in executable.cost_analysis().items() if k in ("flops", "bytes accessed")}
    results = CompilationResult(**sizes, costs=flops, text=executable.hlo_modules()[0].to_string())
    Path(result).write_text(json.dumps(asdict(results)))


if __name__ == "__main__":
    main(*sys.argv[1:])
