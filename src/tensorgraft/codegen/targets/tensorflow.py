"""TensorFlow: functions of `tf`, `tf.math`, `tf.nn` and `tf.linalg`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.codegen.output import expressions
from tensorgraft.codegen.recorders.calls import CannotBeSaidError
from tensorgraft.codegen.targets import Block, Rule, Target, Var, Writing, rules, worded
from tensorgraft.codegen.targets.helpers import tensorflow as helpers
from tensorgraft.hub import dtypes

_NARROW = (dtypes.float16, dtypes.bfloat16)
_KNOWN = (*dtypes.ALL, dtypes.float8_e4m3fn, dtypes.float8_e5m2)
_SMALL = tuple(t for t in dtypes.INTEGER if t not in (dtypes.int32, dtypes.int64))  # of few kernels


def _dtype(dtype: np.dtype) -> str:
    if dtype not in _KNOWN:
        raise CannotBeSaidError(f"TensorFlow has no tensors of {dtype}")
    return f"tf.dtypes.experimental.{dtype.name}" if dtype in dtypes.FLOAT8 else f"tf.{dtype.name}"


def _unless_float32(dtype: np.dtype) -> Any:
    return None if dtype == dtypes.float32 else dtype


# ---- elementwise -----------------------------------------------------------------------------------------------------


def _in_other_dtype(template: Rule, table: dict[np.dtype, np.dtype]) -> Callable[..., ast.expr]:
    """Return a rule that computes in another dtype where the kernel is missing or rough."""

    def rule(w: Writing, **arguments: Any) -> ast.expr:
        dtype = next(v.dtype for v in rules.arrays(arguments))
        wide = table.get(dtype)
        if wide is not None:
            arguments = {
                k: w.fill("tf.cast(x, wide)", x=v, wide=wide) if isinstance(v, Var) and v.dtype == dtype else v
                for k, v in arguments.items()
            }
        expression = (
            w.fill(template, **rules.without_defaults(arguments))
            if isinstance(template, str)
            else template(w, **arguments)
        )
        result_vars = w.call_outcome()
        if wide is None or (isinstance(result_vars, Var) and result_vars.dtype != dtype):
            return expression
        if not isinstance(result_vars, Var):
            return w.fill("tuple([tf.cast(y, dtype) for y in ys])", ys=expression, dtype=dtype)
        return w.fill("tf.cast(y, dtype)", y=expression, dtype=dtype)

    return rule


_AS_FLOAT32 = dict.fromkeys(_NARROW, dtypes.float32)
_AS_INT32 = {t: dtypes.int64 if t.itemsize > 2 else dtypes.int32 for t in _SMALL if t != dtypes.uint64}


def _wide(template: Rule) -> Callable[..., ast.expr]:
    return _in_other_dtype(template, _AS_FLOAT32)


def _typed(template: str) -> Callable[..., ast.expr]:
    """Python scalars as TensorFlow converts them: it goes by the first operand."""

    def rule(w: Writing, **operands: Any) -> ast.expr:
        arrays = [v for k, v in operands.items() if isinstance(v, Var) and k != "condition"]
        like = arrays[-1].dtype if arrays else dtypes.float32  # what was widened takes numbers as they are

        def number(v: Any) -> Any:
            if isinstance(v, Var | ast.expr) or v is None:
                return v
            plain = float(v) if arrays and dtypes.is_floating(like) and not isinstance(v, complex) else v
            if like in (dtypes.float32, dtypes.int32, dtypes.bool_):
                return plain
            return w.fill("tf.constant(v, dtype)", v=plain, dtype=like)

        return w.fill(template, **{k: number(v) for k, v in operands.items()})

    return rule


def _extreme_of_two(template: str, logical: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Any, y: Any) -> ast.expr:
        return w.fill(logical, x=x, y=y) if rules.dtype_of(x, y) == np.bool_ else _typed(template)(w, x=x, y=y)

    return rule


def _compared(sign: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Any, y: Any) -> ast.expr:
        if rules.dtype_of(x, y) == np.bool_:
            x, y = (w.fill("tf.cast(x, tf.int32)", x=v) if isinstance(v, Var) else int(v) for v in (x, y))
        return w.fill(f"x {sign} y", x=x, y=y)

    return rule


def _infix(w: Writing, sign: str, x: Any, y: Any) -> ast.expr:
    return w.fill(f"x {sign} y", x=x, y=y)


def _of_parts(name: str, combine: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Var) -> ast.expr:
        if dtypes.is_complex(x.dtype):
            part = f"tf.math.{name}(tf.math.{{}}(x))"
            return w.fill(f"{part.format('real')} {combine} {part.format('imag')}", x=x)
        return w.fill(f"tf.math.{name}(x)", x=x)

    return rule


def _clip(w: Writing, x: Var, low: Any = None, high: Any = None) -> ast.expr:
    if low is not None and high is not None and not isinstance(low, Var) and not isinstance(high, Var):
        return w.fill("tf.clip_by_value(x, low, high)", x=x, low=low, high=high)
    out = w(x) if low is None else w.fill("tf.maximum(x, low)", x=x, low=low)
    return out if high is None else w.fill("tf.minimum(x, high)", x=out, high=high)


def _pow(w: Writing, x: Any, y: Any) -> ast.expr:
    dtype = rules.dtype_of(x, y)
    if dtypes.is_integer(dtype) and (not isinstance(y, int) or y < 0 or dtype in _SMALL):
        return w.fill("integer_pow(x, y)", x=x, y=y)
    return w.fill("x ** y", x=x, y=y)


def _shift(name: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Any, y: Any) -> ast.expr:
        dtype = rules.dtype_of(x, y)
        in_range = isinstance(y, int) and 0 <= y < 8 * dtype.itemsize
        y = y if isinstance(y, Var) else w.fill("tf.constant(y, dtype)", y=y, dtype=dtype)
        x = x if isinstance(x, Var) else w.fill("tf.constant(x, dtype)", x=x, dtype=dtype)
        return w.fill(f"tf.bitwise.{name}(x, y)" if in_range else f"{name}(x, y)", x=x, y=y)

    return rule


def _remainder(w: Writing, x: Any, y: Any) -> ast.expr:
    return w.fill("x % y", x=x, y=y)


def _astype(w: Writing, x: Var, dtype: np.dtype) -> ast.expr:
    if dtypes.is_complex(x.dtype) and not dtypes.is_complex(dtype):
        if dtypes.is_bool(dtype):
            return w.fill("x != 0", x=x)
        real = dtype == dtypes.real_dtype(x.dtype)
        return w.fill("tf.math.real(x)" if real else "tf.cast(tf.math.real(x), dtype)", x=x, dtype=dtype)
    if dtypes.is_floating(x.dtype) and dtypes.is_integer(dtype) and (dtype.itemsize < 4 or dtype == dtypes.uint32):
        wide = dtypes.int64 if dtype == dtypes.uint32 else dtypes.int32
        return w.fill("tf.cast(tf.cast(x, wide), dtype)", x=x, wide=wide, dtype=dtype)  # wraps
    if dtype in dtypes.FLOAT8 and not dtypes.is_floating(x.dtype):
        return w.fill("tf.cast(tf.cast(x, tf.float32), dtype)", x=x, dtype=dtype)  # which has no kernel of its own
    return w.fill("tf.cast(x, dtype)", x=x, dtype=dtype)


def _angle(w: Writing, x: Var) -> ast.expr:
    if dtypes.is_complex(x.dtype):
        return w.fill("tf.math.angle(x)", x=x)
    return w.fill("tf.where(tf.math.is_nan(x), x, math.pi * tf.cast(x < 0, dtype))", x=x, dtype=x.dtype)


# ---- reductions ------------------------------------------------------------------------------------------------------


def _reduced(name: str, of_bool: str = "") -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Var, axis: Any = None, keepdims: bool = False) -> ast.expr:
        if axis == ():
            return w(x)
        if of_bool and x.dtype == np.bool_:
            return w.fill(f"tf.reduce_{of_bool}(x, axis=axis, keepdims=keepdims)", x=x, axis=axis,
                          keepdims=keepdims or None)  # fmt: skip
        table = {} if name in ("max", "min", "any", "all") else _AS_FLOAT32
        return _in_other_dtype(f"tf.reduce_{name}(x, axis=axis, keepdims=keepdims)", table)(
            w, x=x, axis=axis, keepdims=keepdims or None
        )

    return rule


def _var(w: Writing, x: Var, axis: Any = None, keepdims: bool = False, correction: Any = 0) -> ast.expr:
    if axis == ():
        return w.fill("tf.abs(x - x)", x=x)
    if correction == 0 and x.dtype not in _NARROW:
        return w.fill("tf.math.reduce_variance(x, axis=axis, keepdims=keepdims)", x=x, axis=axis,
                      keepdims=keepdims or None)  # fmt: skip
    return _wide("variance(x, axis=axis, keepdims=keepdims, correction=correction)")(
        w, x=x, axis=axis, keepdims=keepdims or None, correction=correction
    )


def _position(name: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Var, axis: int, keepdims: bool = False) -> ast.expr:
        if not x.ndim:
            return w.fill("tf.constant(0, tf.int64)")
        if x.dtype == np.bool_:
            at = w.fill(f"tf.{name}(tf.cast(x, tf.uint8), axis=axis)", x=x, axis=axis)
        elif dtypes.is_floating(x.dtype):
            at = w.fill(f"{name}(x, axis=axis)", x=x, axis=axis)
        else:
            at = _in_other_dtype(
                f"tf.{name}(x, axis=axis)", dict.fromkeys((dtypes.uint16, dtypes.uint32), dtypes.int64)
            )(w, x=x, axis=axis)
        return w.fill("tf.expand_dims(at, axis)", at=at, axis=axis) if keepdims else at

    return rule


def _running(name: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Var, axis: int) -> ast.expr:
        if x.dtype == np.bool_:
            return w.fill(f"tf.cast(running({name}, tf.cast(x, tf.uint8), axis), tf.bool)", x=x, axis=axis)
        return w.fill(f"running({name}, x, axis)", x=x, axis=axis)

    return rule


# ---- creation and shapes ---------------------------------------------------------------------------------------------


def _full(w: Writing, shape: Any, value: Any, dtype: np.dtype) -> ast.expr:
    if isinstance(value, Var):
        same_dtype = value.dtype == dtype
        return w.fill("tf.fill(shape, value)", shape=tuple(shape),
                      value=value if same_dtype else w.fill("tf.cast(v, dtype)", v=value, dtype=dtype))  # fmt: skip
    if rules.is_plain_zero_or_one(value):
        return _zeros("ones" if value else "zeros")(w, shape=shape, dtype=dtype)
    if isinstance(value, int) and dtypes.is_floating(dtype):
        value = float(value)
    if dtype == dtypes.float32 or (dtype == dtypes.int32 and isinstance(value, int)):
        return w.fill("tf.fill(shape, value)", shape=tuple(shape), value=value)
    return w.fill("tf.fill(shape, tf.constant(value, dtype))", shape=tuple(shape), value=value, dtype=dtype)


def _zeros(name: str) -> Callable[..., ast.expr]:
    return lambda w, shape, dtype: w.fill(f"tf.{name}(shape, dtype=dtype)", shape=tuple(shape),
                                          dtype=_unless_float32(dtype))  # fmt: skip


def _full_like(w: Writing, x: Var, value: Any) -> ast.expr:
    if isinstance(value, Var):
        return w.fill("tf.broadcast_to(value, x.shape)", x=x, value=value)
    return _full(w, x.shape, value, x.dtype)


def _iota(w: Writing, n: Any, dtype: np.dtype) -> ast.expr:
    if dtype == dtypes.int32:
        return w.fill("tf.range(n)", n=n)
    if dtype in (dtypes.int64, dtypes.float32, dtypes.float64):
        return w.fill("tf.range(n, dtype=dtype)", n=n, dtype=dtype)
    return w.fill("tf.cast(tf.range(n), dtype)", n=n, dtype=dtype)


def _eye(w: Writing, n: Any, m: Any, dtype: np.dtype, k: int = 0) -> ast.expr:
    if k:
        return w.fill("tf.cast(tf.range(n)[:, None] + k == tf.range(m), dtype)", n=n, m=m, k=k, dtype=dtype)
    template = "tf.eye(n, dtype=dtype)" if rules.same(n, m) else "tf.eye(n, m, dtype=dtype)"
    return w.fill(template, n=n, m=m, dtype=_unless_float32(dtype))


def _permute_dims(w: Writing, x: Any, axes: Any) -> ast.expr:
    return w.fill("tf.transpose(x)" if tuple(axes) == (1, 0) else "tf.transpose(x, axes)", x=x, axes=tuple(axes))


def _moveaxis(w: Writing, x: Var, source: int, target: int) -> ast.expr:
    axes = [a for a in range(x.ndim) if a != source % x.ndim]
    axes.insert(target % x.ndim, source % x.ndim)
    return _permute_dims(w, x, axes)


def _swapaxes(w: Writing, x: Var, a: int, b: int) -> ast.expr:
    axes = list(range(x.ndim))
    axes[a], axes[b] = axes[b], axes[a]
    return _permute_dims(w, x, axes)


def _pad(w: Writing, x: Var, value: Any, config: Any) -> ast.expr:
    if not x.ndim:
        return w(x)
    plain = all(low >= 0 and high >= 0 and interior == 0 for low, high, interior in config)
    if plain and not isinstance(value, Var) and x.dtype in (dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64):
        return w.fill("tf.pad(x, widths, constant_values=value)", x=x, value=None if value == 0 else value,
                      widths=tuple((low, high) for low, high, _ in config))  # fmt: skip
    return w.fill("pad(x, value, config)", x=x, value=value, config=tuple(map(tuple, config)))


def _slice_update(w: Writing, x: Var, update: Var, start: Any, step: Any) -> ast.expr:
    index = rules.region(x, update, start, step)
    if all(i == slice(None) for i in index) or not x.ndim:
        return w(update)
    if all(rules.same(s, 1) for s in step):
        return w.fill("slice_update(x, update, start)", x=x, update=update, start=tuple(start))
    return w.fill("slice_update(x, update, start, step)", x=x, update=update, start=tuple(start), step=tuple(step))


def _dynamic_slice(w: Writing, x: Var, start: Any, sizes: Any) -> ast.expr:
    return w.fill("dynamic_slice(x, start, sizes)", x=x, start=tuple(start), sizes=tuple(sizes)) if x.ndim else w(x)


def _dynamic_update_slice(w: Writing, x: Var, update: Var, start: Any) -> ast.expr:
    if not x.ndim:
        return w(update)
    return w.fill("dynamic_update_slice(x, update, start)", x=x, update=update, start=tuple(start))


def _split(w: Writing, x: Var, sizes: Any, axis: int = 0) -> ast.expr:
    even, _, rest = rules.sizes_of_split(x, sizes, axis)
    if even:
        return w.fill("tf.split(x, n, axis=axis)", x=x, n=len(sizes), axis=axis or None)
    if rest:
        left = rules.minus(x.shape[axis % x.ndim], *sizes)
        return w.fill("tf.split(x, sizes, axis=axis)[:-1]", x=x, sizes=[*sizes, left], axis=axis or None)
    return w.fill("tf.split(x, sizes, axis=axis)", x=x, sizes=list(sizes), axis=axis or None)


def _tri(name: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Var, k: Any = 0) -> ast.expr:
        keeps_diagonal = not isinstance(k, Var) and (k >= 0 if name == "tril" else k <= 0)
        if keeps_diagonal and x.dtype not in (dtypes.uint16, dtypes.uint32, dtypes.uint64):
            ends = (-1, k) if name == "tril" else (-k, -1)
            return w.fill("tf.linalg.band_part(x, low, high)", x=x, low=ends[0], high=ends[1])
        mask = f"tf.range(n)[:, None] + k {'>=' if name == 'tril' else '<='} tf.range(m)"
        return w.fill(f"tf.where({mask}, x, tf.zeros_like(x))", x=x, n=x.shape[-2], m=x.shape[-1],
                      k=w.fill("tf.cast(k, tf.int32)", k=k) if isinstance(k, Var) else k)  # fmt: skip

    return rule


def _triangle_mask(w: Writing, n: Any, m: Any, k: Any = 0) -> ast.expr:
    if isinstance(k, Var):
        k = w.fill("tf.cast(k, tf.int32)", k=k)
    elif not k:
        return w.fill("tf.range(n)[:, None] >= tf.range(m)", n=n, m=m)
    return w.fill("tf.range(n)[:, None] + k >= tf.range(m)", n=n, m=m, k=k)


def _diagonal(w: Writing, x: Var, offset: int = 0) -> ast.expr:
    if rules.same(w.call_outcome().shape[-1], 0):
        return w.fill("x[..., 0, :0]", x=x)
    return w.fill("tf.linalg.diag_part(x, k=offset)", x=x, offset=offset or None)


# ---- indexing and sorting --------------------------------------------------------------------------------------------


def _positions(w: Writing, i: Any) -> Any:
    known = (dtypes.int32, dtypes.int64)
    return w.fill("tf.cast(i, tf.int64)", i=i) if isinstance(i, Var) and i.dtype not in known else i


def _gather(w: Writing, x: Var, indices: Any) -> ast.expr:
    if len(indices) == 1:
        return w.fill("tf.gather(x, i)", x=x, i=_positions(w, indices[0]))
    return w.fill("gather(x, indices)", x=x, indices=tuple(indices))


def _scatter(w: Writing, x: Var, indices: Any, updates: Any, mode: str = "set") -> ast.expr:
    return w.fill("scatter(x, indices, updates, mode=mode)", x=x, indices=tuple(indices), updates=updates,
                  mode=None if mode == "set" else mode)  # fmt: skip


def _take(w: Writing, x: Var, indices: Any, axis: int) -> ast.expr:
    return w.fill("tf.gather(x, indices, axis=axis)", x=x, indices=_positions(w, indices), axis=axis % x.ndim or None)


def _take_along_axis(w: Writing, x: Var, indices: Var, axis: int) -> ast.expr:
    if not x.ndim:
        return w.fill("tf.broadcast_to(x, indices.shape)", x=x, indices=indices)
    part = rules.indexed(w, x, rules.part_as_long(x, indices, axis))
    if axis % x.ndim == x.ndim - 1 and x.ndim > 1:
        return w.fill("tf.gather(x, indices, batch_dims=n)", x=part, indices=_positions(w, indices), n=x.ndim - 1)
    return w.fill("take_along_axis(x, indices, axis)", x=part, indices=indices, axis=axis)


def _put_along_axis(w: Writing, x: Var, indices: Var, updates: Any, axis: int, mode: str = "set") -> ast.expr:
    return w.fill("put_along_axis(x, indices, updates, axis, mode=mode)", x=x, indices=indices, updates=updates,
                  axis=axis, mode=None if mode == "set" else mode)  # fmt: skip


def _one_hot(w: Writing, indices: Var, n: Any, dtype: np.dtype) -> ast.expr:
    if dtype == np.bool_:
        return w.fill("tf.one_hot(i, n, True, False)", i=_positions(w, indices), n=n)
    return w.fill("tf.one_hot(i, n, dtype=dtype)", i=_positions(w, indices), n=n, dtype=_unless_float32(dtype))


def _sort(w: Writing, operands: Any, axis: int = -1, num_keys: int = 1) -> ast.expr:
    return w.fill("sort(operands, axis=axis, num_keys=num_keys)", operands=tuple(operands),
                  axis=None if axis == -1 else axis, num_keys=None if num_keys == 1 else num_keys)  # fmt: skip


def _argsort(name: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Var, axis: int = -1, descending: bool = False) -> ast.expr:
        return w.fill(f"{name}(x, axis=axis, descending=descending)", x=x, axis=None if axis == -1 else axis,
                      descending=descending or None)  # fmt: skip

    return rule


def _searchsorted(w: Writing, boundaries: Var, values: Any, right: bool = False) -> ast.expr:
    side = ', side="right"' if right else ""
    plain = boundaries.ndim == values.ndim == 1
    template = f"tf.searchsorted(b, v{side}, out_type=tf.int64)" if plain else f"searchsorted(b, v{side})"
    table = {**_AS_FLOAT32, **_AS_INT32}
    return _in_other_dtype(template, table)(w, b=boundaries, v=values)


# ---- products --------------------------------------------------------------------------------------------------------

_OF_PRODUCTS = {dtypes.bool_: dtypes.float32, **_AS_FLOAT32, **_AS_INT32, dtypes.uint64: dtypes.int64}


def _product(w: Writing, template: str, a: Var, b: Var, dtype: np.dtype | None, **fields: Any) -> ast.expr:
    out = a.dtype if dtype is None else dtype
    wide = _OF_PRODUCTS.get(out, out)
    left, right = (w(x) if x.dtype == wide else w.fill("tf.cast(x, dtype)", x=x, dtype=wide) for x in (a, b))
    y = w.fill(template, a=left, b=right, **fields)
    if out == dtypes.bool_:
        return w.fill("y != 0", y=y)
    return y if wide == out else w.fill("tf.cast(y, dtype)", y=y, dtype=out)


def _matmul(w: Writing, a: Var, b: Var, dtype: np.dtype | None = None) -> ast.expr:
    if a.ndim > 1 and b.ndim > 1:
        return _product(w, "a @ b", a, b, dtype)
    if b.ndim == 1:
        return _product(w, "tf.tensordot(a, b, 1)", a, b, dtype)
    return _product(w, "tf.linalg.matvec(b, a, transpose_a=True)", a, b, dtype)


_AS_MATMUL = {
    "a @ b": "a @ b",
    **dict.fromkeys(("a @ b.T", "a @ b.mT"), "tf.matmul(a, b, transpose_b=True)"),
    **dict.fromkeys(("a.T @ b", "a.mT @ b"), "tf.matmul(a, b, transpose_a=True)"),
    "a.mT @ b.mT": "tf.matmul(a, b, transpose_a=True, transpose_b=True)",
}


def _dot_general(w: Writing, a: Var, b: Var, contract: Any, batch: Any = ((), ()), dtype: Any = None) -> ast.expr:
    sign, letters = rules.contraction(a, b, contract, batch)
    if sign is not None and a.ndim > 1 and b.ndim > 1:
        return _product(w, _AS_MATMUL[sign], a, b, dtype)
    if not any(batch):
        axes = tuple(tuple(side) for side in contract)
        return _product(w, "tf.tensordot(a, b, axes)", a, b, dtype, axes=axes)
    return _product(w, "tf.einsum(letters, a, b)", a, b, dtype, letters=letters)


def _linear(w: Writing, x: Var, weight: Var, bias: Any = None) -> ast.expr:
    product = "tf.matmul(x, weight, transpose_b=True)" if x.ndim > 1 else "tf.linalg.matvec(weight, x)"
    return w.fill(product if bias is None else f"{product} + bias", x=x, weight=weight, bias=bias)


# ---- windows ---------------------------------------------------------------------------------------------------------


def _conv_channels_last(
    w: Writing, x: Any, weight: Any, bias: Any = None, stride: Any = (1,), padding: Any = ((0, 0),),
    dilation: Any = (1,), groups: int = 1,
) -> ast.expr:  # fmt: skip
    return w.fill(
        f"conv_channels_last(x, weight, {'' if bias is None else 'bias, '}stride=stride, padding=padding,"
        " dilation=dilation, groups=groups)",
        x=x, weight=weight, bias=bias, stride=_short(stride, 1), padding=_short(padding, 0),
        dilation=_short(dilation, 1), groups=None if groups == 1 else groups,
    )  # fmt: skip


def _short(values: Any, default: Any) -> Any:
    """Return (2, 2) as 2, ((1, 1), (1, 1)) as 1, and None for the default."""
    pairs = tuple(v[0] if isinstance(v, tuple) and rules.same(v[0], v[1]) else v for v in values)
    if all(not isinstance(v, tuple) and rules.same(v, default) for v in pairs):
        return None
    return pairs[0] if all(rules.same(v, pairs[0]) for v in pairs) and not isinstance(pairs[0], tuple) else pairs


def _reduce_window(
    w: Writing, x: Var, kind: str, window: Any, strides: Any, padding: Any, window_dilation: Any
) -> ast.expr:
    def windowed(w: Writing, x: Any) -> ast.expr:
        return w.fill(
            f"reduce_window(tf.reduce_{kind}, x, initial, window, strides, padding, dilation=dilation)",
            x=x, initial=rules.identity(kind, dtype), window=tuple(window), strides=tuple(strides),
            padding=tuple(map(tuple, padding)), dilation=rules.gaps(window_dilation),
        )  # fmt: skip

    dtype = x.dtype
    return _in_other_dtype(windowed, _AS_FLOAT32 if kind == "sum" else {})(w, x=x)


def _transform(name: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Var, axis: int, n: Any = None) -> ast.expr:
        length = "" if n is None else ", [n]"
        if axis % x.ndim == x.ndim - 1:
            return w.fill(f"tf.signal.{name}(x{length})", x=x, n=n)
        swapped_axes = list(range(x.ndim))
        swapped_axes[axis], swapped_axes[-1] = swapped_axes[-1], swapped_axes[axis]
        return w.fill(f"tf.transpose(tf.signal.{name}(tf.transpose(x, axes){length}), axes)", x=x, n=n,
                      axes=tuple(swapped_axes))  # fmt: skip

    return rule


# ---- control flow ----------------------------------------------------------------------------------------------------


def _cond(w: Writing, predicate: Any, true_fn: Block, false_fn: Block, operands: Any = ()) -> ast.expr:
    calls = worded.branches(w, true_fn, false_fn, operands)
    true, false = (ast.Lambda(expressions.arguments(), call) for call in calls)
    return w.fill("tf.cond(predicate, true, false)", predicate=predicate, true=true, false=false)


def _while_loop(w: Writing, condition: Block, body: Block, init: Any) -> ast.expr:
    return w.fill("tf.while_loop(lambda *state: condition(state), lambda *state: body(state), init)",
                  condition=w.body(condition, "condition"), body=w.body(body, "body"), init=tuple(init))  # fmt: skip


def _embedding(w: Writing, weight: Any, indices: Any, padding: int | None = None) -> ast.expr:
    template = "tf.gather(x, i)" if padding is None else "padded_embedding(x, i, padding)"
    return w.fill(template, x=weight, i=_positions(w, indices), padding=padding)


def _unsigned_too(template: str, unsigned: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Any, y: Any) -> ast.expr:
        if rules.dtype_of(x, y) == dtypes.uint64:
            return w.fill(unsigned, x=x, y=y)
        return _in_other_dtype(_typed(template), {**_AS_FLOAT32, **_AS_INT32})(w, x=x, y=y)

    return rule


def _eigh(w: Writing, x: Var, lower: bool = True) -> ast.expr:
    triangle = w(x) if lower else w.fill("tf.linalg.adjoint(x)", x=x)
    return w.fill("eigh(x)" if dtypes.is_complex(x.dtype) else "tf.linalg.eigh(x)", x=triangle)


def _gelu(w: Writing, x: Var, approximate: bool = False) -> ast.expr:
    if approximate and x.dtype == dtypes.float64:  # TensorFlow's has constants of single precision
        return w.fill("gelu_tanh(x)", x=x)
    return _wide(f"tf.nn.gelu(x, approximate={approximate})")(w, x=x)


def _leaky_relu(w: Writing, x: Var, slope: float = 0.01) -> ast.expr:
    if x.dtype == dtypes.float64:
        return w.fill("tf.where(x > 0, x, slope * x)", x=x, slope=slope)
    return w.fill("tf.nn.leaky_relu(x, alpha=slope)", x=x, slope=slope)


def _index(w: Writing, x: Var, indices: Any) -> ast.expr:
    used = [k for k, i in enumerate(indices) if i is not None]
    if len(used) == 1:
        (k,) = used
        at = w.fill("positive(i, n)", i=indices[k], n=x.shape[k])
        return w.fill("tf.gather(x, at, axis=axis)", x=x, at=at, axis=k or None)
    return w.fill("index(x, indices)", x=x, indices=tuple(indices))


def _uniform(name: str) -> Callable[..., ast.expr]:
    return lambda w, key, shape, dtype: w.fill(
        f"tf.random.stateless_{name}(shape, seed=key, dtype=dtype)", key=key, shape=tuple(shape),
        dtype=_unless_float32(dtype))  # fmt: skip


_FLOAT32_ONLY = ("asin", "acos", "atan", "asinh", "acosh", "atanh", "sinh", "cosh", "tan", "sin", "cos", "tanh", "exp",
                 "sqrt")  # fmt: skip

WORDS: dict[str, Rule] = {
    **rules.infix(),
    # elementwise
    **{name: _wide(f"tf.{name}(x)") for name in _FLOAT32_ONLY},
    **{name: _wide(f"tf.math.{name}(x)") for name in ("expm1", "log", "log1p", "rsqrt", "erfc", "lgamma", "digamma")},
    "abs": lambda w, x: w(x) if x.dtype.kind == "u" else w.fill("tf.abs(x)", x=x),
    "sign": lambda w, x: w.fill("tf.cast(x != 0, dtype)" if x.dtype.kind == "u" else "tf.sign(x)", x=x, dtype=x.dtype),
    "square": "tf.square(x)",
    "ceil": "tf.math.ceil(x)",
    "floor": "tf.floor(x)",
    "round": "tf.round(x)",
    "trunc": "trunc(x)",
    "exp2": _wide(lambda w, x: w.fill("tf.constant(2, dtype) ** x", x=x, dtype=w.call_outcome().dtype)
                  if w.call_outcome().dtype not in (dtypes.float32, *_NARROW) else w.fill("2.0 ** x", x=x)),
    "log2": _wide("log2(x)"),
    "log10": _wide("tf.math.log(x) / math.log(10)"),
    "sigmoid": _wide("tf.sigmoid(x)"),
    "softplus": _wide("tf.nn.softplus(x)"),
    "erf": lambda w, x: w.fill("erf(x)", x=x) if x.dtype == dtypes.float64 else _wide("tf.math.erf(x)")(w, x=x),
    "erf_inv": _wide("erf_inv(x)"),
    "bessel_i0e": _wide("tf.math.bessel_i0e(x)"),
    "bessel_i1e": _wide("tf.math.bessel_i1e(x)"),
    "negative": lambda w, x: w.fill("tf.zeros_like(x) - x" if x.dtype.kind == "u" else "-x", x=x),
    "reciprocal": "1 / x",
    "bitwise_invert": lambda w, x: w.fill("~x" if x.dtype == np.bool_ else "tf.bitwise.invert(x)", x=x),
    "logical_not": "~x",
    "real": "tf.math.real(x)",
    "imag": "tf.math.imag(x)",
    "conj": "tf.math.conj(x)",
    "isnan": _of_parts("is_nan", "|"),
    "isinf": _of_parts("is_inf", "|"),
    "isfinite": _of_parts("is_finite", "&"),
    "signbit": "signbit(x)",
    "angle": _angle,
    "fmod": _unsigned_too("tf.truncatemod(x, y)", "x % y"),
    "remainder": _in_other_dtype("x % y", {**_AS_FLOAT32, **_AS_INT32}),
    "integer_floor_divide": _in_other_dtype("x // y", _AS_INT32),
    "pow": lambda w, x, y: _pow(w, x, y) if rules.dtype_of(x, y) not in _NARROW else _wide("x ** y")(w, x=x, y=y),
    "atan2": _wide(_typed("tf.atan2(x, y)")),
    "nextafter": "nextafter(x, y)",
    "igamma": _wide(_typed("tf.math.igamma(x, y)")),
    "igammac": _wide(_typed("tf.math.igammac(x, y)")),
    "zeta": _wide(_typed("tf.math.zeta(x, y)")),
    "maximum": _extreme_of_two("tf.maximum(x, y)", "x | y"),
    "minimum": _extreme_of_two("tf.minimum(x, y)", "x & y"),
    **{name: _compared(sign) for name, sign in
       {"less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="}.items()},
    "bitwise_left_shift": _shift("left_shift"),
    "bitwise_right_shift": _shift("right_shift"),
    "clip": _clip,
    "where": _typed("tf.where(condition, x, y)"),
    "complex": "tf.complex(real, imag)",
    "astype": _astype,
    "bitcast": "bitcast(x, dtype)",
    # reductions
    "sum": _reduced("sum"),
    "prod": _reduced("prod"),
    "max": _reduced("max", "any"),
    "min": _reduced("min", "all"),
    "any": _reduced("any"),
    "all": _reduced("all"),
    "mean": _reduced("mean"),
    "var": _var,
    "argmax": _position("argmax"),
    "argmin": _position("argmin"),
    "cumsum": _in_other_dtype("tf.cumsum(x, axis=axis)", {**_AS_FLOAT32, **_AS_INT32, dtypes.uint64: dtypes.int64}),
    "cumprod": _in_other_dtype(
        "tf.math.cumprod(x, axis=axis)", {**_AS_FLOAT32, **_AS_INT32, dtypes.uint64: dtypes.int64}
    ),
    "cummax": _running("tf.maximum"),
    "cummin": _running("tf.minimum"),
    "cumlogsumexp": _wide("tf.math.cumulative_logsumexp(x, axis=axis)"),
    "logsumexp": lambda w, x, axis=None, keepdims=False: w(x) if axis == () else _wide(
        "tf.reduce_logsumexp(x, axis=axis, keepdims=keepdims)")(w, x=x, axis=axis, keepdims=keepdims or None),
    "softmax": _wide("tf.nn.softmax(x, axis=axis)"),
    "log_softmax": _wide("tf.nn.log_softmax(x, axis=axis)"),
    # creation and shapes
    "full": _full,
    "zeros": _zeros("zeros"),
    "ones": _zeros("ones"),
    "zeros_like": "tf.zeros_like(x)",
    "ones_like": "tf.ones_like(x)",
    "full_like": _full_like,
    "iota": _iota,
    "eye": _eye,
    "reshape": "tf.reshape(x, shape)",
    "permute_dims": _permute_dims,
    "moveaxis": _moveaxis,
    "swapaxes": _swapaxes,
    "matrix_transpose": lambda w, x: w.fill("tf.transpose(x)" if x.ndim == 2 else "tf.linalg.matrix_transpose(x)", x=x),
    "broadcast_to": "tf.broadcast_to(x, shape)",
    "concat": lambda w, arrays, axis: w.fill("tf.concat(arrays, axis=axis)", arrays=list(arrays), axis=axis),
    "stack": "tf.stack(arrays, axis=axis)",
    "pad": _pad,
    "slice": rules.slice_,
    "take_slice": rules.take_slice,
    "getitem": rules.getitem,
    "slice_update": _slice_update,
    "flip": lambda w, x, axes: w.fill("tf.reverse(x, axes)", x=x, axes=list(axes)) if axes else w(x),
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "copy": "tf.identity(x)",
    "expand_dims": rules.expand_dims("tf.expand_dims(x, axis)"),
    "squeeze": lambda w, x, axes: w(x) if axes == () else w.fill("tf.squeeze(x, axes)", x=x, axes=axes),
    "split": _split,
    "unstack": "tf.unstack(x, axis=axis)",
    "roll": "tf.roll(x, shift, axis)",
    "repeat": "tf.repeat(x, times, axis=axis)",
    "pad_reflect": rules.pad("tf.pad(x, widths, mode='REFLECT')"),
    "tile": lambda w, x, repeats: w.fill("tf.tile(x, repeats)", x=x, repeats=tuple(repeats)) if x.ndim else w(x),
    "tril": _tri("tril"),
    "triu": _tri("triu"),
    "triangle_mask": _triangle_mask,
    "diagonal": _diagonal,
    # indexing and sorting
    "gather": _gather,
    "scatter": _scatter,
    "nonzero": lambda w, x: w.fill("tuple(tf.unstack(tf.where(x), axis=1))" if x.dtype == np.bool_ else
                                 "tuple(tf.unstack(tf.where(x != 0), axis=1))", x=x),
    "take": _take,
    "take_along_axis": _take_along_axis,
    "put_along_axis": _put_along_axis,
    "one_hot": _one_hot,
    "sort": _sort,
    "argsort": _argsort("argsort"),
    "sort_with_indices": _argsort("sort_with_indices"),
    "searchsorted": _searchsorted,
    # products and factorisations
    "matmul": _matmul,
    "dot_general": _dot_general,
    "cholesky": "tf.linalg.cholesky(x)",
    "qr": "tf.linalg.qr(x, full_matrices=full)",
    "svd": lambda w, x, full=False: w.fill("svd(x, full_matrices=full)", x=x, full=full or None),
    "svdvals": "tf.linalg.svd(x, compute_uv=False)",
    "eigh": _eigh,
    "eig": "tf.linalg.eig(x)",
    "lu": "lu(x)",
    "triangular_solve": worded.triangular_solve,
    "householder_product": "householder_product(a, tau)",
    "solve": "tf.linalg.solve(a, b)",
    "inv": "tf.linalg.inv(x)",
    # windows
    "convolution": worded.convolution,
    "reduce_window": _reduce_window,
    # transforms
    "fft": _transform("fft"),
    "ifft": _transform("ifft"),
    "rfft": _transform("rfft"),
    "irfft": _transform("irfft"),
    # random numbers: a key is a seed, two integers
    "fold_in": "tf.random.fold_in(key, tf.cast(low, key.dtype))",
    "uniform": _uniform("uniform"),
    "normal": _uniform("normal"),
    "randint": "tf.random.stateless_uniform(shape, seed=key, minval=low, maxval=high, dtype=dtype)",
    "permutation": "tf.random.experimental.stateless_shuffle(tf.range(n, dtype=tf.int64), seed=key)",
    "exponential": lambda w, key, shape, dtype: w.fill("-tf.math.log1p(-u)", u=_uniform("uniform")(
        w, key=key, shape=shape, dtype=dtype)),
    # control flow
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": worded.scan(_zeros("zeros")),
    "optimization_barrier": lambda w, x, after: w(x),
    "constrain": lambda w, x, placement: w(x),
    # words
    "resize": _wide(worded.resize),
    "dropout": lambda w, x, key, rate: w.fill(
        "tf.nn.dropout(x, rate)" if key is None else "dropout(x, key, rate)", x=x, key=key, rate=rate),
    "linear": _linear,
    "relu": "tf.nn.relu(x)",
    "silu": _wide("tf.nn.silu(x)"),
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
    "elu": lambda w, x, alpha=1.0: _wide("tf.nn.elu(x)" if alpha == 1 else "elu(x, alpha)")(w, x=x, alpha=alpha),
    "selu": _wide("tf.nn.selu(x)"),
    "mish": _wide("x * tf.tanh(tf.nn.softplus(x))"),
    "log_sigmoid": _wide("tf.math.log_sigmoid(x)"),
    "relu6": "tf.nn.relu6(x)",
    "hard_sigmoid": "tf.nn.relu6(x + 3) / 6",
    "hard_silu": "x * tf.nn.relu6(x + 3) / 6",
    "embedding": _embedding,
    "stop_gradient": "tf.stop_gradient(x)",
    "conv_channels_last": _in_other_dtype(_conv_channels_last, _AS_FLOAT32),
    "index": _index,
    "index_update": "index_update(x, indices, values, mode=mode)",
    "arange": lambda w, start, stop, step, dtype: _arange(w, start, stop, step, dtype),
    "einsum": worded.einsum("tf.einsum"),
    "split_key": "tuple(tf.unstack(tf.random.split(key)))",
}  # fmt: skip


def _arange(w: Writing, start: Any, stop: Any, step: Any, dtype: np.dtype) -> ast.expr:
    known = dtype in (dtypes.int32, dtypes.int64, dtypes.float32, dtypes.float64)
    numbers = [start, stop] if rules.same(step, 1) else [start, stop, step]
    numbers = [stop] if len(numbers) == 2 and rules.same(start, 0) else numbers
    computed_dtype = dtype if known else dtypes.float32 if dtypes.is_floating(dtype) else dtypes.int64
    out = expressions.call("tf.range", *map(w, numbers), dtype=w(computed_dtype))
    return out if known else w.fill("tf.cast(x, dtype)", x=out, dtype=dtype)


TARGET = Target(
    name="tensorflow",
    title="TensorFlow",
    key=np.int32,
    imports={
        "Any": "from typing import Any",
        "Callable": "from collections.abc import Callable",
        "Sequence": "from collections.abc import Sequence",
        "math": "import math",
        "np": "import numpy as np",
        "tf": "import tensorflow as tf",
    },
    words=WORDS,
    dtype=_dtype,
    array="tf.Tensor",
    constant="tf.constant(x, dtype)",
    infinity="math.inf",
    nan="math.nan",
    load="tf.constant(x)",
    save="x.numpy()",
    runner="tensorflow",
    helpers=helpers,
)
