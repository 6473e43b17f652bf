"""What PyTorch leaves open about a call of an operator: what memory, dtypes or numbers decide, kernel by kernel."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

Tensor = torch.Tensor
STEP = {
    torch.float32: 4e-7, torch.float64: 4e-15, torch.float16: 1e-3, torch.bfloat16: 8e-3,
    torch.complex64: 4e-7, torch.complex128: 4e-15,
}  # fmt: skip
_INVERSES = (
    "linalg_lu",
    "linalg_ldl",
    "linalg_solve",
    "linalg_inv",
    "inverse",
    "linalg_pinv",
    "linalg_tensorinv",
    "linalg_tensorsolve",
)
_BY_VECTORS = ("hardtanh_backward", "hardshrink_backward", "softshrink_backward", "hardswish_backward", "elu_backward")


def unspecified(func: Any, args: Any, kwargs: Any) -> str:
    """What PyTorch leaves open about this call, if it does."""
    name = func.name().partition("::")[2].partition(".")[0]
    if name in ("as_strided", "as_strided_copy", "as_strided_scatter") and _extent(*args[1:4]) > extent_of(
        args[0] if args[0]._base is None else args[0]._base
    ):
        return "room that a kernel has left behind its result"
    if name in ("_to_copy", "copy_", "to", "fill_", "copy", "_copy_from"):
        source = args[1] if name in ("copy_", "copy") else args[0]
        target = args[0].dtype if name in ("copy_", "copy") else kwargs.get("dtype", source.dtype) or source.dtype
        if isinstance(source, Tensor) and _beyond(source, target):
            return "a float beyond the range of the integer that it becomes"
    numbers = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    floats = [t for t in numbers if t.dtype in STEP]
    reason = _of_memory(func, args, kwargs, numbers) or _of_numbers(name, args, numbers, floats)
    if reason:
        return reason
    factors = name == "inverse" or any(part in name for part in ("linalg", "cholesky", "triangular", "lu_"))
    if factors and not all(map(_finite, floats)):
        return "a factorisation of a matrix that is not finite"
    if name.lstrip("_").startswith(_INVERSES) and _singular(name, args, kwargs):
        return "the inverse of a matrix that is singular to its precision"
    if name in ("cholesky_solve", "triangular_solve") and bool((args[1].diagonal(0, -2, -1) == 0).any()):
        return "what a triangular factor with a zero on its diagonal solves"
    if name == "linalg_cholesky_ex" and bool(torch.linalg.cholesky_ex(args[0])[1].any()):
        return "the columns of a factorisation that failed"
    complex_ones = [t for t in tree_leaves(args) if isinstance(t, Tensor) and t.is_complex()]
    if torch.Tag.pointwise in func.tags and any(
        not torch.isfinite(torch.view_as_real(t.resolve_conj())).all() for t in complex_ones
    ):
        return "complex arithmetic with infinities and NaN"
    if name in ("bmm", "baddbmm") and len({t.dtype for t in numbers}) > 1 and not all(t.numel() for t in numbers):
        return "products of nothing, of several dtypes"
    if name == "copy_" and args[0] is not args[1] and _one_memory(args[0], args[1]):
        return "a copy onto memory that it reads"
    if name.startswith("grid_sampler") and not torch.isfinite(args[1]).all():
        return "places of a grid that are not finite"
    if name.startswith(("polygamma", "special_zeta")):
        x = next(t for t in tree_leaves(args) if isinstance(t, Tensor)).double()
        if bool((~torch.isfinite(x) | ((x <= 0) & (x == x.floor())) | (x.abs() > 1e15)).any()):
            return "poles and infinities of polygamma"
    return ""


def _of_memory(func: Any, args: Any, kwargs: Any, numbers: list[Tensor]) -> str:
    """PyTorch asks for a clone before such writes; some kernels refuse them, others do whatever comes."""
    written = written_by(func, args, kwargs)
    if any(overlaps(t) for t in written):
        return "a write through a view whose elements share memory"
    if func.name().startswith(("aten::copy_", "aten::set_", "aten::_foreach")):
        return ""
    for t in written:
        those = [other for other in numbers if other is not t and _one_memory(t, other)]
        twice = sum(other is t for other in numbers) > 1
        for other in [t] * twice + those:
            if torch.Tag.pointwise not in func.tags:
                return "an operator that is not elementwise reads what it writes"
            if _crosses(t, other):
                return "an operator reads elements that it has written"
    if func.name() == "aten::gelu.out" and not written[0].is_contiguous():  # oneDNN writes a copy
        return "GELU into elements that do not follow each other, which the CPU leaves as they are"
    if "logsumexp.out" in func.name() and args[0].is_complex() and not written[0].is_complex():
        return "a sum of complex numbers in the memory of a real out="
    if _half_written(func.name().removeprefix("aten::").partition(".")[0], args, written):
        return "what the CPU has written before it raises"
    if func.name() == "aten::huber_loss.out" and written[0].numel() > 1:  # its kernel computes there
        return "what lies beside a result in the memory of out="
    return ""


def _half_written(name: str, args: Any, written: list[Tensor]) -> bool:
    """The CPU finds out that it cannot while it writes."""
    if name == "index_fill_" or (name.startswith("scatter") and written):
        size = args[0].size(args[1]) if args[0].dim() else 1
        return bool(((args[2] >= size) | (args[2] < (-size if name == "index_fill_" else 0))).any())
    if name == "mean":  # sums lie there before they are divided
        return any(t.dtype not in STEP for t in written)
    if name == "multilabel_margin_loss_forward":
        return any(t.dtype not in STEP for t in written) or bool((args[1] >= max(args[0].shape[-1:], default=1)).any())
    return name == "masked_scatter_" and int(args[1].broadcast_to(args[0].shape).sum()) > args[2].numel()


def _of_numbers(name: str, args: Any, numbers: list[Tensor], floats: list[Tensor]) -> str:
    """Numbers for which PyTorch's own kernels differ: by dtype, size, layout, or the library that computes."""
    plain = name.rstrip("_")
    seen = (
        (args[0], args[0].view(args[1])) if name in ("view", "view_copy") and isinstance(args[1], torch.dtype) else ()
    )
    signs = floats if plain in ("signbit", "copysign") else ()
    if any(t.is_floating_point() and t.isnan().any() for t in (*seen, *signs)):
        return "the bits of NaN"
    if plain == "put" and args[1].numel() > args[1].unique().numel() and (len(args) < 4 or not args[3]):
        return "several values are put at one place"
    if plain in ("unique_dim", "_unique2", "_unique") and any(int(t.isnan().sum()) > 1 for t in floats):
        return "the order of several NaN"
    divides = (
        plain in ("remainder", "fmod", "floor_divide", "div") and name != plain and len(numbers) > 1 and not floats
    )
    if divides and bool((numbers[1] == 0).any()):
        return "what a division of integers by zero leaves behind"
    losses = plain in ("multilabel_margin_loss_forward", "binary_cross_entropy")
    if losses and args[0].shape != args[1].shape:
        return "a target of another shape"
    if plain == "multilabel_margin_loss_forward" and not args[0].numel():
        return "a margin loss of nothing, which the CPU does not write"
    if plain in ("linalg_matrix_exp", "matrix_exp") and args[0].numel():
        if args[0].element_size() < 4:
            return "the matrix exponential in half precision"
        if not bool((args[0].abs().sum(-2) < 32).all()):
            return "the matrix exponential of a large matrix, whose squares lose digits and overflow"
    if plain == "cholesky_inverse" and args[0].is_complex() and bool(args[0].diagonal(0, -2, -1).imag.any()):
        return "a factor of Cholesky whose diagonal is not real"
    if ("polynomial" in name or plain in ("igamma", "igammac")) and any(t.isnan().any() for t in floats):
        return "special functions of NaN"
    if plain.startswith("histogram") and len(numbers) > 1 and bool((numbers[1].diff() < 0).any()):
        return "edges of a histogram that do not increase"
    if plain == "histc" and args[0].element_size() == 2 and args[0].numel() > 2 / torch.finfo(args[0].dtype).eps:
        return "counts of a histogram beyond those to which half precision adds one"
    if plain == "histogram" and args[0].numel() and not isinstance(args[1], Tensor):
        least, most = args[0].min(), args[0].max()
        if bool((least == most) & (least + 0.5 == most - 0.5)):
            return "edges of a histogram that do not increase"
    if plain == "prod" and any(map(_vanishes_beside_infinity, floats)):
        return "the order of a product that is nothing before it meets infinity, or infinity before"
    if plain == "gelu" and any(t.isinf().any() for t in floats):
        return "GELU of infinities"
    if plain in _BY_VECTORS and any(t.isnan().any() for t in floats[1:]):
        return "derivatives of NaN, which differ between full vectors of the processor and the rest"
    moments = "batch_norm" in plain or plain in ("native_layer_norm", "native_group_norm", "var_mean", "std_mean")
    if moments and any(bool((~(t.abs() < 1e18)).any()) for t in floats):
        return "moments of numbers whose squares overflow, and infinite weights"
    if "scaled_dot_product" in name and not all(map(_finite, floats)):
        return "attention to what is not finite"
    if plain == "convolution" and not (_finite(args[1]) and (_finite(args[0]) or args[0].element_size() > 2)):
        return "a convolution by what is not finite"
    unsorted = plain == "topk" and not all(args[4:])
    if unsorted or (plain in ("topk", "kthvalue") and args[0].numel() > args[0].unique().numel()):
        return "which of equal elements is taken, and in which order"
    if plain.removeprefix("_foreach_") in ("sinh", "cosh") and any(map(_exp_overflows, floats)):
        return "sinh and cosh where exp overflows"
    exponents = [abs(p) for p in tree_leaves(args[1:]) if isinstance(p, float)] if "pow" in plain else []
    if 0.5 in exponents and any(bool((t.isinf() | (t == 0)).any()) for t in floats):
        return "roots of infinities and of -0 as powers"
    return ""


