"""Differences that say nothing: rounding decides the result, or the source framework leaves it open.

A program is played again on the CPU, with noise of the size of rounding on what each operator takes and gives. What
then differs as much as it does on the device is decided by rounding. The same pass looks for what is unspecified.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import numpy as np
from tests.fuzz.kinds.torch import data, observed
from tests.fuzz.kinds.torch.whole import TRANSFORMS
from tests.fuzz.program import REFERENCE, Outcome, Program

import torch
from tensorgraft.frontends.torch.dispatch.refusals import ELSEWHERE
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

Tensor = torch.Tensor
_STEP = {
    torch.float32: 4e-7, torch.float64: 4e-15, torch.float16: 1e-3, torch.bfloat16: 8e-3,
    torch.complex64: 4e-7, torch.complex128: 4e-15,
}  # fmt: skip
RUNS = 6
_SIGN_ZEROS = ("aten::_fft", "aten::linalg_lu", "aten::linalg_ldl")
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
        if self.still or not isinstance(t, Tensor) or t.dtype not in _STEP or t.numel() == 0:
            return t
        step = max(step, _STEP[t.dtype])
        real = torch.float64 if t.dtype in (torch.float64, torch.complex128) else torch.float32
        noise = self.uniform(t, real) * 2 - 1
        if t.is_complex():  # a product rounds each part by the size of both
            noise = torch.complex(noise, self.uniform(t, real) * 2 - 1)
        return (t * (1 + step * noise)).to(t.dtype)

    def cancelled(self, t: Tensor, step: float) -> Tensor:
        """What is small beside its largest neighbour may be nothing: terms of a sum that cancel."""
        if self.still or not t.numel():
            return t
        nothing = (t.abs() < step * t.abs().max()) & (torch.rand(t.shape, generator=self.drawn) < 0.5)
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
        self.open = self.open or unspecified(func, args, kwargs)
        schema = func._schema
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        step = max([_STEP.get(t.dtype, 0.0) for t in tensors], default=0.0)
        if func.name().endswith(".out") and torch.Tag.pointwise in func.tags and tensors[0].dtype not in _STEP:
            step = max(step, _STEP[torch.float32])  # integers are computed with in it, whatever takes the result
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
            written = {id(t): t for t in _written(func, args, {})}
            args = tree_map(lambda t: t if id(t) in written else self.noisy(t), args)
            if torch.Tag.pointwise in func.tags:  # they are read, too
                for t in written.values():
                    if t.dtype in _STEP and not _overlaps(t):
                        _overwrite(t, self.noisy(t))
            result = func(*args, **kwargs)
            made = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
            for t in made or written.values():  # operators on lists return nothing
                if t.dtype in _STEP and not _overlaps(t):
                    _overwrite(t, self.noisy(t, step))
            return result
        result = func(*args, **kwargs)
        if any(isinstance(t, Tensor) and t.dtype in _STEP for t in tree_leaves(result)):
            try:
                other = func(*tree_map(self.noisy, args), **kwargs)
            except Exception:
                other = result
            for t, o in zip(tree_leaves(result), tree_leaves(other), strict=True):
                if isinstance(t, Tensor) and t.dtype in _STEP and t.shape == o.shape:
                    o = self.noisy(o, step)
                    if torch.Tag.pointwise not in func.tags:
                        o = self.cancelled(o, step)
                    if func.name() == "aten::gelu":  # x / 2 (1 + erf(x)), whose terms cancel left of zero
                        o = o + (self.noisy(args[0], step) - args[0])
                    _overwrite(t, self.signed(o) if func.name().startswith(_SIGN_ZEROS) else o)
            return result
        return func(*tree_map(self.noisy, args), **kwargs)


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
    if name in ("as_strided", "as_strided_copy", "as_strided_scatter") and _extent(*args[1:4]) > _extent_of(
        args[0] if args[0]._base is None else args[0]._base
    ):
        return "room that a kernel has left behind its result"
    if name in ("_to_copy", "copy_", "to", "fill_", "copy", "_copy_from"):
        source = args[1] if name in ("copy_", "copy") else args[0]
        target = args[0].dtype if name in ("copy_", "copy") else kwargs.get("dtype", source.dtype) or source.dtype
        if isinstance(source, Tensor) and _beyond(source, target):
            return "a float beyond the range of the integer that it becomes"
    numbers = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    floats = [t for t in numbers if t.dtype in _STEP]
    reason = _of_memory(func, args, kwargs, numbers) or _of_numbers(name, args, numbers, floats)
    if reason:
        return reason
    factors = name == "inverse" or any(part in name for part in ("linalg", "cholesky", "triangular", "lu_"))
    if factors and not all(map(_finite, floats)):
        return "a factorisation of a matrix that is not finite"
    if name.lstrip("_").startswith(_INVERSES) and _singular(name, args, kwargs):
        return "the inverse of a matrix that is singular to its precision"
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
    return ""


def _of_memory(func: Any, args: Any, kwargs: Any, numbers: list[Tensor]) -> str:
    """PyTorch asks for a clone before such writes; some kernels refuse them, others do whatever comes."""
    written = _written(func, args, kwargs)
    if any(_overlaps(t) for t in written):
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
    if func.name() == "aten::huber_loss.out" and written[0].numel() > 1:  # its kernel computes there
        return "what lies beside a result in the memory of out="
    return ""


def _of_numbers(name: str, args: Any, numbers: list[Tensor], floats: list[Tensor]) -> str:
    """Numbers for which PyTorch's own kernels differ: by dtype, size, layout, or the library that computes."""
    plain = name.rstrip("_")
    seen = (args[0], args[0].view(args[1])) if name == "view" and isinstance(args[1], torch.dtype) else ()
    if any(t.is_floating_point() and t.isnan().any() for t in seen):
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
    if plain in ("linalg_matrix_exp", "matrix_exp") and args[0].dtype in (torch.float16, torch.bfloat16):
        return "the matrix exponential in half precision"
    if plain == "cholesky_inverse" and args[0].is_complex() and bool(args[0].diagonal(0, -2, -1).imag.any()):
        return "a factor of Cholesky whose diagonal is not real"
    if ("polynomial" in name or plain in ("igamma", "igammac")) and any(t.isnan().any() for t in floats):
        return "special functions of NaN"
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


