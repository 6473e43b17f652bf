"""Type promotion of elementwise operators: the dtype that they compute in and that of the result.

The rule is `torch.result_type`'s, for any number of operands (documentation of PyTorch, "Tensor Attributes"). PyTorch's
own function of several operands, `torch._prims_common.elementwise_dtypes`, imports SymPy, which takes a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Any, NamedTuple

import torch

_OPMATH = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


class PROMOTION(Enum):
    """Kinds of promotion, by the names of PyTorch's reference implementations (`torch._prims_common`)."""

    DEFAULT = auto()
    NO_OPMATH = auto()  # low precision is not widened to compute
    INT_TO_FLOAT = auto()
    ALWAYS_BOOL = auto()
    COMPLEX_TO_FLOAT = auto()
    BOOL_TO_LONG = auto()


def _higher(a: torch.dtype | None, b: torch.dtype | None) -> torch.dtype | None:
    if a is None or b is None or a == b:
        return a if b is None else b
    return torch.promote_types(a, b)


def _combined(first: torch.dtype | None, second: torch.dtype | None) -> torch.dtype | None:
    """Return the common dtype of operands of which those of the second kind only decide on the category: boolean,
    integer, floating-point or complex."""
    if first is None or second is None or first.is_complex:
        return second if first is None else first
    if first.is_floating_point:
        return first.to_complex() if second.is_complex else first
    if first == torch.bool or second.is_floating_point or second.is_complex:
        return torch.promote_types(first, second)
    return first


def _dtype_of_number(x: Any) -> torch.dtype:
    if isinstance(x, bool | torch.SymBool):
        return torch.bool
    if isinstance(x, int | torch.SymInt):
        return torch.int64
    default = torch.get_default_dtype()
    return default.to_complex() if isinstance(x, complex) else default


def result_type(operands: Iterable[Any]) -> torch.dtype:
    """Return the dtype to which tensors and numbers are promoted. Tensors with axes come first, then those without,
    then numbers. Raises RuntimeError for dtypes that PyTorch does not promote (float8)."""
    with_axes = without = number = None
    for x in operands:
        if not isinstance(x, torch.Tensor):
            number = _higher(number, _dtype_of_number(x))
        elif x.ndim:
            with_axes = _higher(with_axes, x.dtype)
        else:
            without = _higher(without, x.dtype)
    return _combined(_combined(with_axes, without), number) or torch.bool


class Promoted(NamedTuple):
    """The dtypes of an elementwise operator: operands are converted to `common`, then widened to `compute`."""

    common: torch.dtype
    compute: torch.dtype
    result: torch.dtype


def elementwise_dtypes(operands: Iterable[Any], kind: PROMOTION) -> Promoted:
    """Return the dtypes that an operator converts its operands to, computes in, and returns."""
    common = result_type(operands)
    if kind is PROMOTION.NO_OPMATH:
        return Promoted(common, common, common)
    integral = not (common.is_floating_point or common.is_complex)
    if kind is PROMOTION.INT_TO_FLOAT and integral:
        common = torch.get_default_dtype()
    elif kind is PROMOTION.BOOL_TO_LONG and common == torch.bool:
        common = torch.int64
    result = common
    if kind is PROMOTION.ALWAYS_BOOL:
        result = torch.bool
    elif kind is PROMOTION.COMPLEX_TO_FLOAT and common.is_complex:
        result = common.to_real()
    return Promoted(common, _OPMATH.get(common, common), result)