def _singular(name: str, args: Any, kwargs: Any) -> bool:
    """A pseudo-inverse leaves out what is small, where it is told to."""
    if name == "linalg_pinv":
        limits = [t for t in (*args[1:3], kwargs.get("atol"), kwargs.get("rtol")) if isinstance(t, Tensor)]
        if not limits or any(bool((t > 0).all()) for t in limits):
            return False
    wide = args[0].to(torch.complex128 if args[0].is_complex() else torch.float64)
    sizes = (
        torch.linalg.svdvals(wide) if 0 not in wide.shape and wide.dim() > 1 else wide.new_ones(1, dtype=torch.float64)
    )
    return bool((sizes[..., -1] <= sizes.shape[-1] * torch.finfo(args[0].dtype).eps * sizes[..., 0]).any())


def _exp_overflows(t: Tensor) -> bool:
    """And half of it does not."""
    most = math.log(torch.finfo(t.dtype).max)
    size = (t.real if t.is_complex() else t).abs()
    return bool(((size > 0.99 * most) & (size < most + 1)).any())


def _vanishes_beside_infinity(t: Tensor) -> bool:
    size = t.abs().double()
    below = size[(size > 0) & (size < 1)].log2().sum()
    return bool(size.isinf().any() & (below < math.log2(torch.finfo(torch.float32).tiny)))


