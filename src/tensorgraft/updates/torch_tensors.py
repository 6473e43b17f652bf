"""Updates of `torch.Tensor`s on any device. PyTorch's own operators do them: autograd and `torch.compile` know them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tensorgraft.updates.rules import check_dtype, check_shape

_REDUCE = {"add": "sum", "multiply": "prod", "min": "amin", "max": "amax"}
_INPLACE = {"set": "copy_", "add": "add_", "multiply": "mul_"}


def _numpy(dtype: torch.dtype) -> np.dtype:
    return np.dtype(str(dtype).removeprefix("torch."))


def _fitting(x: torch.Tensor, value: Any, keep_dtype: bool = True) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        if not keep_dtype:
            number = isinstance(value, bool | int | float | complex)
            check_dtype(value if number else np.asarray(value).dtype, _numpy(x.dtype))
        value = torch.as_tensor(value, device=x.device)
    elif not keep_dtype:
        check_dtype(_numpy(value.dtype), _numpy(x.dtype))
    if value.is_complex() and not x.is_complex():
        value = value.real
    return value.to(x.dtype)


def update(x: torch.Tensor, value: Any, keep_dtype: bool) -> None:
    value = _fitting(x, value, keep_dtype)
    check_shape(tuple(value.shape), tuple(x.shape))
    x.copy_(value)


def scatter(x: torch.Tensor, index: Any, value: Any, mode: str) -> None:
    value = _fitting(x, value)
    target = x[index]
    check_shape(tuple(value.shape), tuple(target.shape))
    keys = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(k, torch.Tensor | np.ndarray | list | bool) for k in keys):  # a view
        if mode in _INPLACE:
            getattr(target, _INPLACE[mode])(value)
        else:
            target.copy_((torch.minimum if mode == "min" else torch.maximum)(target, value))
        return
    positions = torch.arange(x.numel(), device=x.device).reshape(x.shape)[index].reshape(-1)
    values = value.expand(target.shape).reshape(-1)
    flat = x.reshape(-1)
    updated = (
        flat.index_put((positions,), values)
        if mode == "set"
        else flat.scatter_reduce(0, positions, values, _REDUCE[mode], include_self=True)
    )
    x.copy_(updated.reshape(x.shape))
