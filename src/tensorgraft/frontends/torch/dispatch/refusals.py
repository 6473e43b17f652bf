"""Calls that PyTorch's CPU kernels refuse and its meta functions accept: once for each plan, the kernel is called with
zeros."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.nested import flatten, map_nested, tensors_in
from tensorgraft.frontends.torch.core.operator import INDICES, OUT_OF_BOUNDS, Operator
from tensorgraft.frontends.torch.dispatch import rehearsal
from tensorgraft.frontends.torch.dispatch.memory import to_cpu
from tensorgraft.frontends.torch.dispatch.quiet_calls import ROOM, call_with_warnings, to_meta

Tensor = torch.Tensor

_LARGEST = 1 << 26  # bytes of all storages of a call: the CPU is not called with more


def refuse(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], *parts: str) -> bool:
    """Raise the CPU's error for tensors that share storages as these do, if its message contains one of `parts`, or is
    `final`. Return True if the CPU accepts them."""
    storages: dict[int, torch.UntypedStorage] = {}
    tensors: dict[int, Tensor] = {}
    sizes = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors_in(args, kwargs)}
    if sum(sizes.values()) > _LARGEST or operator.name in OUT_OF_BOUNDS:
        return False
    extra_bytes = ROOM if operator.kind == "out" else 0

    def zeros(a: Any) -> Any:
        if isinstance(a, torch.device):
            return torch.device("cpu")
        if not isinstance(a, Tensor):
            return None if isinstance(a, torch.Generator) else a
        if id(a) not in tensors:
            at = a.untyped_storage()._cdata
            if at not in storages:
                storages[at] = torch.zeros(sizes[at] + extra_bytes, dtype=torch.uint8, device="cpu").untyped_storage()
            empty = torch.empty(0, dtype=a.dtype, device="cpu")
            tensors[id(a)] = empty.set_(storages[at], a.storage_offset(), a.size(), a.stride())
        return tensors[id(a)]

    function: Callable[..., Any] = operator.op
    if operator.op is torch.ops.graft.assign.default:
        function = torch.ops.aten.copy_.default
    host, named = map_nested(zeros, args), {n: map_nested(zeros, a) for n, a in kwargs.items()}
    errors: list[Exception] = []  # see `rehearsal.Unasked`
    try:
        call_with_warnings(function, host, named)
    except Exception as refusal:
        errors.append(refusal.with_traceback(None))
    if not errors:
        return True
    if not (any(words in str(errors[0]) for words in parts) if parts else final(operator, errors, args, kwargs)):
        return False
    raise errors.pop() from None


def check_numbers(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise PyTorch's error for numbers that cannot be converted to the dtype of the computation."""
    operands = (*args, *kwargs.values())
    numbers = [v for v in operands if v.__class__ is float or v.__class__ is int]
    for a in operands:
        tensors = (a,) if isinstance(a, Tensor) else tensors_in(a, {}) if isinstance(a, list | tuple) else ()
        for low, high, bare in [(*_LIMITS[t.dtype], t.dtype in _WITHOUT_INFINITY) for t in tensors]:
            if any(not low <= v <= high and (low.__class__ is int or math.isfinite(v) or bare) for v in numbers):
                refuse(operator, args, kwargs, "without overflow", "Overflow when")
                return


class _Limits(dict[torch.dtype, tuple[float, float]]):
    """The least and the greatest number of each dtype; integers stand for truth values."""

    def __missing__(self, dtype: torch.dtype) -> tuple[float, float]:
        info = torch.finfo if dtype.is_floating_point or dtype.is_complex else torch.iinfo
        limits = info(torch.int64 if dtype is torch.bool else dtype)
        return self.setdefault(dtype, (limits.min, limits.max))


_LIMITS = _Limits()
_WITHOUT_INFINITY = frozenset({torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz})


