"""Products with compressed rows as operators of the device, from the hub's: `graft::csr_matmul` and its transposed and
sampled forms. They stand below autograd, whose formulas for sparse tensors are in terms of sparse tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library

from tensorgraft.frontends.torch.core.operator import Operator
from tensorgraft.frontends.torch.core.spec import Spec
from tensorgraft.frontends.torch.dispatch.entry import entry
from tensorgraft.hub import registry

Tensor = torch.Tensor

_library = Library("graft", "FRAGMENT")


def _on_cpu(name: str) -> Callable[..., Tensor]:
    def call(*args: Any) -> Tensor:
        xp = registry.get("torch")
        with xp.scope():
            return getattr(xp, name)(*args)

    return call


def _kernel(name: str) -> Callable[..., Any]:
    return lambda xp, *args: getattr(xp, name)(*args)


def _define(name: str, arguments: str, shape: Callable[..., Any]) -> Any:
    _library.define(f"{name}({arguments}) -> Tensor")
    op = getattr(torch.ops.graft, name).default
    _library.impl(name, lambda *args: args[3].new_empty(shape(*args)), "Meta")
    _library.impl(name, _on_cpu(name), "CPU")
    _library.impl(name, entry(Operator(op, Spec(_kernel(name)))), "PrivateUse1")
    return op


_MATRIX = "Tensor starts, Tensor columns, Tensor values, Tensor dense"
csr_matmul = _define("csr_matmul", _MATRIX, lambda s, c, v, x: (s.shape[0] - 1, x.shape[1]))
csr_transposed_matmul = _define("csr_transposed_matmul", f"{_MATRIX}, int n", lambda s, c, v, x, n: (n, x.shape[1]))
csr_sampled_matmul = _define(
    "csr_sampled_matmul", "Tensor starts, Tensor columns, Tensor a, Tensor b", lambda s, c, a, b: c.shape
)
