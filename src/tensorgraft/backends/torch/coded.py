"""Products with matrices of codes on a CPU: rows are decoded in blocks that stay in the cache, and multiplied there.

Compiled programs call this as one operator: it is quicker than to decode all of a matrix in a loop made for that, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tensorgraft.backends.torch.operators import LIBRARY, followed
from tensorgraft.backends.torch.precision import torch_dtype
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.coded import Coded, Coding, spread_blocks

Tensor = torch.Tensor

_BLOCK = 1 << 19  # numbers: 2 MB of float32
_FEW = 8  # rows of bfloat16 for which products of bfloat16 do not pay, or kernels for one row do
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_tables: dict[tuple[Coding, torch.device], Tensor] = {}


class TorchCoded:
    def coded_matmul(
        self: Any,
        x: Array,
        codes: Array,
        scale: Array,
        zero: Array | None,
        coding: Coding,
        shape: tuple[int, int],
        axis: int = 1,
        dtype: np.dtype | None = None,
    ) -> Array:
        known = x.device.type == "cpu" and x.dtype in _FLOATS and x.numel() and 0 not in shape
        tensors = [t for t in (x, codes, scale, zero) if t is not None]
        if not known or not _divides(coding, shape[1], scale.shape[1]) or any(map(followed, tensors)):
            return Coded.coded_matmul(self, x, codes, scale, zero, coding, shape, axis, dtype)
        rows = (shape[0], scale.shape[1])
        scale, zero = (
            s if s is None or s.shape[0] in (1, shape[0]) else spread_blocks(self, s, rows) for s in (scale, zero)
        )
        table = None if coding.kind == "integer" else _table(self, coding)
        result = x.dtype if dtype is None else torch_dtype(dtype)
        numbers = coding.bits, coding.packed, coding.signed, *shape, axis, result
        return torch.ops.tensorgraft.coded_matmul.default(x, codes, scale, zero, table, *numbers)


def _divides(coding: Coding, k: int, groups: int) -> bool:
    """Return True if rows split evenly: into whole bytes for each group of integer codes, else into pairs of codes for
    the lookup."""
    if coding.kind == "integer":
        return not k // groups % coding.packed
    return coding.packed <= 2 and not k % 2


def _table(xp: Any, coding: Coding) -> Tensor:
    """Return the numbers of pairs of codes, by the number that a pair's bytes are: two float32, as one float64."""
    table = _tables.get((coding, xp.device))
    if table is None:
        with xp.eagerly():
            count = 16 if coding.packed == 2 else 256
            codes = xp.asarray(coding.all_codes())
            numbers: Array = coding.decode(xp, codes)
            per_code = torch.nn.functional.pad(numbers, (0, count - codes.shape[0]))
            pairs = torch.stack([per_code.repeat(count), per_code.repeat_interleave(count)], 1)
            table = _tables[coding, xp.device] = pairs.view(torch.float64).reshape(-1)
    return table