def _finite(t: Tensor) -> bool:
    return bool(torch.isfinite(t).all())


def written_by(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    said = {a.name: t for a, t in zip(func._schema.arguments, args, strict=False)} | kwargs
    those = [said.get(a.name) for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [t for t in tree_leaves(those) if isinstance(t, Tensor)]


def _places(t: Tensor) -> Tensor:
    """Where in memory each element lies, in bytes."""
    at = torch.zeros((), dtype=torch.int64)
    for n, step in zip(t.shape, t.stride(), strict=True):
        at = at[..., None] + torch.arange(n) * step
    return (at + t.storage_offset()) * t.element_size()


def overlaps(t: Tensor) -> bool:
    if t.numel() < 2 or torch._debug_has_internal_overlap(t) == 0:
        return False
    places = _places(t)
    return places.unique().numel() < places.numel()


def _crosses(t: Tensor, other: Tensor) -> bool:
    """Some memory of `t` is an element of `other` that another element of the result is computed of."""
    mine, read = _places(t), _places(other)
    try:
        read = read.broadcast_to(mine.shape)
    except RuntimeError:
        return True
    return bool((torch.isin(read, mine) & (read != mine)).any())


def _extent(size: Any, stride: Any, offset: Any = None) -> int:
    return 0 if 0 in size else 1 + (offset or 0) + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def extent_of(t: Tensor) -> int:
    return _extent(t.shape, t.stride(), t.storage_offset())


def _one_memory(a: Any, b: Any) -> bool:
    return isinstance(b, Tensor) and a.untyped_storage()._cdata == b.untyped_storage()._cdata


def _beyond(t: Tensor, target: torch.dtype) -> bool:
    if (
        not (t.is_floating_point() or t.is_complex())
        or target.is_floating_point
        or target.is_complex
        or target is torch.bool
    ):
        return False
    info = torch.iinfo(target)
    wide = (t.real if t.is_complex() else t).double()
    return bool((~((wide >= info.min) & (wide <= info.max))).any())