ABOUT_DTYPES = (
    "dtype",
    "scalar type",
    "type (",
    "result type",
    "long tensor",
    "used as indices",
    "not supported",
    "longer supported",
    "complex tensors",
    "Expected both inputs",
)
NO_KERNEL = "not implemented for '"
NO_TRANSFORM = "FFT doesn't support tensors of type"  # the same, in the words of the libraries of Fourier transforms
_ABOUT_MEMORY = "unsupported operation: "
# Dtypes without a CPU kernel have no CUDA kernel either, except for narrow floats and these operators, according to
# PyTorch's tables (`torch.testing._internal.common_methods_invocations.op_db`).
ELSEWHERE = frozenset({"_foreach_abs", "abs", "histc", "nanmean", "nansum", "trace"})
# operators for which CUDA has no kernels for narrow floats either, in addition to every special function
_NOWHERE_NARROW = frozenset({"_cdist_forward", "_cdist_backward", "_ctc_loss", "histogram", "polar"})
_NARROW = ("'Half'", "'BFloat16'", "'Float8", "'ComplexHalf'")


def final(operator: Operator, refusals: list[Exception], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the CPU's kernel refuses these values as it does zeros (`refusals`: its one error, which is
    replaced by the one for these values). A kernel that is missing, but that another device has, is no refusal. For
    values that a trace lacks, an error that depends on none of them is final."""

    def lacking() -> bool:
        return isinstance(refusals[0], NotImplementedError) or any(words in str(refusals[0]) for words in _LACKING)

    def on_no_device() -> bool:
        text = str(refusals[0])
        name = operator.name.partition(".")[0].rstrip("_")
        if name in ELSEWHERE:
            return False
        if NO_KERNEL in text:
            return name.startswith("special_") or name in _NOWHERE_NARROW or not any(dtype in text for dtype in _NARROW)
        if isinstance(refusals[0], NotImplementedError):  # else the operator is for other devices alone
            return "complex" in text
        if not any(is_narrow(t.dtype) for t in tensors_in(args, kwargs)):
            return True
        zeros, named = to_meta(args, kwargs, "cpu")
        try:
            call_with_warnings(
                operator.op, map_nested(_widened, zeros), {n: map_nested(_widened, a) for n, a in named.items()}
            )
        except Exception as refusal:
            return str(refusal) == text  # an error that does not depend on the dtype's width
        return False

    of_any = lacking() or _of_any_values(operator, refusals[0])
    if lacking() and not on_no_device():
        return False
    if _ABOUT_MEMORY in str(refusals[0]):
        return True
    if state.now.capture is not None:
        return of_any
    try:
        host, named = on_the_host(args, kwargs)
    except TracedValueError:
        return of_any
    try:
        call_with_warnings(operator.op, host, named)
    except Exception as refusal:
        refusals[0] = refusal.with_traceback(None)
        return not lacking() or on_no_device()
    return False


def is_narrow(dtype: torch.dtype) -> bool:
    return (dtype.is_floating_point or dtype.is_complex) and torch.finfo(dtype).bits < 32


def _widened(a: Any) -> Any:
    narrow = isinstance(a, Tensor) and is_narrow(a.dtype)
    return a.to(torch.promote_types(a.dtype, torch.float32)) if narrow else a


def on_the_host(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the arguments with copies on the CPU. Raises TracedValueError for a tensor without values."""
    pairs: dict[int, Tensor] = {}

    def down(a: Any) -> Any:
        if isinstance(a, torch.device):
            return torch.device("cpu")
        if not isinstance(a, Tensor):
            return None if isinstance(a, torch.Generator) else a
        if id(a) not in pairs:
            pairs[id(a)] = to_cpu(a) if a.device.type == TYPE else a.clone()
        return pairs[id(a)]

    return map_nested(down, args), {n: map_nested(down, a) for n, a in kwargs.items()}


_LACKING = (NO_KERNEL, "does not support complex", NO_TRANSFORM, "not supported")
_OF_ZEROS = ("ZeroDivision", "singular", "shape", "size", "elements", "broadcast")
_COUNTS = ("pivots", "lengths", "offsets", "batch_sizes", "repeats", "check_errors", "mask")


