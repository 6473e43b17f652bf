"""Selections by a mask in a traced function (`x[mask]`), whose number of elements is unknown; elementwise operations,
reductions and losses do not need it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.core import pytrees

Tensor = torch.Tensor


class MaskedSelection(torch.Tensor):
    """The elements of `full` where `mask` is true, in PyTorch a new tensor of (count, ...). Whatever needs the count
    raises the error of the line that has chosen."""

    full: Tensor  # elements elsewhere are some that are chosen
    mask: Tensor
    version: int
    error: TracedValueError

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        first = next(x for x in pytrees.leaves_of((args, kwargs)) if type(x) is MaskedSelection)
        with torch.DisableTorchFunctionSubclass():
            if name == "__get__" and getattr(func.__self__, "__name__", "") in ("dtype", "ndim"):
                return func(first.full) if func.__self__.__name__ == "dtype" else 1 + len(first.rest)
            if name == "dim":
                return 1 + len(first.rest)
            if name in _LOSSES and func is getattr(F, name):
                return _loss(func, first, *args, **kwargs)
            plain = name.rstrip("_")
            reduction = _REDUCTIONS.get(plain)
            if reduction is not None and args[0] is first:
                return reduction(first, *args[1:], **kwargs)
            if not _is_elementwise(name):
                raise first.error
            values = pytrees.mapped(first.beside, (args, kwargs))
            out = func(*values[0], **values[1])
            if isinstance(out, Tensor) and out.shape == first.full.shape:
                in_place = args[0] is first and ((name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE)
                if in_place:
                    first.full = out
                    return first
                return _of(out, first)
            raise first.error

    @property
    def rest(self) -> tuple[int, ...]:
        """Return the extents of the axes that the mask leaves as they are."""
        with torch.DisableTorchFunctionSubclass():
            return tuple(self.full.shape[self.mask.ndim :])

    def beside(self, x: Any) -> Any:
        """Return an operand of an elementwise operation with this selection as one with `full`. Raises the error where
        they do not fit for every count."""
        if not isinstance(x, Tensor):
            return x
        if type(x) is MaskedSelection:
            if not x.like(self) or x.rest != self.rest:
                raise self.error
            return x.full
        if x.ndim > len(self.rest) and not (x.ndim == len(self.rest) + 1 and x.shape[0] == 1):
            raise self.error
        return x.squeeze(0) if x.ndim > len(self.rest) else x

    def like(self, other: MaskedSelection) -> bool:
        """Return whether the same mask has chosen both."""
        return self.mask is other.mask and self.version == other.version == _version(self.mask)

    def write(self, x: Tensor, index: Any) -> None:
        """Do `x[index] = self`. Raises the error where another mask is written than the one that has chosen."""
        (mask,) = index if isinstance(index, tuple) and len(index) == 1 else (index,)
        with torch.DisableTorchFunctionSubclass():
            if mask is not self.mask or self.version != _version(mask) or type(x) is MaskedSelection:
                raise self.error
            if x.dtype != self.full.dtype:
                raise RuntimeError(
                    "Index put requires the source and destination dtypes match, got"
                    f" {_words(x.dtype)} for the destination and {_words(self.full.dtype)} for the source."
                )
            if x.shape != self.full.shape:
                raise self.error
            x.copy_(torch.where(self.where, self.full, x))

    @property
    def where(self) -> Tensor:  # type: ignore[override]
        """Return the mask, with an axis for each of `full`."""
        with torch.DisableTorchFunctionSubclass():
            return self.mask.reshape(*self.mask.shape, *(1,) * len(self.rest))

    def filled(self, value: Any) -> Tensor:
        """Return `full`, with a value where nothing is chosen."""
        return torch.where(self.where, self.full, torch.full_like(self.full, value))

    def axes(self, dim: Any) -> tuple[list[int], Any]:
        """Return (the axes of `full` that a reduction runs over, the number of elements along them)."""
        k, n = self.mask.ndim, self.full.ndim
        if dim is None or dim == ():
            return list(range(n)), self.mask.sum() * math.prod(self.rest)
        if dim in (0, -1 - len(self.rest), [0], (0,)):
            return list(range(k)), self.mask.sum()
        raise self.error


def selected(x: Tensor, mask: Tensor, error: TracedValueError) -> MaskedSelection:
    """Return `x[mask]` in a trace. Unselected positions have the first selected element, so that no operation makes
    anything infinite that is finite in PyTorch."""
    k = mask.ndim
    rest = x.shape[k:]
    with torch.no_grad():
        flat = mask.flatten()
        at = flat.to(torch.uint8).argmax()
        any_, other = flat.any(), 0.5 if x.is_floating_point() or x.is_complex() else 1
        first = torch.ops.aten.index.Tensor(x.detach().reshape(-1, *rest), [at])
        first = torch.where(any_, first, torch.full_like(first, other))
    filled = torch.where(mask.reshape(*mask.shape, *(1,) * len(rest)), x, first)
    return _new(filled, mask, error)


def _new(full: Tensor, mask: Tensor, error: TracedValueError) -> MaskedSelection:
    new = torch.empty(0, device="meta").as_subclass(MaskedSelection)
    new.full, new.mask, new.version, new.error = full, mask, _version(mask), error
    return new


def _of(full: Tensor, like: MaskedSelection) -> MaskedSelection:
    return _new(full, like.mask, like.error)


def _version(t: Tensor) -> int:
    return 0 if t.is_inference() else t._version


def _words(dtype: torch.dtype) -> str:
    names = {"float32": "Float", "float64": "Double", "int64": "Long", "int32": "Int", "float16": "Half"}
    name = str(dtype).removeprefix("torch.")
    return names.get(name, name.capitalize())


# ---- what can be done with one ---------------------------------------------------------------------------------------

_IN_PLACE = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")}
_ALIKE = {
    "logsigmoid",
    "to",
    "float",
    "double",
    "half",
    "bfloat16",
    "int",
    "long",
    "bool",
    "clone",
    "contiguous",
    "detach",
    "type_as",
}


def _is_elementwise(name: str) -> bool:
    if name.startswith("__"):
        name = name.strip("_")
        name = next((_OPERATORS.get(n, n) for n in (name, name[1:]) if n in _OPERATORS or n in _SAME), name)
    name = name.rstrip("_")
    packet = getattr(torch.ops.aten, name, None)
    if name in _ALIKE or packet is None:
        return name in _ALIKE
    return any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads())


_SAME = {"add", "sub", "mul", "pow", "eq", "ne", "lt", "le", "gt", "ge", "neg", "abs"}
_OPERATORS = {
    "truediv": "div", "div": "div", "floordiv": "floor_divide", "mod": "remainder", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor", "invert": "bitwise_not",
}  # fmt: skip


def _sum(s: MaskedSelection, dim: Any = None, *, dtype: Any = None) -> Tensor:
    return s.filled(0).sum(s.axes(dim)[0], dtype=dtype)


def _mean(s: MaskedSelection, dim: Any = None, *, dtype: Any = None) -> Tensor:
    axes, count = s.axes(dim)
    if dtype is None and not (s.full.is_floating_point() or s.full.is_complex()):
        return torch.mean(s.full)  # raises
    return s.filled(0).sum(axes, dtype=dtype) / count


def _var(s: MaskedSelection, dim: Any = None, unbiased: bool | None = None, *, correction: Any = 1) -> Tensor:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    axes, count = s.axes(dim)
    correction = correction if unbiased is None else int(unbiased)
    mean = s.filled(0).sum(axes, keepdim=True) / count
    deviations = _of(s.full - mean, s).filled(0)
    size = (deviations * deviations.conj()).real if deviations.is_complex() else deviations * deviations
    return size.sum(axes) / (count - correction).clamp(min=0)


def _extreme(name: str, greatest: bool) -> Callable[..., Tensor]:
    def extreme(s: MaskedSelection, dim: Any = None) -> Tensor:
        if dim is not None and name in ("max", "min"):
            raise s.error
        dtype = s.full.dtype
        if dtype is torch.bool:
            raise s.error
        info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        least = -math.inf if dtype.is_floating_point else info.min
        most = math.inf if dtype.is_floating_point else info.max
        axes = s.axes(dim)[0]
        filled = s.filled(least if greatest else most)
        return filled.amax(axes) if greatest else filled.amin(axes)

    return extreme


def _norm(s: MaskedSelection, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    if p == "fro" or p is None:
        p = 2
    if keepdim or dtype is not None or dim is not None or not isinstance(p, int | float) or p <= 0:
        raise s.error
    return torch.linalg.vector_norm(s.filled(0), p)


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": _sum,
    "mean": _mean,
    "var": _var,
    "std": lambda s, *args, **kwargs: _var(s, *args, **kwargs).sqrt(),
    "amax": _extreme("amax", True),
    "amin": _extreme("amin", False),
    "max": _extreme("max", True),
    "min": _extreme("min", False),
    "any": lambda s: s.filled(0).any(),
    "all": lambda s: s.filled(1).all(),
    "prod": lambda s, dtype=None: s.filled(1).prod(dtype=dtype),
    "count_nonzero": lambda s: s.filled(0).count_nonzero(),
    "norm": _norm,
    "vector_norm": _norm,
}
_LOSSES = {
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "cross_entropy", "nll_loss",
}  # fmt: skip


def _loss(func: Any, first: MaskedSelection, *args: Any, reduction: str = "mean", **kwargs: Any) -> Any:
    """Return a loss of two selections."""
    old = [kwargs.pop(name, None) for name in ("size_average", "reduce")]
    if len(args) > 2:
        raise first.error
    operands = list(args) + [kwargs.pop(name) for name in ("input", "target") if name in kwargs]
    if any(argument is not None for argument in old) or len(operands) != 2:
        raise first.error
    if func in (F.cross_entropy, F.nll_loss):
        return _class_loss(func, first, operands, reduction, **kwargs)
    if any(isinstance(x, Tensor) and x.ndim for x in kwargs.values()) or not all(
        type(x) is MaskedSelection for x in operands
    ):
        raise first.error
    out = func(*map(first.beside, operands), reduction="none", **kwargs)
    if out.shape != first.full.shape:
        raise first.error
    losses = _of(out, first)
    return losses if reduction == "none" else _sum(losses) if reduction == "sum" else _mean(losses)


def _class_loss(
    func: Any, first: MaskedSelection, operands: Sequence[Any], reduction: str, ignore_index: int = -100, **kwargs: Any
) -> Any:
    """Return a loss of scores (count, classes) and class numbers: unselected positions have the number that is
    ignored."""
    scores, target = operands
    is_supported = type(scores) is MaskedSelection and type(target) is MaskedSelection and scores.like(target)
    if not is_supported or len(scores.rest) != 1 or target.rest or target.full.is_floating_point():
        raise first.error
    numbers = torch.where(target.mask, target.full, torch.full_like(target.full, ignore_index))
    out = func(scores.full.flatten(0, -2), numbers.flatten(), reduction=reduction, ignore_index=ignore_index, **kwargs)
    return _of(out.reshape(target.mask.shape), target) if reduction == "none" else out
