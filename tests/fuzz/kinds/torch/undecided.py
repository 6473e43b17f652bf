"""Differences that say nothing: rounding decides the result, or the source framework leaves it open.

A program is played again on the CPU, with noise of the size of rounding on what each operator takes and gives. What
then differs as much as it does on the device is decided by rounding. The same pass looks for what is unspecified.
"""

from __future__ import annotations

from typing import Any

from tests.fuzz.kinds.torch import data, observed
from tests.fuzz.kinds.torch.whole import TRANSFORMS
from tests.fuzz.program import REFERENCE, Outcome, Program

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

Tensor = torch.Tensor
_STEP = {
    torch.float32: 4e-7, torch.float64: 4e-15, torch.float16: 1e-3, torch.bfloat16: 8e-3,
    torch.complex64: 4e-7, torch.complex128: 4e-15,
}  # fmt: skip
RUNS = 6


class Noise(TorchDispatchMode):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.drawn, self.open = torch.Generator().manual_seed(seed), ""

    def noisy(self, t: Any, step: float = 0.0) -> Any:
        """`step`: of the narrowest dtype that went in."""
        if not isinstance(t, Tensor) or t.dtype not in _STEP or t.numel() == 0:
            return t
        step = max(step, _STEP[t.dtype])
        real = torch.float64 if t.dtype in (torch.float64, torch.complex128) else torch.float32
        noise = torch.rand(t.shape, generator=self.drawn, dtype=real) * 2 - 1
        return (t * (1 + step * noise)).to(t.dtype)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.open = self.open or unspecified(func, args, kwargs)
        schema = func._schema
        step = max([_STEP.get(t.dtype, 0.0) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)], default=0.0)
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
            outs = [t for a, t in kwargs.items() if isinstance(t, Tensor) and a.startswith("out")]
            before = [t.untyped_storage().nbytes() for t in outs]
            written = {
                id(t) for a, t in zip(schema.arguments, args, strict=False) if a.alias_info for t in tree_leaves(t)
            }
            args = tree_map(lambda t: t if id(t) in written else self.noisy(t), args)
            result = func(*args, **kwargs)
            for t in tree_leaves(result):
                if isinstance(t, Tensor) and t.dtype in _STEP and torch._debug_has_internal_overlap(t) == 0:
                    t.copy_(self.noisy(t, step))
            if any(n < t.untyped_storage().nbytes() for n, t in zip(before, outs, strict=True)):
                self.open = self.open or "a tensor that grows beyond its storage, which others see"
            return result
        result = func(*args, **kwargs)
        if any(isinstance(t, Tensor) and t.dtype in _STEP for t in tree_leaves(result)):
            try:
                other = func(*tree_map(self.noisy, args), **kwargs)
            except Exception:
                other = result
            for t, o in zip(tree_leaves(result), tree_leaves(other), strict=True):
                if isinstance(t, Tensor) and t.dtype in _STEP and t.shape == o.shape:
                    t.copy_(self.noisy(o, step))
            return result
        return func(*tree_map(self.noisy, args), **kwargs)


