"""Errors of operators on tensors with layouts that the device does not support: nested, quantised and mkldnn ones, and
for unsupported operators on sparse ones (COO)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library

from tensorgraft.frontends.torch.core.devices import TYPE

SPARSE = frozenset({torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})
# {PyTorch's dispatch key: name of the layout}
LAYOUTS = {"NestedTensor": "nested", "Quantized": "quantised (qint8)"}
CONVERSIONS = {"to_mkldnn": "mkldnn"}
_libraries = [Library("_", "IMPL"), Library("aten", "IMPL")]


def install() -> None:
    all_operators, aten = _libraries
    for key, layout in LAYOUTS.items():
        all_operators.fallback(_refusal(layout), f"{key}PrivateUse1")
    for name, layout in CONVERSIONS.items():
        for key in ("PrivateUse1", "SparsePrivateUse1"):
            aten.impl(name, functools.partial(_refusal(layout), f"aten::{name}"), key)
    all_operators.fallback(_without_kernel, "SparsePrivateUse1")


def _refusal(layout: str) -> Callable[..., Any]:
    def refuse(op: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"{op if isinstance(op, str) else op.name()}: {layout} tensors are not supported on the device"
            f" {TYPE!r}, only strided and sparse ones. Make them dense first (x.to_dense()), or compute with"
            " them on the CPU."
        )

    return refuse


def _without_kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(
        f"{op.name()}: not supported for sparse tensors on the device {TYPE!r}. Make them dense first"
        " (x.to_dense()), or compute with them on the CPU."
    )


def check(t: torch.Tensor) -> None:
    """Raises NotImplementedError for a tensor of the CPU whose layout the device does not have."""
    if t.layout is not torch.strided or t.is_nested:
        layout = "nested" if t.is_nested else str(t.layout).removeprefix("torch.").removeprefix("_")
        _refusal(layout)("copying to the device")
