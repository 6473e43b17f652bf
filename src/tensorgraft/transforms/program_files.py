"""Files that are programs: of `torch.export` and of `jax.export`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tensorgraft.importing import required


def _torch_program(path: str) -> Any:
    program = exported_program(path)
    try:
        return program.module()
    except Exception as error:  # of any kind, where the file is broken
        raise ValueError(f"{path} is not a file of torch.export: {type(error).__name__}: {error}") from error


def exported_program(path: str) -> Any:
    """Return the `ExportedProgram` in a file."""
    required("torch", by=f"the program in {path}")
    from tensorgraft.transforms.pt2_archive import load_program

    return load_program(path)


def exported_function(path: str) -> Any:
    """Return the `jax.export.Exported` in a file."""
    required("jax", by=f"the program in {path}")
    from jax import export

    from tensorgraft.frontends.jax.stablehlo import naming
    from tensorgraft.frontends.jax.stablehlo.parser import check_module

    with open(path, "rb") as file:
        data = bytearray(file.read())
    with naming(path):
        exported = export.deserialize(data)
        check_module(exported.mlir_module_serialized)
        return exported


def _jax_program(path: str) -> Any:
    from tensorgraft.frontends.jax.stablehlo import function_of

    return function_of(exported_function(path), path)


_READERS: dict[str, Callable[[str], Any]] = {".pt2": _torch_program, ".stablehlo": _jax_program}


def is_program_file(program: Any) -> bool:
    """Return True for the path of a file of `torch.export` (.pt2) or `jax.export` (.stablehlo)."""
    return isinstance(program, str | os.PathLike) and os.path.splitext(os.fspath(program))[1] in _READERS


def program_of_file(program: Any) -> Any:
    """Return the program in a file: a `torch.nn.Module`, or a function of JAX. Other programs are returned as they are.

    Raises FileNotFoundError, ValueError for a broken file, ModuleNotFoundError if the framework is not installed, and
    UnsupportedStableHLOError for an operation of StableHLO without a rule.
    """
    if not is_program_file(program):
        return program
    path = os.fspath(program)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path} does not exist")
    return _READERS[os.path.splitext(path)[1]](path)
