"""`torch.autocast("graft")`: kernels on the dispatch key `AutocastPrivateUse1`, out of the tables of `precision`.

A kernel takes its own key away, casts, and calls the operator again from the top: autograd records the casts, so that
gradients have the dtypes of what they belong to and a backward pass needs no autocast. Operators are registered for the
policies in use only; all others fall through without a call of Python.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.library import Library

from tensorgraft.frontends.torch.core import schema, state
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.tensors import FROM_NUMPY
from tensorgraft.precision import POLICIES, Region
from tensorgraft.precision import state as precision
from tensorgraft.precision.policies import APPEND_DTYPE, BANNED, FP32, LOWER, PROMOTE, SET_DTYPE, UNEXPECTED, UNSAFE

Tensor = torch.Tensor
Kernel = Callable[..., Any]

KEY = "AutocastPrivateUse1"
_KEYS = torch.DispatchKeySet(getattr(torch.DispatchKey, KEY))
_Excluded = torch._C._ExcludeDispatchKeyGuard
_low = torch.get_autocast_dtype

# floating point, but for float64 (PyTorch's float8 too)
ELIGIBLE = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype is not torch.float64
)
# the overload that takes a dtype as well
WITH_DTYPE = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}


# ---- casts -----------------------------------------------------------------------------------------------------------

# {(id of a weight, dtype): (the weight, its cast)}
Casts = dict[tuple[int, torch.dtype], tuple[weakref.ref[Tensor], Tensor]]
_casts: Casts = {}


def clear_casts() -> None:
    (_casts if state.now.capture is None else state.now.capture.casts).clear()


def eligible(t: Tensor) -> bool:
    return t.dtype in ELIGIBLE and t.device.type == TYPE


def cast(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `t` in `dtype` if it is eligible. A weight is cast once for all its uses in the outermost region.

    A program that is being compiled has casts of its own, which are part of it.
    """
    if t.dtype is dtype or not eligible(t):
        return t
    if (
        t.requires_grad
        and t.dtype is torch.float32
        and dtype is _low(TYPE)
        and t.is_leaf
        and not t._is_view()
        and torch.is_autocast_cache_enabled()
        and not torch.is_inference_mode_enabled()  # its tensors cannot be used outside of it
    ):
        casts: Casts = _casts if state.now.capture is None else state.now.capture.casts
        cached = casts.get((id(t), dtype))
        if cached is not None and cached[0]() is t:
            return cached[1]
        with torch.enable_grad():  # under no_grad too: a later use may want the gradient (pytorch/pytorch#165068)
            converted = t.to(dtype)
        casts[id(t), dtype] = weakref.ref(t), converted
        return converted
    return t.to(dtype)


# ---- kernels ---------------------------------------------------------------------------------------------------------


