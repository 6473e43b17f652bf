"""Formats of the tensor classes of torchao 0.18, read as codes, scales and their encoding.

torchao has a class for each format, and no common layout. A reader here takes one of them apart, with torchao's own
functions where it rounds on the way to its scales, so that what is put together again is the same number for number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Reader = Callable[[Any], "TorchaoFormat"]


class TorchaoFormat(NamedTuple):
    """The parts of a tensor: (codes - zeros) * scales, or codes * scales + zeros if these are offsets."""

    codes: torch.Tensor  # in the tensor's shape, or flat; unpacked
    scale: torch.Tensor  # one for each block: its extents divide those of the codes
    encoding: str
    zero: torch.Tensor | None = None
    offset: bool = False
    table: tuple[float, ...] = ()


_READERS: dict[str, Reader] = {}
# Dense numbers, and a rule of their own for products: there are no codes to take
_DENSE = frozenset({"BitNetTrainingLinearWeight", "Int8MixedPrecisionTrainingLinearWeight"})
_WHY_NOT = {"GGUFQuantizedTensor": "divides by scales but does not round: its int_data are floats"}


def is_torchao(t: Any) -> bool:
    """Return True if `t` is of one of torchao's classes."""
    return isinstance(t, torch.Tensor) and bool(_names(t))


def is_dense(t: Any) -> bool:
    """Return True if `t` keeps dense numbers by design, for training."""
    return not _DENSE.isdisjoint(_names(t))


def read(t: Any) -> TorchaoFormat:
    """Raises TypeError for a class, or a variant of one, that does not keep codes, scales and zero points."""
    names = _names(t)
    if not names:
        raise TypeError(
            f"from_torchao: a {type(t).__module__}.{type(t).__qualname__} is not a tensor of torchao: expected a"
            " tensor that torchao has quantised, a module with such weights, or a state_dict of one"
        )
    reader = next((_READERS[name] for name in names if name in _READERS), None)
    if reader is None:
        reason = next(
            (_WHY_NOT[name] for name in names if name in _WHY_NOT), "keeps no codes that can be taken as they are"
        )
        raise TypeError(
            f"from_torchao: a {type(t).__module__}.{type(t).__qualname__} {reason}; {', '.join(sorted(_READERS))} are"
            " supported; convert others by t.dequantize()"
        )
    return reader(t)


def _names(t: Any) -> list[str]:
    return [c.__name__ for c in type(t).__mro__ if c.__module__.partition(".")[0] == "torchao"]


def _reads(*names: str) -> Callable[[Reader], Reader]:
    def register(reader: Reader) -> Reader:
        _READERS.update(dict.fromkeys(names, reader))
        return reader

    return register


def _unsupported(t: Any, problem: str) -> TypeError:
    return TypeError(
        f"from_torchao: a {type(t).__qualname__} of shape {tuple(t.shape)} {problem}, or move the dense numbers,"
        " t.dequantize()"
    )


_FLOATS = {torch.float8_e4m3fn: "float8_e4m3", torch.float8_e5m2: "float8_e5m2"}


