"""Layouts that tensors of the device do not have: sparse, nested and quantised ones. Operators on them say so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library

from tensorgraft.frontends.torch.devices import TYPE

# by PyTorch's dispatch keys of them
LAYOUTS = {"Sparse": "sparse", "SparseCsr": "sparse", "NestedTensor": "nested", "Quantized": "quantised (qint8)"}
# of dense tensors
CONVERSIONS = {
    "_to_sparse": "sparse",
    "_to_sparse.sparse_dim": "sparse",
    "_to_sparse_csr": "sparse",
    "_to_sparse_csc": "sparse",
    "_to_sparse_bsr": "sparse",
    "_to_sparse_bsc": "sparse",
    "to_mkldnn": "mkldnn",
}
_libraries = [Library("_", "IMPL"), Library("aten", "IMPL")]


def install() -> None:
    everything, aten = _libraries
    for key, layout in LAYOUTS.items():
        everything.fallback(_refusal(layout), f"{key}PrivateUse1")
    for name, layout in CONVERSIONS.items():
        aten.impl(name, functools.partial(_refusal(layout), f"aten::{name}"), "PrivateUse1")
    # made of its parts without a call of the device's otherwise
    name = "_sparse_compressed_tensor_unsafe"
    aten.impl(name, functools.partial(_refusal("sparse"), f"aten::{name}"), "SparseCsrPrivateUse1")


def _refusal(layout: str) -> Callable[..., Any]:
    def refuse(op: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"{op if isinstance(op, str) else op.name()}: there are no {layout} tensors on the device {TYPE!r}, whose"
            " tensors are dense and strided. Make them dense first (x.to_dense(), sparse=False), or compute with them"
            " on the CPU."
        )

    return refuse


def check(t: torch.Tensor) -> None:
    """Raises NotImplementedError for a tensor of the CPU whose layout the device does not have."""
    if t.layout is not torch.strided or t.is_nested:
        layout = "nested" if t.is_nested else str(t.layout).removeprefix("torch.").removeprefix("_")
        _refusal(layout)("copying to the device")