class Zeros(TorchDispatchMode):
    """Tangents that are nothing are zeros, as they are on the device (docs/differences.md)."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._efficientzerotensor.default:
            return torch.zeros(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _begun_elsewhere(kind: Any, program: Program, judge: str, noise: Noise) -> Outcome:
    """Below `torch.func` PyTorch can crash in a mode that computes: the numbers that programs begin with are noisy."""
    data.moved = noise.noisy
    try:
        outcome: Outcome = kind.play(program, judge)
    finally:
        data.moved = data.same
    return outcome


def unspecified(func: Any, args: Any, kwargs: Any) -> str:
    """What PyTorch leaves open about this call, if it does."""
    name = func.name().partition("::")[2].partition(".")[0]
    if name in ("_to_copy", "copy_", "to", "fill_", "copy", "_copy_from"):
        source = args[1] if name in ("copy_", "copy") else args[0]
        target = args[0].dtype if name in ("copy_", "copy") else kwargs.get("dtype", source.dtype) or source.dtype
        if isinstance(source, Tensor) and _beyond(source, target):
            return "a float beyond the range of the integer that it becomes"
    outs = [t for a, t in kwargs.items() if a.startswith("out") and isinstance(t, Tensor)]
    if outs and torch.Tag.pointwise not in func.tags:
        read = [t for t in tree_leaves(args) if isinstance(t, Tensor)]
        if any(_one_memory(out, t) for out in outs for t in read):
            return "an operator that is not elementwise reads what it writes"
    if "linalg" in name or "cholesky" in name or "triangular" in name or "lu_" in name or name == "inverse":
        numbers = [t for t in tree_leaves(args) if isinstance(t, Tensor) and t.dtype in _STEP]
        if any(not torch.isfinite(t).all() for t in numbers):
            return "a factorisation of a matrix that is not finite"
    if name == "linalg_cholesky_ex" and bool(torch.linalg.cholesky_ex(args[0])[1].any()):
        return "the columns of a factorisation that failed"
    complex_ones = [t for t in tree_leaves(args) if isinstance(t, Tensor) and t.is_complex()]
    if torch.Tag.pointwise in func.tags and any(
        not torch.isfinite(torch.view_as_real(t.resolve_conj())).all() for t in complex_ones
    ):
        return "complex arithmetic with infinities and NaN"
    if name == "copy_" and args[0] is not args[1] and _one_memory(args[0], args[1]):
        return "a copy onto memory that it reads"
    if name.startswith("grid_sampler") and not torch.isfinite(args[1]).all():
        return "places of a grid that are not finite"
    if name.startswith(("polygamma", "special_zeta")):
        x = next(t for t in tree_leaves(args) if isinstance(t, Tensor)).double()
        if bool((~torch.isfinite(x) | ((x <= 0) & (x == x.floor())) | (x.abs() > 1e15)).any()):
            return "poles and infinities of polygamma"
    if name in ("masked_scatter_", "masked_scatter", "put_", "index_copy_") and _one_memory(args[0], args[-1]):
        return "an operator that is not elementwise reads what it writes"
    return ""


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


def reason(kind: Any, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
    judge = kind.reference(subject)
    whole_way = subject.partition(" ")[2] in TRANSFORMS
    others = []
    for seed in range(RUNS):
        with Noise(seed) as noise:
            outcome = kind.play(program, REFERENCE if whole_way else judge)
        if noise.open:
            return noise.open
        others.append(_begun_elsewhere(kind, program, judge, noise) if whole_way else outcome)
    if whole_way:
        with Zeros():
            if not kind.differences(kind.play(program, judge), found, program):
                return "a tangent that is nothing, times NaN or infinity"
    if expected.raised != found.raised:
        first = min(i for i in {*expected.raised, *found.raised} if expected.raised.get(i) != found.raised.get(i))
        differs = any(o.raised.get(first) != expected.raised.get(first) for o in others)
        return "rounding decides whether an error is raised" if differs else None
    for name, line in observed.unequal(expected.observed, found.observed):
        if not _varies(name, line, expected, found, others):
            return None
    return "rounding decides"


def _varies(name: str, line: str, expected: Outcome, found: Outcome, others: list[Outcome]) -> bool:
    want, got = expected.observed.get(name), found.observed.get(name)
    runs = [o.observed.get(name) for o in others]
    if want is None or got is None or ": values " not in line:
        aspect = next((key for key in want.exact if f"{name}: {key} " in line), None) if want is not None else None
        return any(r is None or (aspect is not None and r.exact[aspect] != want.exact[aspect]) for r in runs)
    runs = [r for r in runs if r is not None and r.values.shape == want.values.shape]
    if want.values.dtype not in _STEP:
        return any(not torch.equal(r.values, want.values) for r in runs)
    wide = torch.complex128 if want.values.is_complex() else torch.float64
    a, b = want.values.to(wide), got.values.to(wide)
    noisy = [r.values.to(wide) for r in runs]
    finite = torch.isfinite(a)
    if not torch.equal(finite, torch.isfinite(b)) or not torch.allclose(a[~finite], b[~finite], equal_nan=True):
        return any(not torch.equal(torch.isfinite(n), finite) for n in noisy)
    if not finite.any() or not noisy:
        return False
    spread = torch.stack([(n - a).abs().nan_to_num(torch.inf, torch.inf, torch.inf) for n in noisy]).amax(0)
    rtol, atol = observed.TOLERANCES[want.values.dtype]
    allowed = 8 * spread.max() * 0.25 + 8 * spread + atol + rtol * a.abs()
    return bool(((b - a).abs() <= allowed)[finite].all())
