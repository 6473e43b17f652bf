"""`torch.fft` of float16 tensors: computed in float32 and rounded once.

PyTorch's composites refuse float16 on devices other than CUDA. Here its transforms are those of the float32 tensor,
above autograd. (complex32, which the composites accept, is computed so by every operator.)
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.library import Library

from tensorgraft import warning_filters
from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.core.devices import TYPE

Tensor = torch.Tensor

_TRANSFORMS = tuple(f"{kind}{form}" for kind in ("", "i", "r", "ir", "h", "ih") for form in ("fft", "fft2", "fftn"))
_NARROW = {torch.float32: torch.float16, torch.complex64: torch.complex32}
_WIDE = {narrow: wide for wide, narrow in _NARROW.items()}

_library = Library("aten", "IMPL")


def install() -> None:
    with warning_filters.ignored():  # PyTorch notes the first kernel in a process that replaces another
        for name in _TRANSFORMS:
            functional, out = schema.overload(f"fft_{name}"), schema.overload(f"fft_{name}.out")
            for key in ("AutogradPrivateUse1", "PrivateUse1", "FuncTorchBatched"):
                _library.impl(f"fft_{name}", functools.partial(_transform, functional), key)
            for key in ("AutogradPrivateUse1", "PrivateUse1"):
                _library.impl(f"fft_{name}.out", functools.partial(_transform_out, out), key)


def _composite(op: Any, *args: Any, **kwargs: Any) -> Tensor:
    result: Tensor = op._op_dk(torch.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
    return result


def _transform(op: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if x.dtype is not torch.float16 or x.device.type != TYPE:
        return _composite(op, x, *args, **kwargs)
    result = _composite(op, x.to(torch.float32), *args, **kwargs)
    return result.to(_NARROW[result.dtype])


def _transform_out(op: Any, x: Tensor, *args: Any, out: Tensor, **kwargs: Any) -> Tensor:
    if x.dtype is not torch.float16:
        return _composite(op, x, *args, out=out, **kwargs)
    op(torch.empty_like(x, device="meta"), *args, out=torch.empty_like(out, device="meta"), **kwargs)  # its checks
    wide = torch.empty_like(out, dtype=_WIDE.get(out.dtype, out.dtype))
    _composite(op, x.to(torch.float32), *args, out=wide, **kwargs)
    return out.resize_(wide.shape).copy_(wide)
