"""Behaviour of quantised tensors other than operations: printing, and errors of optimizers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.frontends.torch.quantized.tensors import dequantize, is_quantized


def repr_of(original: Callable[..., str]) -> Callable[..., str]:
    """Wrap `Tensor.__repr__` to print the scheme, too; printing is not counted as an operation that makes dense."""

    def printed(self: Any, *, tensor_contents: Any = None) -> str:
        if self.device.type != TYPE or not torch._C._has_storage(self) or not is_quantized(self):
            return original(self, tensor_contents=tensor_contents)
        text = original(dequantize(self), tensor_contents=tensor_contents)
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"{text[:-1]}, scheme={cell_of(self).array.scheme}{grad})"

    return functools.wraps(original)(printed)


def refusing(original: Callable[..., None]) -> Callable[..., None]:
    def add_param_group(self: torch.optim.Optimizer, param_group: dict[str, Any]) -> None:
        params = param_group.get("params") if isinstance(param_group, dict) else None
        if isinstance(params, torch.Tensor):
            params = [params]
        if isinstance(params, list | tuple):
            for i, p in enumerate(p[1] if isinstance(p, tuple) and len(p) == 2 else p for p in params):
                if isinstance(p, torch.Tensor) and p.requires_grad and is_quantized(p):
                    raise ValueError(
                        f"{type(self).__name__}: parameter {i} of the group, of shape {tuple(p.shape)}, is"
                        " quantised and requires a gradient, but steps smaller than half a code would be lost."
                        " Freeze it (requires_grad_(False)), or train dense weights with"
                        " tg.quantization.prepare_qat_"
                    )
        original(self, param_group)

    return functools.wraps(original)(add_param_group)
