"""Noise of the size of rounding on what each operator takes and gives, and a look at what is left open about it."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.fuzz.kinds.torch.left_open import STEP, overlaps, unspecified, written_by

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

Tensor = torch.Tensor
_SIGN_ZEROS = ("aten::_fft", "aten::linalg_lu", "aten::linalg_ldl")


class Noise(TorchDispatchMode):
    """Without a seed there is no noise: what is unspecified of the very numbers that the program has."""

    def __init__(self, seed: int | None) -> None:
        super().__init__()
        self.still = seed is None
        self.drawn, self.open = np.random.default_rng(seed or 0), ""

    def uniform(self, t: Tensor, dtype: torch.dtype) -> Tensor:
        """From 0 to 1. NumPy draws: below `torch.func.vmap` PyTorch refuses to."""
        return torch.from_numpy(np.asarray(self.drawn.random(t.shape))).to(dtype)

    def noisy(self, t: Any, step: float = 0.0) -> Any:
        """`step`: of the narrowest dtype that went in."""
        if self.still or not isinstance(t, Tensor) or t.dtype not in STEP or t.numel() == 0:
            return t
        step = max(step, STEP[t.dtype])
        if self.drawn.random() < 0.5:  # what cancels in the exact result may be nothing, here and there
            return _coarse(t, step)
        real = torch.float64 if t.dtype in (torch.float64, torch.complex128) else torch.float32
        noise = self.uniform(t, real) * 2 - 1
        if t.is_complex():  # a product rounds each part by the size of both
            noise = torch.complex(noise, self.uniform(t, real) * 2 - 1)
        return (t * (1 + step * noise)).to(t.dtype)

    def result(self, func: Any, t: Tensor, step: float, operand: Any = None) -> Tensor:
        t = self.noisy(t, step)
        if func.name() in ("aten::gelu", "aten::gelu_"):  # x / 2 (1 + erf(x)), whose terms cancel left of zero
            return t + (self.noisy(operand, step) - operand)
        if "lgamma" not in func.name() or self.still:
            return t
        return t + max(step, STEP[t.dtype]) * (self.uniform(t, t.dtype) - 0.5)  # of terms that cancel at 1 and 2

    def cancelled(self, t: Tensor, step: float) -> Tensor:
        """What is small beside its largest neighbour may be nothing: terms of a sum that cancel."""
        if self.still or not t.numel():
            return t
        nothing = (t.abs() < step * t.abs().max()) & (self.uniform(t, torch.float32) < 0.5)
        return torch.where(nothing, torch.zeros_like(t), t)

    def signed(self, t: Tensor) -> Tensor:
        """Zeros of either sign: libraries differ in it."""
        if self.still or not t.numel():
            return t
        parts = torch.view_as_real(t.resolve_conj()).clone() if t.is_complex() else t.clone()
        signs = self.uniform(parts, torch.float32) - 0.5
        parts = torch.where(parts == 0, torch.copysign(torch.zeros_like(parts), signs.to(parts.dtype)), parts)
        return torch.view_as_complex(parts) if t.is_complex() else parts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and func._can_decompose():  # nothing has done it there
            with self:
                return func.decompose(*args, **kwargs)
        self.open = self.open or unspecified(func, args, kwargs)
        schema = func._schema
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        step = max([STEP.get(t.dtype, 0.0) for t in tensors], default=0.0)
        if func.name().endswith(".out") and torch.Tag.pointwise in func.tags and tensors[0].dtype not in STEP:
            step = max(step, STEP[torch.float32])  # integers are computed with in it, whatever takes the result
        step = min(step / _root(func, args, kwargs), 0.5)
        aliased = any(a.alias_info is not None for a in schema.arguments)
        moves = func.namespace != "aten" or func.is_view or torch.Tag.view_copy in func.tags
        if moves or func.name() in (
            "aten::clone",
            "aten::copy_",
            "aten::_to_copy",
            "aten::zero_",
            "aten::fill_.Scalar",
        ):
            return func(*args, **kwargs)
        if aliased:
            written = {id(t): t for t in written_by(func, args, {})}
            args = tree_map(lambda t: t if id(t) in written else self.noisy(t), args)
            if torch.Tag.pointwise in func.tags:  # they are read, too
                for t in written.values():
                    if t.dtype in STEP and not overlaps(t):
                        _overwrite(t, self.noisy(t))
            operand = args[0].clone() if func.name() == "aten::gelu_" else None
            result = func(*args, **kwargs)
            made = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
            for t in made or written.values():  # operators on lists return nothing
                if t.dtype in STEP and not overlaps(t):
                    _overwrite(t, self.result(func, t, step, operand))
            return result
        result = func(*args, **kwargs)
        if any(isinstance(t, Tensor) and t.dtype in STEP for t in tree_leaves(result)):
            try:
                other = func(*tree_map(self.noisy, args), **kwargs)
            except Exception:
                other = result
            for t, o in zip(tree_leaves(result), tree_leaves(other), strict=True):
                if isinstance(t, Tensor) and t.dtype in STEP and t.shape == o.shape:
                    o = self.result(func, o, step, args[0] if args else None)
                    if torch.Tag.pointwise not in func.tags:
                        o = self.cancelled(o, step)
                    _overwrite(t, self.signed(o) if func.name().startswith(_SIGN_ZEROS) else o)
            return result
        return func(*tree_map(self.noisy, args), **kwargs)


def _coarse(t: Tensor, step: float) -> Tensor:
    """With fewer digits: both parts of a complex number as many as the larger one has."""
    wide = t.to(torch.complex128 if t.is_complex() else torch.float64)
    grid = step * torch.exp2(torch.frexp(wide.abs())[1].double())
    grid = torch.where(torch.isfinite(grid) & (grid > 0), grid, torch.ones_like(grid))
    parts = torch.view_as_real(wide) if t.is_complex() else wide
    grid = grid[..., None] if t.is_complex() else grid
    rounded = torch.where(torch.isfinite(parts), (parts / grid).round() * grid, parts)
    return (torch.view_as_complex(rounded) if t.is_complex() else rounded).to(t.dtype)


def _overwrite(t: Tensor, new: Tensor) -> None:
    """What rounding would have left there: no write of the program's, by the version."""
    with torch.autograd._unsafe_preserve_version_counter(() if t.is_inference() else t):
        t.copy_(new)


class Zeros(TorchDispatchMode):
    """Tangents that are nothing are zeros, as they are on the device (docs/differences.md)."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._efficientzerotensor.default:
            return torch.zeros(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _root(func: Any, args: Any, kwargs: Any) -> float:
    """p of a norm (sum of |x|**p)**(1/p), which magnifies rounding so many times as p is less than 1."""
    said = {a.name: t for a, t in zip(func._schema.arguments, args, strict=False)} | kwargs
    p = [said[name] for name in ("p", "ord") if isinstance(said.get(name), int | float)]
    return min([1.0, *(max(abs(float(v)), 1e-9) for v in p if v)])
