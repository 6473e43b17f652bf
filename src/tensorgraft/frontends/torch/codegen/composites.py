"""Composite operators as words: operators that PyTorch decomposes above autograd (`F.layer_norm`, `F.cross_entropy`).

While a module is recorded, they have kernels for tensors of the recording device; calls with tensors of other devices
use the previous kernels.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.library import Library

from tensorgraft.frontends.torch.codegen.kernels import in_words, per_axis, widened
from tensorgraft.frontends.torch.compiled.control_flow import recurrent
from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.core.devices import TYPE, Slot
from tensorgraft.frontends.torch.core.nested import tensors_in
from tensorgraft.frontends.torch.core.operator import Operator
from tensorgraft.frontends.torch.core.spec import Kernel, Spec
from tensorgraft.frontends.torch.dispatch.entry import entry
from tensorgraft.frontends.torch.kernels.neural import fused_attention
from tensorgraft.frontends.torch.sparse.parts import is_sparse
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.precision import POLICIES
from tensorgraft.precision import state as precision

Tensor = torch.Tensor
Fits = Callable[..., bool]
COMPOSITES: dict[str, tuple[Spec, Fits]] = {}


def composite(name: str, accepts: Fits = lambda *_, **__: True, **options: Any) -> Callable[[Kernel], Kernel]:
    """Register a kernel for the calls that `accepts`, a function of the tensors, allows."""

    def register(fn: Kernel) -> Kernel:
        COMPOSITES[name] = Spec(fn, **options), accepts
        return fn

    return register


# ---- products --------------------------------------------------------------------------------------------------------


@composite("matmul", lambda a, b: a.ndim > 0 and b.ndim > 0 and a.dtype == b.dtype)
def _matmul(xp: Any, a: Array, b: Array) -> Array:
    return xp.matmul(a, b)


def _einsum_fits(equation: str, operands: Sequence[Tensor], path: Any = None) -> bool:
    terms, arrow, _ = equation.replace(" ", "").partition("->")
    letters = terms.split(",")
    plain = all(
        len(set(t.replace("...", ""))) == len(t.replace("...", "")) and "." not in t.replace("...", "") for t in letters
    )
    return bool(arrow) and plain and len(operands) > 1 and (not operands or len({t.dtype for t in operands}) == 1)


@composite("einsum", _einsum_fits)
def _einsum(xp: Any, equation: str, operands: Sequence[Array], path: Any = None) -> Array:
    return xp.word("einsum", equation.replace(" ", ""), tuple(operands))


# ---- normalisation ---------------------------------------------------------------------------------------------------


@composite("layer_norm")
def _layer_norm(
    xp: Any,
    x: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Array:
    axes_option = {} if len(normalized_shape) == 1 else {"axes": len(normalized_shape)}
    return in_words(xp, "layer_norm", x, parameters={"weight": weight, "bias": bias}, **axes_option, eps=eps)


@composite("rms_norm", lambda x, shape, weight=None, eps=None: True)
def _rms_norm(
    xp: Any, x: Array, normalized_shape: Sequence[int], weight: Array | None = None, eps: float | None = None
) -> Array:
    axes_option = {} if len(normalized_shape) == 1 else {"axes": len(normalized_shape)}
    eps = float(dtypes.finfo(dtypes.accumulator(x.dtype)).eps) if eps is None else eps
    return in_words(xp, "rms_norm", x, parameters={"weight": weight}, **axes_option, eps=eps)


@composite("group_norm")
def _group_norm(
    xp: Any,
    x: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Array:
    return in_words(xp, "group_norm", x, num_groups, parameters={"weight": weight, "bias": bias}, eps=eps)


# ---- windows ---------------------------------------------------------------------------------------------------------


def _max_pool(d: int) -> Kernel:
    def pool(
        xp: Any,
        x: Array,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Array:
        ks, ss, ps, ds = (per_axis(v, d) for v in (kernel_size, stride or kernel_size, padding, dilation))
        pads = []
        for n, k, s, p, e in zip(x.shape[-d:], ks, ss, ps, ds, strict=True):
            span = n + 2 * p - e * (k - 1) - 1
            out = span // s + 1
            if ceil_mode:
                out = -(-span // s) + 1
                out -= (out - 1) * s >= n + p  # the last window begins inside
            pads.append((p, max(p, (out - 1) * s + e * (k - 1) + 1 - n - p)))
        options = {"dilation": ds} if any(e != 1 for e in ds) else {}
        return xp.word("max_pool", x, ks, ss, tuple(pads), **options)

    return pool


for _d in (1, 2, 3):
    COMPOSITES[f"max_pool{_d}d"] = Spec(_max_pool(_d)), lambda *_, **__: True


# ---- losses ----------------------------------------------------------------------------------------------------------

_REDUCTIONS = ("none", "mean", "sum")


@composite(
    "cross_entropy_loss",
    lambda x, target, *_, **__: x.ndim > 0 and not target.is_floating_point() and target.ndim == max(x.ndim - 1, 0),
)
def _cross_entropy(
    xp: Any,
    x: Array,
    target: Array,
    weight: Array | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Array:
    options: dict[str, Any] = {}
    if weight is not None:
        options["weight"] = weight
    if reduction != 1:
        options["reduction"] = _REDUCTIONS[reduction]
    if ignore_index != -100:
        options["ignored"] = ignore_index
    if label_smoothing:
        options["smoothing"] = label_smoothing
    return xp.astype(xp.word("cross_entropy", *widened(xp, x), target, **options), x.dtype)


# ---- attention -------------------------------------------------------------------------------------------------------


def _attention_fits(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> bool:
    plain = q.ndim == k.ndim == v.ndim == 4 and q.dtype == k.dtype == v.dtype and dropout_p < 1
    shared = enable_gqa and not dropout_p and q.shape[1] % k.shape[1] == 0
    heads = k.shape[1] == v.shape[1] and (q.shape[1] == k.shape[1] or shared)
    same_batch = q.shape[0] == k.shape[0] == v.shape[0]
    return plain and heads and same_batch and (attn_mask is None or attn_mask.dtype in (torch.bool, q.dtype))


@composite("scaled_dot_product_attention", _attention_fits)
def _attention(
    xp: Any,
    q: Array,
    k: Array,
    v: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    options: dict[str, Any] = {}
    if attn_mask is not None:
        options["mask"] = attn_mask if xp.ndim(attn_mask) == 4 else xp.reshape(
            attn_mask, (1,) * (4 - xp.ndim(attn_mask)) + attn_mask.shape
        )  # fmt: skip
    if is_causal:
        options["causal"] = True
    if scale is not None and scale != q.shape[-1] ** -0.5:
        options["scale"] = float(scale)
    if not dropout_p:
        return xp.word("dot_product_attention", q, k, v, **options)
    weights = xp.astype(xp.word("attention_weights", *widened(xp, q, k), **options), q.dtype)
    return xp.matmul(xp.word("dropout", weights, xp.draw(), dropout_p), v)


# ---- recurrence ------------------------------------------------------------------------------------------------------


def _recurrent(cell: str, **options: Any) -> Kernel:
    def run(
        xp: Any,
        x: Array,
        states: Any,
        params: Sequence[Array],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Array, ...]:
        """Layer by layer, direction by direction."""
        states = list(states) if isinstance(states, list | tuple) else [states]
        unbatched = xp.ndim(x) == 2
        if unbatched:
            x, states = xp.expand_dims(x, 1), [xp.expand_dims(s, 1) for s in states]
        elif batch_first:
            x = xp.permute_dims(x, (1, 0, 2))
        directions = 2 if bidirectional else 1
        n = len(params) // (num_layers * directions)
        names = ("w_ih", "w_hh", "b_ih", "b_hh", "w_hr") if has_biases else ("w_ih", "w_hh", "w_hr")
        ends: list[list[Array]] = []
        for layer in range(num_layers):
            outs = []
            for direction in range(directions):
                k = layer * directions + direction
                weights: dict[str, Any] = dict(zip(names, params[k * n : (k + 1) * n], strict=False))
                if direction:
                    weights["reverse"] = True
                start = [xp.word("getitem", s, (k,)) for s in states]
                ys, *last = xp.word(cell, x, *start, **weights, **options)
                outs.append(ys)
                ends.append(last)
            x = xp.concat(outs, axis=2) if bidirectional else outs[0]
            if dropout and train and layer < num_layers - 1:
                x = xp.word("dropout", x, xp.draw(), dropout)
        finals = [xp.stack(list(s)) for s in zip(*ends, strict=True)]
        if unbatched:
            return xp.squeeze(x, 1), *(xp.squeeze(s, 1) for s in finals)
        return xp.permute_dims(x, (1, 0, 2)) if batch_first else x, *finals

    return run


_ANY: Fits = lambda *_, **__: True  # noqa: E731
COMPOSITES["lstm.input"] = Spec(_recurrent("lstm"), meta=False), _ANY
COMPOSITES["gru.input"] = Spec(_recurrent("gru"), meta=False), _ANY
COMPOSITES["rnn_tanh.input"] = Spec(_recurrent("rnn"), meta=False), _ANY
COMPOSITES["rnn_relu.input"] = Spec(_recurrent("rnn", activation="relu"), meta=False), _ANY


# ---- randomness ------------------------------------------------------------------------------------------------------


@composite("dropout", lambda x, p, train: train and 0 < p < 1, random=True)
def _dropout(xp: Any, x: Array, p: float, train: bool, key: Array) -> Array:
    return xp.word("dropout", x, key, p)


# ---- in PyTorch ------------------------------------------------------------------------------------------------------

_KEYS = ("AutogradPrivateUse1", "PrivateUse1")
# autocast's tables may have a row for operators that these call, but none for themselves
_OPENED = frozenset(("einsum", "cross_entropy_loss", "lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input"))
_lock = threading.Lock()
_library: Library | None = None
_users = 0


@functools.cache
def _kernels(slot: Slot) -> list[tuple[str, str, Callable[..., Any]]]:
    out = []
    for name, (spec, accepts) in COMPOSITES.items():
        op = schema.overload(name)
        assert op is not None, name
        out += [(name, key, _kernel(op, spec, accepts, slot)) for key in _KEYS]
    return out


def _kernel(op: schema.Overload, spec: Spec, accepts: Fits, slot: Slot) -> Callable[..., Any]:
    call = entry(Operator(op, spec))
    before = _before(schema.short_name(op)) or functools.partial(op._op_dk, torch.DispatchKey.CompositeImplicitAutograd)

    name = schema.short_name(op)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors = list(tensors_in(args, kwargs))
        recorded = any(t.device == slot.device for t in tensors) and not any(map(is_sparse, tensors))
        if recorded and name in _OPENED and torch.is_autocast_enabled(TYPE):
            recorded = name in POLICIES[precision.policy()]
        return (call if recorded and accepts(*args, **kwargs) else before)(*args, **kwargs)

    return kernel


def _before(name: str) -> Callable[..., Any] | None:
    """Return the front end's own kernel for a composite, or None for most of them, which have none."""
    if name in recurrent.CELLS:
        return recurrent.kernel(name)
    return fused_attention.attention if name == "scaled_dot_product_attention" else None


@contextlib.contextmanager
def installed(slot: Slot) -> Iterator[None]:
    """A context in which the kernels that record a module are registered."""
    global _library, _users
    kernels = _kernels(slot)
    with _lock:
        _users += 1
        if _library is None:
            _library = Library("aten", "IMPL")
            for name, key, kernel in kernels:
                _library.impl(name, kernel, key)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users and _library is not None:
                _library = None  # with its registrations