def _of_any_values(operator: Operator, refusal: Exception) -> bool:
    """Return True if an error for zeros holds for any values: not that of a matrix that cannot be factored, nor those
    about lengths or masks, which select true elements."""
    valued = operator.takes_indices or any(word in name for name in operator.signature.names for word in _COUNTS)
    of_zeros = any(words in str(refusal) for words in _OF_ZEROS)
    return not valued and not of_zeros and not isinstance(refusal, torch.linalg.LinAlgError)


def check_dtypes(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], all_tensors: Sequence[Tensor]
) -> None:
    """Raise PyTorch's error for a combination of dtypes that it refuses, which meta functions do not check. It is
    checked once for each operator and dtypes, and not at all if all numbers have one dtype and all indices are int64.
    `all_tensors`: the call's tensors."""
    if not operator.takes_indices and len({t.dtype for t in all_tensors}) <= 1:
        return
    bound = operator.signature.bind(args, kwargs)
    dtypes = {name: tuple((t.dtype, t.dim()) for t in tensors_in((a,), {})) for name, a in bound.items()}
    numbers: set[torch.dtype] = set()
    indices: set[torch.dtype] = set()
    for name, dtypes_and_names in dtypes.items():
        (indices if any(word in name for word in INDICES) else numbers).update(dtype for dtype, _ in dtypes_and_names)
    key = tuple(dtypes.values())
    if (len(numbers) > 1 or indices - {torch.int64}) and key not in operator.accepted:
        # a dtype without a CPU kernel may have one here, but not together with others to which it is not promoted
        public = operator.spec.promotion is None and not operator.name.startswith("_")
        mixed = public and len(numbers) > 1 and not any("target" in name for name in dtypes)
        # an error about shapes says nothing about dtypes
        if refuse(operator, args, kwargs, *ABOUT_DTYPES, *((NO_KERNEL,) if mixed else ())):
            operator.accepted.add(key)


def check_in_place(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.dtype) -> None:
    """Raise PyTorch's error if the result of an elementwise operator does not fit into the written tensor: by its dtype
    (`result`), or its shape. Some of PyTorch's meta functions do not check this."""
    bound = operator.signature.bind(args, kwargs)
    target = tensors_in([bound[operator.writes[0]]], {})[0]
    all_tensors = tensors_in(args, kwargs)
    larger = any(t.dim() > target.dim() for t in all_tensors) or any(
        n not in (1, m) for t in all_tensors for n, m in zip(reversed(t.size()), reversed(target.size()), strict=False)
    )
    if larger or not torch.can_cast(result, target.dtype):
        refuse(operator, args, kwargs, "output with shape", *ABOUT_DTYPES)


def check_out(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], all_tensors: Sequence[Tensor]) -> None:
    """Raise PyTorch's error for `out=` tensors that it refuses: those of another dtype than the results (elementwise
    operators cast, most others do not, and meta functions that are written in Python always cast), and those of another
    shape that are also read. For large tensors (`all_tensors`: the call's) only the dtypes are checked."""
    if operator.kind != "out" or operator.base is None:
        return
    if rehearsal.can_rehearse(operator) and not rehearsal.is_large(operator, [t.size() for t in all_tensors]):
        refuse(operator, args, kwargs)
        return
    if operator.dtype_of_out:
        return
    bound = operator.signature.bind(args, kwargs)
    targets = tensors_in([bound.pop(name) for name in operator.writes], {})
    try:
        plain, _ = call_with_warnings(
            operator.base, (), {n: map_nested(_meta, a) for n, a in bound.items()}, random=False
        )
    except Exception:  # no meta function, or none for these
        plain = tensors_in(list(bound.values()), {})[:1]
    dtypes = [t.dtype for t in flatten(plain) if isinstance(t, Tensor)]
    if dtypes != [t.dtype for t in targets]:
        refuse(operator, args, kwargs, "type", "not implemented for", "tensor for result")


def _meta(a: Any) -> Any:
    if isinstance(a, Tensor):
        return torch.empty_strided(a.size(), a.stride(), dtype=a.dtype, device="meta")
    return None if isinstance(a, torch.Generator) else torch.device("meta") if isinstance(a, torch.device) else a