@_reads("Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor")
def _plain(t: Any) -> TorchaoFormat:
    """Codes of the tensor's shape, in bytes, and scales for blocks of `block_size`."""
    codes, block = t.qdata, tuple(t.block_size or t.shape)
    encoding = _FLOATS.get(codes.dtype) or str(getattr(t, "target_dtype", codes.dtype)).removeprefix("torch.")
    grid = tuple(n // max(b, 1) for n, b in zip(t.shape, block, strict=True))
    if tuple(codes.shape) != tuple(t.shape) or math.prod(grid) != t.scale.numel():
        raise _unsupported(t, f"keeps codes of {tuple(codes.shape)} and {t.scale.numel()} scales for blocks of {block}")
    zero = getattr(t, "zero_point", None)
    if zero is not None and (zero.numel() == 0 or not bool(zero.any())):
        zero = None
    return TorchaoFormat(codes, t.scale.reshape(grid), encoding, None if zero is None else zero.reshape(grid))


@_reads("Int8QuantizedTrainingLinearWeight")
def _training(t: Any) -> TorchaoFormat:
    return TorchaoFormat(t.int_data, t.scale.reshape(-1, 1), "int8")


@_reads("NVFP4Tensor", "MXTensor")
def _microscaled(t: Any) -> TorchaoFormat:
    """Runs of 16 or 32 along the last axis, whose scales are floats of 8 bits, and may lie in tiles."""
    if t.qdata.stride(-2) < t.qdata.stride(-1) and t.qdata.dim() > 1:
        raise _unsupported(t, "is transposed: use the tensor of which it is a view")
    shape, grid = tuple(t.shape), (*t.shape[:-1], t.shape[-1] // t.block_size)
    kind = getattr(t, "elem_dtype", torch.float4_e2m1fn_x2)
    if kind in _FLOATS:
        codes, encoding = t.qdata, _FLOATS[kind]
    elif kind == torch.float4_e2m1fn_x2:
        codes, encoding = _nibbles(t.qdata.view(torch.uint8), low_first=True).reshape(shape), "float4_e2m1"
    else:
        codes, encoding = t.qdata, {"fp6_e2m3": "float6_e2m3", "fp6_e3m2": "float6_e3m2"}[str(kind)]
    if hasattr(t, "get_hp_scales"):
        return TorchaoFormat(codes, t.get_hp_scales().reshape(grid), encoding)
    scale = t.scale
    if t.is_swizzled_scales:
        from torchao.prototype.mx_formats.utils import from_blocked

        scale = from_blocked(scale, math.prod(grid[:-1]), grid[-1])
    exponents = scale.contiguous().view(torch.uint8).reshape(grid).int()
    values = torch.ldexp(torch.ones(grid, device=exponents.device), exponents - 127)
    return TorchaoFormat(codes, torch.where(exponents == 255, math.nan, values), encoding)


@_reads("NF4Tensor")
def _normal_float(t: Any) -> TorchaoFormat:
    """Runs of `block_size` of the flattened tensor, whose scales are quantised, too."""
    codes = _nibbles(t.quantized_data, low_first=False)
    scale = t.dequantize_scalers(t.quantized_scalers, t.quantization_factor, t.scaler_block_size)
    if t.shape and t.shape[-1] % t.block_size == 0:
        codes, scale = codes.reshape(t.shape), scale.reshape(*t.shape[:-1], -1)
    return TorchaoFormat(codes, scale, "table", table=tuple(t.nf4.float().tolist()))


@_reads("CodebookQuantizedTensor")
def _codebook(t: Any) -> TorchaoFormat:
    """Codes that are places in a table, which k-means has found."""
    if not hasattr(t, "scales"):
        raise _unsupported(t, "has a table for each group")
    if math.prod(t.codebook.shape[1:]) != 1 or len(t.codebook) > 256:
        raise _unsupported(t, f"has a table of {len(t.codebook)} blocks of {tuple(t.codebook.shape[1:])} numbers")
    codes = t.codes.get_plain() if hasattr(t.codes, "get_plain") else t.codes
    scale = t.scales.squeeze(-1).broadcast_to(*codes.shape[:-1], t.scales.shape[-2])
    return TorchaoFormat(codes.to(torch.uint8), scale, "table", table=tuple(t.codebook.float().flatten().tolist()))


@_reads("Int4OpaqueTensor")
def _opaque(t: Any) -> TorchaoFormat:
    """Codes that only a product of PyTorch's knows the order of: the product with 1, of scales 1 and offsets 0, gives
    them."""
    if t.act_mapping_type is not None:
        raise _unsupported(t, "is packed for products with int8 activations")
    (n, k), packed, numbers = t.shape, t.qdata.cpu(), t.scale_and_zero.cpu()
    selector = torch.zeros_like(numbers)
    selector[..., 0] = 1
    columns = [
        torch.ops.aten._weight_int4pack_mm_for_cpu(rows, packed, t.block_size[1], selector)[:, :n]
        for rows in torch.eye(k, dtype=t.dtype, device="cpu").split(256)
    ]
    codes = torch.cat(columns).t().to(torch.int8)
    scale, zero = numbers.transpose(0, 1).unbind(-1)
    return TorchaoFormat(codes, scale[:n], "int4", zero[:n], offset=True)


def _nibbles(packed: torch.Tensor, low_first: bool) -> torch.Tensor:
    """Return the two codes in each byte: (..., n) bytes as (..., 2 n) codes."""
    low, high = packed & 15, packed >> 4
    return torch.stack((low, high) if low_first else (high, low), -1).flatten(-2)