class _Decoder:
    """Rows of the matrix as float32, in a buffer. Of integers in one byte, those in the same place lie together: the
    axis k is (packed, k / packed), and numbers are `unit` times too large."""

    def __init__(self, codes: Tensor, table: Tensor | None, bits: int, packed: int, signed: bool, k: int) -> None:
        self.codes, self.table, self.bits, self.k = codes.contiguous(), table, bits, k
        self.lanes = packed if table is None else 1
        self.signed = signed
        self.unit = 1 << 8 - bits if self.lanes > 1 else 1
        if packed > 1:
            self.codes = self.codes.view(-1, k // packed)
        if self.lanes > 1 and signed:
            self.codes = self.codes.view(torch.int8)
        elif table is not None and packed == 1:
            self.codes = self.codes.view(torch.uint8).view(torch.uint16)

    def decode(self, start: int, stop: int, out: Tensor) -> None:
        rows = self.codes[start:stop]
        if self.table is not None:
            torch.index_select(self.table, 0, rows.to(torch.int32).view(-1), out=out.view(torch.float64).view(-1))
        elif self.lanes == 1:
            out.copy_(rows)
        else:
            lanes = out.view(stop - start, self.lanes, -1)
            top = -self.unit if self.signed else 256 - self.unit  # the highest bits of a byte
            for lane in range(self.lanes):
                left = 8 - self.bits * (lane + 1)
                moved = torch.bitwise_left_shift(rows, left) if left else rows
                lanes[:, lane].copy_(moved if not lane else torch.bitwise_and(moved, top))

    def grouped(self, x: Tensor, groups: int) -> Tensor:
        """Return a block of rows so that `per_group` broadcasts to it."""
        return x.view(x.shape[0], self.lanes, groups, -1)


def _per_group(x: Tensor, start: int, stop: int) -> Tensor:
    rows = x if x.shape[0] == 1 else x[start:stop]
    return rows.view(rows.shape[0], 1, -1, 1)


def _aligned(x: Tensor) -> bool:
    """Return whether `_weight_int8pack_mm` of PyTorch 2.13 reads an array without a segmentation fault, and to the end
    of each row alone (at present 16 numbers at a time), with room for wider registers."""
    return x.data_ptr() % 64 == 0 and x.shape[1] % 64 == 0


def _coded_matmul(
    x: Tensor,
    codes: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    table: Tensor | None,
    bits: int,
    packed: int,
    signed: bool,
    n: int,
    k: int,
    axis: int,
    result: torch.dtype,
) -> Tensor:
    """See `hub.operations.coded.Coded.coded_matmul`."""
    m, groups, dtype = x.shape[0], scale.shape[1], x.dtype
    by_row = axis == 1 and groups == 1 and zero is None  # scales of results
    codes = codes.contiguous()
    few_rows = by_row and codes.dtype == torch.int8 and packed == 1 and dtype == torch.bfloat16 and m <= _FEW
    if few_rows and _aligned(codes):
        x = x.contiguous()
        x = x if _aligned(x) else x.clone()
        product = torch._weight_int8pack_mm(x, codes, torch.ones(n, dtype=dtype))
        return product.to(torch.float32).mul_(scale.view(1, -1)).to(result)
    decoder = _Decoder(codes, table, bits, packed, signed, k)
    narrow = dtype == torch.bfloat16 and axis == 1 and m > _FEW and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    x = x if narrow else x.to(torch.float32)
    if axis == 1 and decoder.lanes > 1:
        x = x.reshape(m, -1, decoder.lanes).transpose(1, 2).reshape(m, k)
    zero = None if zero is None else zero * decoder.unit
    scale = scale / decoder.unit
    transposed_out = axis == 1 and not narrow and 4 < m <= 64  # the transposed product is faster
    block = max(1, min(n, _BLOCK // k))
    buffer = torch.empty(block, k)
    short = torch.empty(block, k, dtype=dtype) if narrow else buffer
    out = x.new_empty((m, k) if axis == 0 else (n, m) if transposed_out else (m, n))
    for start in range(0, n, block):
        stop = min(start + block, n)
        rows, values = buffer[: stop - start], short[: stop - start]
        decoder.decode(start, stop, rows)
        if zero is not None:
            decoder.grouped(rows, groups).sub_(_per_group(zero, start, stop))
        if not by_row:
            decoder.grouped(rows, groups).mul_(_per_group(scale, start, stop))
        if narrow:
            values.copy_(rows)
        if axis == 0:
            torch.addmm(out, x[:, start:stop], values, beta=1 if start else 0, out=out)
        elif transposed_out:
            torch.mm(values, x.t(), out=out[start:stop])
        else:
            torch.mm(x, values.t(), out=out[:, start:stop])
    if axis == 0 and decoder.lanes > 1:
        out = out.view(m, decoder.lanes, -1).transpose(1, 2).reshape(m, k)
    out = out.t().contiguous() if transposed_out else out
    if by_row:
        out = out.to(torch.float32).mul_(scale.view(1, -1))
    return out.to(result)


LIBRARY.define(
    "coded_matmul(Tensor x, Tensor codes, Tensor scale, Tensor? zero, Tensor? table, int bits, int packed, bool signed,"
    " int n, int k, int axis, ScalarType result) -> Tensor"
)
LIBRARY.impl("coded_matmul", _coded_matmul, "CPU")
LIBRARY.impl(
    "coded_matmul",
    lambda x, codes, scale, zero, table, bits, packed, signed, n, k, axis, result: x.new_empty(
        (x.shape[0], n if axis == 1 else k), dtype=result
    ),
    "Meta",
)