class Arguments:
    """The tensor arguments of an operator: single or optional tensors, and lists (but not of optional tensors)."""

    def __init__(self, op: schema.Overload) -> None:
        sig = schema.signature(op)
        self.tensors = [i for i, n in enumerate(sig.positional) if sig.types[n] in ("Tensor", "Optional[Tensor]")]
        self.lists = [i for i, n in enumerate(sig.positional) if sig.types[n] == "List[Tensor]"]
        self.given = [i for i, n in enumerate(sig.positional) if sig.types[n] in ("Tensor", "List[Tensor]")]
        self.named = [n for n in sig.names if n not in sig.positional and sig.types[n] == "Optional[Tensor]"]

    def cast(self, args: Sequence[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> Sequence[Any]:
        """Cast the arguments. Returns the positional ones; those given by name are replaced in `kwargs`."""
        for name in self.named:
            if kwargs.get(name) is not None:
                kwargs[name] = cast(kwargs[name], dtype)
        new = None
        n = len(args)  # defaults at the end are left out
        for i in self.tensors:
            if i < n and (t := args[i]) is not None and t.dtype is not dtype:
                new = new or list(args)
                new[i] = cast(t, dtype)
        for i in self.lists:
            if i < n:
                new = new or list(args)
                new[i] = [cast(t, dtype) for t in args[i]]
        return new or args

    def widest(self, args: Sequence[Any]) -> torch.dtype:
        """Return float32 if any argument has it, else the region's dtype. Raises RuntimeError for a third one."""
        low = _low(TYPE)
        widest = low
        for i in self.given:
            if i < len(args):
                for t in (args[i],) if isinstance(args[i], Tensor) else args[i]:
                    if not eligible(t):
                        continue
                    if t.dtype is torch.float32:
                        widest = t.dtype
                    elif widest is not torch.float32 and t.dtype is not low:
                        raise RuntimeError(UNEXPECTED)
        return widest


def _lower(op: schema.Overload) -> Kernel:
    arguments = Arguments(op)
    return lambda *args, **kwargs: op(*arguments.cast(args, kwargs, _low(TYPE)), **kwargs)


def _fp32(op: schema.Overload) -> Kernel:
    arguments = Arguments(op)
    return lambda *args, **kwargs: op(*arguments.cast(args, kwargs, torch.float32), **kwargs)


def _promote(op: schema.Overload) -> Kernel:
    arguments = Arguments(op)
    return lambda *args, **kwargs: op(*arguments.cast(args, kwargs, arguments.widest(args)), **kwargs)


def _set_dtype(op: schema.Overload) -> Kernel:
    """Make the kernel of an operator whose `dtype` is float32 under autocast unless it is given."""
    sig = schema.signature(op)
    at = sig.positional.index("dtype") if "dtype" in sig.positional else None

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if eligible(args[0]):
            if at is None or at >= len(args):
                if kwargs.get("dtype") is None:
                    kwargs["dtype"] = torch.float32
            elif args[at] is None:
                args = (*args[:at], torch.float32, *args[at + 1 :])
        return op(*args, **kwargs)

    return kernel


def _append_dtype(op: schema.Overload) -> Kernel:
    wide = schema.overload(WITH_DTYPE[schema.short_name(op)])
    sig = schema.signature(op)
    assert wide is not None

    def kernel(*args: Any, **kwargs: Any) -> Any:
        bound = sig.bind(args, kwargs)
        dtype = torch.float32 if eligible(args[0]) else args[0].dtype
        return wide(*(bound[name] for name in sig.positional), dtype=dtype)

    return kernel


def _banned(op: schema.Overload) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(UNSAFE)

    return kernel


MAKERS: dict[str, Callable[[schema.Overload], Kernel]] = {
    LOWER: _lower,
    FP32: _fp32,
    PROMOTE: _promote,
    SET_DTYPE: _set_dtype,
    APPEND_DTYPE: _append_dtype,
    BANNED: _banned,
}


def kernel(name: str, kinds: dict[str, str]) -> Kernel:
    """Return the kernel of an operator under autocast; `kinds` is its row in each policy that has one.

    Most operators of a table are never called: a caster is made when it is first needed.
    """
    by_policy: dict[str, Kernel] = {}
    current = precision.policy

    def operator() -> schema.Overload:
        op = schema.overload(name)
        assert op is not None, name
        return op

    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        policy = current()
        if policy not in kinds:  # operators that it calls may have a row
            return operator().redispatch(keys - _KEYS, *args, **kwargs)
        with _Excluded(_KEYS):
            caster = by_policy.get(policy)
            if caster is None:
                by_policy[policy] = caster = MAKERS[kinds[policy]](operator())
            return caster(*args, **kwargs)

    return call


def _lstm(keys: Any, x: Tensor, hx: list[Tensor], *args: Any) -> Any:
    """Compute an LSTM under autocast. On the CPU one without projections is oneDNN's `mkldnn_rnn_layer`, which has a
    row: the region's dtype throughout. Others are composed of operators that have rows."""
    op = torch.ops.aten.lstm.input
    if precision.policy() != "cpu" or not x.numel() or hx[0].size(-1) != hx[1].size(-1):
        return op.redispatch(keys - _KEYS, x, hx, *args)
    with _Excluded(_KEYS):
        return _lower(op)(x, hx, *args)


# ---- registration ----------------------------------------------------------------------------------------------------

# Libraries by the policies that their operators have rows in: those of the policies in use are alive.
_libraries: dict[frozenset[str], Library] = {}


def groups() -> dict[frozenset[str], list[str]]:
    """Return the operators of all tables by the set of policies that have them."""
    by_dtypes: dict[frozenset[str], list[str]] = {}
    for name in sorted({name for table in POLICIES.values() for name in table}):
        having = frozenset(policy for policy, table in POLICIES.items() if name in table)
        by_dtypes.setdefault(having, []).append(name)
    return by_dtypes


def _is_cast(name: str, policy: str) -> bool:
    """Return True if this version of PyTorch has the operator, and the policy's autocast has a kernel for it."""
    op = schema.overload(name)
    if op is None:
        return False
    key = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}.get(policy)
    return key is None or schema.has_kernel(op, key)


def serve(policies: Iterable[str], only_these: bool) -> None:
    """Have kernels for these policies; with `only_these`, for no others."""
    policy_set = set(policies)
    for having, names in groups().items():
        if policy_set & having and having not in _libraries:
            _libraries[having] = library = Library("aten", "IMPL")
            for name in names:
                if kinds := {policy: POLICIES[policy][name] for policy in having if _is_cast(name, policy)}:
                    library.impl(name, kernel(name, kinds), KEY, with_keyset=True)
            if having == {"cpu"}:
                library.impl("lstm.input", _lstm, KEY, with_keyset=True)
        elif only_these and having in _libraries and not policy_set & having:
            del _libraries[having]  # with its registrations


def _torch_autocast(region: Region) -> torch.autocast:
    return torch.autocast(
        TYPE, dtype=FROM_NUMPY[region.dtype], enabled=region.enabled, cache_enabled=region.cache_enabled
    )


def clear_cache(original: Callable[[], None]) -> Callable[[], None]:
    def clear_autocast_cache() -> None:  # the outermost region of any device calls it at its end
        clear_casts()
        original()

    return clear_autocast_cache


def fast_path(original: Callable[[], bool]) -> Callable[[], bool]:
    """Wrap the check for the fused operators of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer`. They have no
    rows in CUDA's table, and are not used under CUDA's autocast; the CPU's table has one."""

    def get_fastpath_enabled() -> bool:
        return original() and not (torch.is_autocast_enabled(TYPE) and precision.policy() != "cpu")

    return functools.wraps(original)(get_fastpath_enabled)


def install() -> None:
    """Register the kernels of the default policy, and follow `tg.autocast` and `tg.autocast_policy`."""
    precision.followers.append(_torch_autocast)
    precision.on_policies.append(serve)
    serve(precision.policies_in_use(), only_these=True)
