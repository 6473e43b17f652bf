"""Rules for normalisation."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.onnx.element_types import dtype_of
from tensorgraft.frontends.onnx.rule import rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.value import Value, with_operators


@rule("BatchNormalization", state=("input_mean", "input_var"))
def batch_normalization(
    xp: Any, x: Any, scale: Any, b: Any, input_mean: Any, input_var: Any, *, epsilon: float, momentum: float = 0.9,
    training_mode: int = 0, spatial: int = 1, is_test: int = 1, node: Any = None,
) -> Any:  # fmt: skip
    dtype = xp.dtype_of(x)
    if not training_mode:
        wide = [xp.astype(v, dtype) for v in (input_mean, input_var, scale, b)]
        if len(x.shape) == 1:
            return xp.squeeze(xp.batch_norm(xp.expand_dims(x, 1), *wide, epsilon), 1)
        return xp.batch_norm(x, *wide, epsilon)
    axes = (0, *range(2, len(x.shape)))
    mean = xp.mean(x, axes)
    variance = xp.var(x, axes)
    y = xp.batch_norm(x, mean, variance, xp.astype(scale, dtype), xp.astype(b, dtype), epsilon)
    return [y, *(_moved(xp, old, new, momentum) for old, new in ((input_mean, mean), (input_var, variance)))]


@with_operators
def _moved(xp: Any, old: Value, new: Value, momentum: float) -> Value:
    """Return a running statistic after a step."""
    return old * momentum + xp.astype(new, old.dtype) * (1 - momentum)


@rule("InstanceNormalization")
def instance_normalization(xp: Any, x: Any, scale: Any, b: Any, *, epsilon: float) -> Any:
    return xp.group_norm(x, x.shape[1], scale, b, epsilon)


@rule("GroupNormalization")
def group_normalization(
    xp: Any, x: Any, scale: Any, bias: Any, *, num_groups: int, epsilon: float, stash_type: int = 1, opset: int
) -> Any:
    dtype = xp.dtype_of(x)
    wide = dtype_of(stash_type) if dtype.itemsize < 4 else dtype
    scale, bias = xp.astype(scale, wide), xp.astype(bias, wide)
    if opset < 21:  # of each group
        scale, bias = (xp.repeat(v, x.shape[1] // num_groups, 0) for v in (scale, bias))
    return xp.astype(xp.group_norm(xp.astype(x, wide), num_groups, scale, bias, epsilon), dtype)


@rule("LayerNormalization")
def layer_normalization(
    xp: Any, x: Any, scale: Any, b: Any = None, *, axis: int, epsilon: float, stash_type: int, node: Any = None
) -> Any:
    dtype = xp.dtype_of(x)
    wide = dtype_of(stash_type) if dtype.itemsize < 4 else dtype
    axes = len(x.shape) - axis % len(x.shape)
    if len(node.outputs) == 1 and wide == dtype:
        return xp.layer_norm(x, scale, b, axes, epsilon)
    y, mean, rstd = xp.standardize(xp.astype(x, wide), tuple(range(-axes, 0)), epsilon)
    y = xp.multiply(xp.astype(y, dtype), scale)
    return [y if b is None else xp.add(y, b), mean, rstd]


@rule("RMSNormalization", "SimplifiedLayerNormalization")
def rms_normalization(
    xp: Any, x: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, node: Any = None
) -> Any:
    """The second name is onnxruntime's, which returns the reciprocal roots, too."""
    dtype = xp.dtype_of(x)
    wide = dtype_of(stash_type) if dtype.itemsize < 4 else dtype
    axes = len(x.shape) - axis % len(x.shape)
    if wide == dtype:
        y = xp.rms_norm(x, scale, axes, epsilon)
    else:
        y = xp.multiply(xp.astype(xp.rms_norm(xp.astype(x, wide), None, axes, epsilon), dtype), scale)
    if len(node.outputs) < 2:
        return y
    squares = xp.mean(xp.square(xp.astype(x, dtype_of(stash_type))), tuple(range(-axes, 0)), True)
    return [y, xp.rsqrt(xp.add(squares, epsilon))]


rule("SimplifiedLayerNormalization", domain="com.microsoft")(rms_normalization)


@rule("LRN")
@with_operators
def lrn(xp: Any, x: Value, *, alpha: float, beta: float, bias: float, size: int) -> Value:
    """Divide by a power of the sum of squares of neighbouring channels (Krizhevsky and others 2012)."""
    rank = len(x.shape)
    low = (size - 1) // 2
    padding = tuple((low, size - 1 - low) if i == 1 else (0, 0) for i in range(rank))
    window = tuple(size if i == 1 else 1 for i in range(rank))
    total = xp.reduce_window(xp.square(x), "sum", window, (1,) * rank, padding, (1,) * rank)
    return x / (total * (alpha / size) + bias) ** beta


@rule("Dropout", known=("ratio", "training_mode"))
def dropout(
    xp: Any, data: Any, ratio: Any = None, training_mode: Any = None, *, seed: int | None = None, is_test: int = 1,
    node: Any = None, key: Any = None,
) -> Any:  # fmt: skip
    rate = 0.5 if ratio is None else float(ratio.reshape(()))
    if training_mode is None or not bool(training_mode.reshape(())) or rate == 0:
        return [data, xp.full(tuple(data.shape), True, dtypes.bool_)] if len(node.outputs) > 1 else data
    keep = xp.greater_equal(xp.uniform(key, tuple(data.shape), dtypes.float32), rate)
    scaled = xp.divide(data, 1 - rate)
    return [xp.where(keep, scaled, xp.zeros_like(scaled)), keep]
