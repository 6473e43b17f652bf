"""Rules for reductions, scans, sorting and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.onnx.rule import rule, rules_of
from tensorgraft.frontends.onnx.rules.shape import axes_of
from tensorgraft.hub import dtypes
from tensorgraft.hub.value import Value, with_operators


def _mean(xp: Any, x: Any, axes: Any, keepdims: bool) -> Any:
    if dtypes.is_inexact(xp.dtype_of(x)):
        return xp.mean(x, axes, keepdims)
    return xp.integer_floor_divide(xp.sum(x, axes, keepdims), math.prod(x.shape[a] for a in axes))


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceSum": lambda xp, x, axes, keep: xp.sum(x, axes, keep),
    "ReduceProd": lambda xp, x, axes, keep: xp.prod(x, axes, keep),
    "ReduceMax": lambda xp, x, axes, keep: xp.max(x, axes, keep),
    "ReduceMin": lambda xp, x, axes, keep: xp.min(x, axes, keep),
    "ReduceMean": _mean,
    "ReduceL1": lambda xp, x, axes, keep: xp.sum(xp.abs(x), axes, keep),
    "ReduceL2": lambda xp, x, axes, keep: xp.sqrt(xp.sum(xp.square(x), axes, keep)),
    "ReduceSumSquare": lambda xp, x, axes, keep: xp.sum(xp.square(x), axes, keep),
    "ReduceLogSum": lambda xp, x, axes, keep: xp.log(xp.sum(x, axes, keep)),
    "ReduceLogSumExp": lambda xp, x, axes, keep: xp.logsumexp(x, axes, keep) if axes else x,
}


def _reduction(reduce: Callable[..., Any]) -> Callable[..., Any]:
    def fn(xp: Any, data: Any, axes: Any = None, *, keepdims: int, noop_with_empty_axes: int = 0) -> Any:
        rank = len(data.shape)
        if axes is not None and np.size(axes):
            along = axes_of(axes, rank)
        else:
            along = () if noop_with_empty_axes else tuple(range(rank))
        return reduce(xp, data, along, bool(keepdims))

    return fn


for _op, _reduce in REDUCTIONS.items():
    rule(_op, known=("axes",))(_reduction(_reduce))


def _arg(name: str) -> Callable[..., Any]:
    def fn(xp: Any, x: Any, *, axis: int, keepdims: int, select_last_index: int = 0) -> Any:
        axis = axes_of(axis, len(x.shape))[0]
        if not select_last_index:
            return getattr(xp, name)(x, axis, bool(keepdims))
        at = getattr(xp, name)(xp.flip(x, (axis,)), axis, bool(keepdims))
        return xp.subtract(x.shape[axis] - 1, at)

    return fn


rule("ArgMax")(_arg("argmax"))
rule("ArgMin")(_arg("argmin"))


def _scan(name: str, identity: int) -> Callable[..., Any]:
    def fn(xp: Any, x: Any, axis: Any, *, exclusive: int, reverse: int) -> Any:
        along = axes_of(axis, len(x.shape))[0]
        x = xp.flip(x, (along,)) if reverse else x
        if exclusive:
            config = [(1, -1, 0) if i == along else (0, 0, 0) for i in range(len(x.shape))]
            x = xp.pad(x, identity, config)
        x = getattr(xp, name)(x, axis=along)
        return xp.flip(x, (along,)) if reverse else x

    return fn


rules_of({"CumSum": _scan("cumsum", 0), "CumProd": _scan("cumprod", 1)}, known=("axis",))


@rule("TopK", known=("k",))
def top_k(xp: Any, x: Any, k: Any, *, axis: int, largest: int = 1, sorted_: int = 1) -> Any:
    n = int(np.reshape(k, ()))
    if n > x.shape[axis]:
        raise ValueError(f"k is {n}, axis {axis} of {tuple(x.shape)} has fewer elements")
    if largest:  # of equal values the first, which is not what a descending stable sort takes first
        return list(xp.top_k(x, n, axis, True))
    values, at = xp.sort_with_indices(x, axis)
    return [xp.take_slice(values, axis, 0, n), xp.take_slice(at, axis, 0, n)]


def _rows(xp: Any, x: Any, axis: int) -> Any:
    """Return the matrix that operators before opset 13 make of an array."""
    return xp.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def _softmax(name: str) -> Callable[..., Any]:
    def fn(xp: Any, x: Any, *, axis: int, opset: int, masked: int = 0) -> Any:
        if masked and opset >= 13:
            return _masked_softmax(xp, x, axis)
        if opset >= 13:
            return getattr(xp, name)(x, axis)
        return xp.reshape(getattr(xp, name)(_rows(xp, x, axis), 1), tuple(x.shape))

    return fn


@with_operators
def _masked_softmax(xp: Any, x: Value, axis: int) -> Value:
    """Return a softmax whose derivative is zero in rows of nothing but minus infinity."""
    is_masked = xp.max(x, axis, True) == -math.inf
    return xp.where(is_masked, math.nan, xp.softmax(xp.where(is_masked, 0.0, x), axis))


rule("Softmax")(_softmax("softmax"))
rule("LogSoftmax")(_softmax("log_softmax"))


@rule("Hardmax")
def hardmax(xp: Any, x: Any, *, axis: int, opset: int) -> Any:
    shape = tuple(x.shape)
    if opset < 13:
        x, axis = _rows(xp, x, axis), 1
    axis %= len(x.shape)
    hot = xp.one_hot(xp.argmax(x, axis), x.shape[axis], xp.dtype_of(x))
    return xp.reshape(xp.moveaxis(hot, -1, axis), shape)


@rule("LpNormalization")
def lp_normalization(xp: Any, x: Any, *, axis: int, p: int) -> Any:
    """Rows of zeros stay zeros, whose derivative is zero, too: a root of zero would have none."""
    total = xp.sum(xp.abs(x) if p == 1 else xp.square(x), axis, True)
    is_zero = xp.equal(total, 0)
    total = xp.where(is_zero, xp.ones_like(total), total)
    return xp.where(is_zero, xp.zeros_like(x), xp.divide(x, total if p == 1 else xp.sqrt(total)))


def _spatial(x: Any) -> tuple[int, ...]:
    return tuple(range(2, len(x.shape)))


GLOBAL_POOLS: dict[str, Callable[..., Any]] = {
    "GlobalAveragePool": lambda xp, x: xp.mean(x, _spatial(x), True),
    "GlobalMaxPool": lambda xp, x: xp.max(x, _spatial(x), True),
    "GlobalLpPool": lambda xp, x, *, p=2: xp.pow(xp.sum(xp.pow(xp.abs(x), p), _spatial(x), True), 1 / p),
}
rules_of(GLOBAL_POOLS)
