"""What the conformance run consists of: PyTorch's databases of operators, modules and optimizers, by mode and dtype."""

from __future__ import annotations

import fnmatch
import functools
import os
import tomllib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORWARD_DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool", "complex64")
MODES: dict[str, tuple[str, ...]] = {
    "forward": FORWARD_DTYPES,
    "method": ("float32",),
    "inplace": ("float32", "int64", "bfloat16", "bool", "complex64"),
    "out": ("float32", "int64", "complex64"),
    "strides": ("float32",),
    "error": ("float32",),
    "backward": ("float32", "float64", "bfloat16", "complex64"),
    "gradgrad": ("float64",),
    "forward_ad": ("float32",),
    "vmap": ("float32",),
    "jvp": ("float32",),
    "jacrev": ("float32",),
}
MODULE_MODES = ("forward", "backward", "transfer")
SALT = os.environ.get("TENSORGRAFT_SAMPLE", "")  # another one: another sample
KNOWN = Path(__file__).parent / "known"
# of a thousand cases, in the sample that `make test` runs
SAMPLE = {"jax": 6, "numpy": 20, "torch": 20, "tensorflow": 8}


@dataclass(frozen=True)
class Case:
    database: str  # operators, modules, optimizers
    mode: str
    dtype: str
    name: str
    backend: str

    @property
    def key(self) -> str:
        return f"{self.database}/{self.mode}/{self.dtype}/{self.name}"

    def in_sample(self, of_thousand: int | None) -> bool:
        """A case is in every sample that is larger than one that it is in."""
        chosen = SAMPLE[self.backend] if of_thousand is None else of_thousand
        return zlib.crc32(f"{SALT}{self.key}/{self.backend}".encode()) % 1000 < chosen


def operator_cases(backend: str) -> Iterator[Case]:
    for name, op in operators().items():
        for mode, dtypes in MODES.items():
            for dtype in dtypes:
                if _declared(op, mode, dtype):
                    yield Case("operators", mode, dtype, name, backend)


@functools.cache
def operators() -> dict[str, Any]:
    """OpInfo by name and variant. Operators of sparse layouts alone have no samples here."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.name + ("." + op.variant_test_name if op.variant_test_name else ""): op for op in op_db}


def _declared(op: Any, mode: str, dtype_name: str) -> bool:
    """OpInfo says that the operator has this."""
    import torch

    dtype = getattr(torch, dtype_name)
    if mode == "error":
        return op.error_inputs_func is not None
    if dtype not in op.supported_dtypes("cpu"):
        return False
    if mode == "method":
        return op.get_method() is not None
    if mode == "inplace":
        return op.get_inplace() is not None or op.get_inplace_operator() is not None
    if mode == "out":
        return op.supports_out
    if mode in ("backward", "gradgrad", "jacrev"):
        differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        return differentiable and (mode != "gradgrad" or op.supports_gradgrad)
    if mode in ("forward_ad", "jvp"):
        return op.supports_forward_ad and dtype in op.supported_backward_dtypes("cpu")
    return True


def module_cases(backend: str) -> Iterator[Case]:
    for name, info in modules().items():
        for mode in MODULE_MODES if "torch.float32" in map(str, info.dtypes) else ():
            yield Case("modules", mode, "float32", name, backend)


@functools.cache
def modules() -> dict[str, Any]:
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db}


def optimizer_cases(backend: str) -> Iterator[Case]:
    for name, info in optimizers().items():
        ways = {"default", "forloop", *info.supported_impls} - {"differentiable"}
        for way in sorted(ways | ({"capturable"} if info.has_capturable_arg else set())):
            yield Case("optimizers", way, "float32", name, backend)


@functools.cache
def optimizers() -> dict[str, Any]:
    from torch.testing._internal.common_optimizers import optim_db

    return {info.optim_cls.__name__: info for info in optim_db}


@functools.cache
def fallback_reasons() -> dict[str, str]:
    """Operator -> why it runs on the CPU."""
    return tomllib.loads((KNOWN / "fallbacks.toml").read_text())


def known_failures(backend: str) -> list[tuple[str, str]]:
    """(pattern of `Case.key`, reason) of what is known to fail on a backend: on every one, and on this."""
    files = [path for name in ("every", backend) if (path := KNOWN / f"{name}.toml").exists()]
    tables = [tomllib.loads(path.read_text()) for path in files]
    return [(pattern, reason) for table in tables for reason, patterns in table.items() for pattern in patterns]


def known(key: str, failures: list[tuple[str, str]]) -> str | None:
    """The reason why the case of this key is known to fail."""
    return next((reason for pattern, reason in failures if fnmatch.fnmatchcase(key, pattern)), None)
