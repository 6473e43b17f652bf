"""`_foreach_*`: the kernel of one tensor's operator over lists, as one plan, so as one compiled program.

Each is derived from its base operator ("_foreach_add.List" from "add.Tensor"): the arguments agree by position, and
every element is promoted as the base operator would promote it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.core.promotion import PROMOTION, elementwise_dtypes
from tensorgraft.frontends.torch.core.settings import settings
from tensorgraft.frontends.torch.core.spec import SPECS, Spec, kernel
from tensorgraft.frontends.torch.core.tensors import FROM_NUMPY, element_dtype, numpy_dtype
from tensorgraft.frontends.torch.dispatch import halves
from tensorgraft.frontends.torch.dispatch.program import Conversion, promoted
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array

# {name: operator of `_foreach_<name>`, if it is not `<name>`}
BASES = {"maximum": "clamp_min", "minimum": "clamp_max"}
# overload of `_foreach_<name>` -> overloads of `<name>` that do the same to one tensor, the first that exists
OVERLOADS = {
    "default": ("",),
    "Scalar": (".Tensor_Scalar", ".Scalar", ""),
    "ScalarList": (".Tensor_Scalar", ".Scalar", ""),
    "List": (".Tensor", ".Tensor_Tensor", ""),
    "Tensor": (".Tensor",),
    "ScalarAndTensor": (".Scalar",),
}
# these take a list of numbers as one tensor, or tensors of several devices: PyTorch does them one by one
LEFT_OUT = {"_foreach_addcmul.Tensor", "_foreach_addcdiv.Tensor", "_foreach_copy", "_foreach_norm.Scalar"}


def _kind(xp: Any, narrow: bool, v: Any) -> Any:
    """Return the properties on which promotion depends: the type of a number, or (dtype, has axes). `narrow`: complex64
    arrays are complex32 values."""
    if isinstance(v, bool | int | float | complex):
        return type(v)
    dtype = xp.dtype_of(v)
    if getattr(v, "weak_type", False):  # a weakly typed array represents a Python number
        return {"b": bool, "i": int, "u": int, "f": float, "c": complex}[dtype.kind]
    if narrow and dtype == dtypes.complex64:
        dtype = dtypes.complex32
    return dtype, bool(xp.shape(v))


@functools.lru_cache(maxsize=4096)
def _promoted(promotion: PROMOTION, kinds: tuple[Any, ...], settings: Any) -> tuple[np.dtype, np.dtype]:
    operands = [
        kind(1) if isinstance(kind, type) else torch.empty((1,) * kind[1], dtype=_dtype(kind[0]), device="meta")
        for kind in kinds
    ]
    common, compute, _ = elementwise_dtypes(operands, promotion)
    return element_dtype(common), numpy_dtype(compute)


def _dtype(dtype: np.dtype) -> torch.dtype:
    return torch.complex32 if dtype is dtypes.complex32 else FROM_NUMPY[dtype]


def _applied(
    xp: Any, name: str, base: Spec, sig: schema.Signature, args: list[Any], kwargs: dict[str, Any], narrow: bool
) -> Array:
    """Apply the base operator's kernel (`name`) to one element of each list, with promoted operands."""
    if base.promotion is None:
        return base.fn(xp, *args, **kwargs)
    bound = dict(zip(sig.names, args, strict=False))
    names = base.promote or tuple(n for n in bound if "Tensor" in sig.types[n] or n == "other")
    names = tuple(n for n in names if bound.get(n) is not None)
    common, compute = _promoted(base.promotion, tuple(_kind(xp, narrow, bound[n]) for n in names), settings())
    fn = base.fn
    if common is dtypes.complex32:
        if name in halves.ON_CPU:
            fn = halves.rounding(name, fn)
        else:
            common = compute
    bound.update({n: Conversion(common, compute, n == base.scalar_operand)(xp, bound[n]) for n in names})
    if common != compute and "alpha" in kwargs:  # as the CPU's kernels for one tensor do
        kwargs = {**kwargs, "alpha": promoted(xp, kwargs["alpha"], common, compute)}
    return fn(xp, *bound.values(), **kwargs)


def _argument_rows(args: tuple[Any, ...]) -> list[list[Any]]:
    """Return the arguments of the base operator, element by element. Lists of several lengths PyTorch refuses in its
    words."""
    n = min(len(a) for a in args if isinstance(a, list | tuple))
    return [[a[i] if isinstance(a, list | tuple) else a for a in args] for i in range(n)]


def _lifted(name: str, base: Spec, sig: schema.Signature) -> Callable[..., list[Array]]:
    def kernel(xp: Any, *args: Any, narrow: bool = False, **kwargs: Any) -> list[Array]:
        return [_applied(xp, name, base, sig, operands, kwargs, narrow) for operands in _argument_rows(args)]

    return kernel


def _lifted_check(check: Callable[..., None]) -> Callable[..., None]:
    def all_of_them(*args: Any, **kwargs: Any) -> None:
        for operands in _argument_rows(args):
            check(*operands)

    return all_of_them


def derive() -> None:
    """Register kernels that are derived from the existing ones."""
    for name in _functional_names():
        packet, _, overload_name = name.partition(".")
        if name in LEFT_OUT or name in SPECS:
            continue
        stem = packet.removeprefix("_foreach_")
        stem = BASES.get(stem, stem)
        single = next((stem + o for o in OVERLOADS.get(overload_name or "default", ()) if stem + o in SPECS), None)
        op = schema.overload(name)
        if single is None or op is None or (base_op := schema.overload(single)) is None:
            continue
        base, sig, foreach_signature = SPECS[single], schema.signature(base_op), schema.signature(op)
        dynamic = {m for m, b in zip(foreach_signature.names, sig.names, strict=False) if b in base.dynamic}
        check = None if base.check is None or base.dynamic else _lifted_check(base.check)
        kernel(name, dynamic=dynamic, check=check, narrow=True)(_lifted(single, base, sig))


def _functional_names() -> list[str]:
    schemas = torch._C._jit_get_all_schemas()
    names = {
        s.name.removeprefix("aten::") + (f".{s.overload_name}" if s.overload_name else "")
        for s in schemas
        if s.name.startswith("aten::_foreach_")
    }
    return sorted(n for n in names if not n.partition(".")[0].endswith("_") and "out" not in n.partition(".")[2])


def _norm(xp: Any, x: Array, ord: float) -> Array:
    size = xp.abs(xp.astype(x, dtypes.accumulator(xp.dtype_of(x))))
    if ord == float("inf"):
        return xp.max(size) if xp.size(size) else xp.zeros((), xp.dtype_of(size))
    if ord == 2:
        return xp.sqrt(xp.sum(xp.multiply(size, size)))
    if ord == 1:
        return xp.sum(size)
    if ord == 0:
        return xp.sum(xp.astype(xp.not_equal(size, 0), xp.dtype_of(size)))
    return xp.pow(xp.sum(xp.pow(size, ord)), 1 / ord)


@kernel("_foreach_norm.Scalar")
def _foreach_norm(xp: Any, tensors: list[Array], ord: float = 2, dtype: np.dtype | None = None) -> list[Array]:
    return [_norm(xp, x if dtype is None else xp.astype(x, dtype), ord) for x in tensors]


derive()