def _finite(t: Tensor) -> bool:
    return bool(torch.isfinite(t).all())


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    said = {a.name: t for a, t in zip(func._schema.arguments, args, strict=False)} | kwargs
    those = [said.get(a.name) for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [t for t in tree_leaves(those) if isinstance(t, Tensor)]


def _places(t: Tensor) -> Tensor:
    """Where in memory each element lies, in bytes."""
    at = torch.zeros((), dtype=torch.int64)
    for n, step in zip(t.shape, t.stride(), strict=True):
        at = at[..., None] + torch.arange(n) * step
    return (at + t.storage_offset()) * t.element_size()


def _overlaps(t: Tensor) -> bool:
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


def _root(func: Any, args: Any, kwargs: Any) -> float:
    """p of a norm (sum of |x|**p)**(1/p), which magnifies rounding so many times as p is less than 1."""
    said = {a.name: t for a, t in zip(func._schema.arguments, args, strict=False)} | kwargs
    p = [said[name] for name in ("p", "ord") if isinstance(said.get(name), int | float)]
    return min([1.0, *(max(abs(float(v)), 1e-9) for v in p if v)])


def _extent(size: Any, stride: Any, offset: Any = None) -> int:
    return 0 if 0 in size else 1 + (offset or 0) + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def _extent_of(t: Tensor) -> int:
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


def reason(kind: Any, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
    judge = kind.reference(subject)
    whole_way = subject.partition(" ")[2] in TRANSFORMS
    if _grows(kind, program):
        return "a tensor that grows beyond its storage, which others see"
    if any(
        line.endswith("requires_grad False, the CPU: True")
        and not _differentiable(expected.observed[name].exact["dtype"])
        for name, line in observed.unequal(expected.observed, found.observed)
    ):
        return "integers that require a gradient"
    others = []
    for seed in (None, *range(RUNS)):
        with Noise(seed) as noise:
            outcome = kind.play(program, REFERENCE if whole_way else judge)
        if noise.open:
            return noise.open
        if seed is None:
            continue
        others.append(_begun_elsewhere(kind, program, judge, noise) if whole_way else outcome)
    if whole_way:
        with Zeros():
            if not kind.differences(kind.play(program, judge), found, program):
                return "a tangent that is nothing, times NaN or infinity"
    if expected.raised != found.raised:
        first = min(i for i in {*expected.raised, *found.raised} if expected.raised.get(i) != found.raised.get(i))
        lacking = expected.raised.get(first) == "NotImplementedError" and first not in found.raised
        if lacking and re.search("float16|float8|" + "|".join(ELSEWHERE), str(program)):
            return "a dtype for which the CPU has no kernel, and CUDA has one"
        if first not in found.raised and judge == REFERENCE and not kind.kept(_raised(kind, program, first)):
            return "what this machine's CPU lacks"
        differs = any(o.raised.get(first) != expected.raised.get(first) for o in others)
        return "rounding decides whether an error is raised" if differs else None
    for name, line in observed.unequal(expected.observed, found.observed):
        if not _varies(name, line, expected, found, others):
            return None
    return "rounding decides"


def _raised(kind: Any, program: Program, at: int) -> Exception:
    """What the CPU raises in a statement."""
    names = kind.names(REFERENCE)
    for text in program.statements[:at]:
        with contextlib.suppress(Exception):
            exec(text, names)
    try:
        exec(program.statements[at], names)
    except Exception as error:
        return error
    raise AssertionError("it raises in one run, and not in another")


def _differentiable(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _grows(kind: Any, program: Program) -> bool:
    """A storage that several tensors see has become larger."""
    names = kind.names(REFERENCE)
    for text in program.statements:
        before = _storages(names)
        with contextlib.suppress(Exception):
            exec(text, names)
        after = _storages(names)
        if any(after.get(at, (0, 0))[0] > size and seen > 1 for at, (size, seen) in before.items()):
            return True
    return False


def _storages(names: dict[str, Any]) -> dict[int, tuple[int, int]]:
    """storage -> its bytes, and how many of a program's tensors see it."""
    storages: dict[int, tuple[int, int]] = {}
    for name, value in names.items():
        if name[0] == "v" and name[1:].isdigit():
            for _, t in observed.leaves(name, value):
                storage = t.untyped_storage()
                storages[storage._cdata] = storage.nbytes(), storages.get(storage._cdata, (0, 0))[1] + 1
    return storages


def _varies(name: str, line: str, expected: Outcome, found: Outcome, others: list[Outcome]) -> bool:
    want, got = expected.observed.get(name), found.observed.get(name)
    runs = [o.observed.get(name) for o in others]
    if want is None or got is None or ": values " not in line:
        aspect = next((key for key in want.exact if f"{name}: {key} " in line), None) if want is not None else None
        if aspect in ("dtype", "version", "requires_grad", "is_leaf", "inference"):  # the noise itself is a write
            return False
        return any(r is None or (aspect is not None and r.exact[aspect] != want.exact[aspect]) for r in runs)
    runs = [r for r in runs if r is not None and r.values.shape == want.values.shape]
    if want.values.dtype not in _STEP:
        return any(not torch.equal(r.values, want.values) for r in runs)
    wide = torch.complex128 if want.values.is_complex() else torch.float64
    a, b = want.values.to(wide), got.values.to(wide)
    noisy = [r.values.to(wide) for r in runs]
    finite = torch.isfinite(a)
    wild = torch.zeros_like(finite)
    if noisy:  # by orders of magnitude: with other roundings it is at a pole
        sizes = torch.stack([n.abs() for n in (a, *noisy)])
        wild = (sizes.amax(0) > 1e6 * sizes.amin(0)) & ~torch.isfinite(b)
        if not a.is_complex():  # of a zero whose sign is open
            signs = torch.stack([n.sign() for n in (a, *noisy)])
            wild |= torch.isinf(a) & torch.isinf(b) & (signs.amin(0) != signs.amax(0))
    if not a.is_complex():  # one of them has just overflowed
        most = 0.99 * torch.finfo(want.values.dtype).max
        wild |= (finite != torch.isfinite(b)) & (torch.minimum(a.abs(), b.abs()) > most) & (a.sign() == b.sign())
    sure = ~wild
    unequal = not torch.equal(finite[sure], torch.isfinite(b)[sure])
    if unequal or not torch.allclose(a[~finite & sure], b[~finite & sure], equal_nan=True):
        return any(not torch.equal(torch.isfinite(n), finite) for n in noisy)
    finite &= sure
    if not finite.any() or not noisy:
        return False
    spread = torch.stack([(n - a).abs().nan_to_num(torch.inf, torch.inf, torch.inf) for n in noisy]).amax(0)
    rtol, atol = observed.TOLERANCES[want.values.dtype]
    allowed = 8 * spread.max() * 0.25 + 8 * spread + atol + rtol * a.abs()
    return bool(((b - a).abs() <= allowed)[finite].all())
