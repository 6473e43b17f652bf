"""Weights that are being trained to be quantised: `Quantized` arrays whose codes are still the dense numbers.

Operations use the quantised numbers, with the same kernels, so that a model in training computes the same as after
conversion. Their derivatives are those at the quantised numbers, and rounding has the derivative 1 (straight-through;
Bengio et al., arXiv 1308.3432).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import optree

from tensorgraft import views
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization import policy
from tensorgraft.quantization.encode import encode
from tensorgraft.quantization.encodings import Encoding
from tensorgraft.quantization.quantized import Quantized, dense, read_of
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.storage import contiguous_geometry

TRAINED = Encoding("trained", 32, "trained")
_VIEWS = {"reshape", "permute_dims", "broadcast_to", "slice", "flip"}  # operations whose results are views of it


@dataclass(frozen=True)
class Training(Scheme):
    """The scheme of a weight that will be quantised by `target`."""

    encoding: str = "trained"
    granularity: str = "tensor"
    target: Any = None  # a Scheme

    def __post_init__(self) -> None:
        if self.target.is_static:
            raise ValueError(f"{self.target} requires the range of activations, which is calibrated after training")

    @property
    def codes(self) -> Encoding:
        return TRAINED

    @property
    def parts(self) -> tuple[str, ...]:
        return ("codes",)

    def numbers(self, xp: Backend, q: Quantized) -> Array:
        """Return the numbers that it is quantised to, dense; for the derivative, the view that it is of the weight."""
        (rounded,) = xp.custom_vjp(
            lambda inner, weight: (dense(inner, requantized_view(inner, q, weight)),),
            lambda inner, arguments, results, cotangents: [
                inner.vjp(lambda level, weight: (_viewed(level, weight, q),), arguments[0])[1]([cotangents[0]])[0]
            ],
            None,
            q.codes,
        )
        return rounded

    def __str__(self) -> str:
        return f"{self.target}, in training"


def trained(xp: Backend, weight: Array, scheme: Scheme) -> Quantized:
    shape = xp.shape(weight)
    q = Quantized(weight, None, None, shape, contiguous_geometry(shape, xp.dtype_of(weight)), Training(target=scheme))
    requantized_view(xp, q, weight)  # raises for what cannot be quantised
    return q


def is_trained(x: Any) -> bool:
    return isinstance(x, Quantized) and isinstance(x.scheme, Training)


def requantized_view(xp: Backend, q: Quantized, weight: Array) -> Quantized:
    """Return the view `weight` of its base after quantising that."""
    return _rounded(xp, q, weight).with_geometry(q.geometry)


def _rounded(xp: Backend, q: Quantized, weight: Array) -> Quantized:
    assert isinstance(q.scheme, Training)
    return encode(xp, weight, q.scheme.target, "fake_quantize")


def _viewed(xp: Backend, weight: Array, q: Quantized) -> Array:
    """Return the view of the dense weight."""
    view = read_of(xp, weight, q.geometry)
    return view if xp.dtype_of(view) == q.dtype else xp.astype(view, q.dtype)


def holds(x: Any) -> bool:
    return is_trained(x) or (isinstance(x, list | tuple) and any(map(holds, x)))


def applied(
    xp: Backend,
    wrap: Callable[[Backend], Any],
    name: str,
    rule: Callable[..., Any] | None,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """Compute the operation `name` of the hub, of operands of which some are trained. `wrap`: a backend -> the one that
    knows of quantised arrays; `rule`: for `Quantized` operands."""
    if name in _VIEWS and (name != "reshape" or views.reshaped(args[0].geometry, tuple(args[1])) is not None):
        assert rule is not None
        return rule(xp, *args, **kwargs)
    call_args: Any = (tuple(args), kwargs)
    all_leaves, tree = optree.tree_flatten(call_args)
    leaves: list[Any] = [dense(xp, x) if isinstance(x, Quantized) and not is_trained(x) else x for x in all_leaves]
    indices = [i for i, x in enumerate(leaves) if is_trained(x) or xp.is_array(x)]
    arrays = [x.codes if is_trained(x := leaves[i]) else x for i in indices]
    single: list[bool] = []

    def call(level: Any, of: Backend, operands: Sequence[Any]) -> tuple[Array, ...]:
        replaced = dict(zip(indices, operands, strict=True))
        filled: Any = [replaced.get(i, x) for i, x in enumerate(leaves)]
        positional, named = optree.tree_unflatten(tree, filled)
        result = getattr(level, name)(*positional, **named)
        single[:] = [not isinstance(result, list | tuple)]
        out = [result] if single[0] else result
        return tuple([dense(of, x) if isinstance(x, Quantized) else x for x in out])

    def quantised(level: Backend, *values: Array) -> tuple[Array, ...]:
        pairs = zip(indices, values, strict=True)
        operands = [requantized_view(level, x, v) if is_trained(x := leaves[i]) else v for i, v in pairs]
        with policy.allowed():
            return call(wrap(level), level, operands)

    def pulled_back(level: Backend, arguments: Any, results: Any, cotangents: Any) -> list[Array | None]:
        """Return the cotangents of the operation on dense numbers, at those that the codes stand for."""
        at = [
            dense(level, _rounded(level, x, a)) if is_trained(x := leaves[i]) else a
            for i, a in zip(indices, arguments, strict=True)
        ]
        smooth = [k for k, a in enumerate(at) if dtypes.is_inexact(level.dtype_of(a))]

        def run(inner: Any, *smooth_arrays: Array) -> tuple[Array, ...]:
            known = dict(zip(smooth, smooth_arrays, strict=True))
            values = [known[k] if k in known else inner.lifted(a) for k, a in enumerate(at)]
            operands = [
                _viewed(inner, v, x) if is_trained(x := leaves[i]) else v for i, v in zip(indices, values, strict=True)
            ]
            return call(inner, inner, operands)

        _, pullback = level.vjp(run, *[at[k] for k in smooth])
        slopes = dict(zip(smooth, pullback(list(cotangents)), strict=True))
        return [slopes.get(k) for k in range(len(at))]

    policy.served(name)
    result = xp.custom_vjp(quantised, pulled_back, None, *arrays)
    return result[0] if single[0] else list(result)
