"""Rules by which creation, shapes and padding are written as source code of TensorFlow.

A function that a template calls by its bare name (`pad`, `slice_update`, `dynamic_slice`) is a helper, which is copied
into the generated file (`codegen/targets/helpers/tensorflow.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.codegen.output import expressions
from tensorgraft.codegen.targets import Rule, Var, Writing, rules
from tensorgraft.codegen.targets.tensorflow.common import unless_float32, zeros_or_ones
from tensorgraft.hub import dtypes


def _full(w: Writing, shape: Any, value: Any, dtype: np.dtype) -> ast.expr:
    if isinstance(value, Var):
        same_dtype = value.dtype == dtype
        return w.fill("tf.fill(shape, value)", shape=tuple(shape),
                      value=value if same_dtype else w.fill("tf.cast(v, dtype)", v=value, dtype=dtype))  # fmt: skip
    if rules.is_plain_zero_or_one(value):
        return zeros_or_ones("ones" if value else "zeros")(w, shape=shape, dtype=dtype)
    if isinstance(value, int) and dtypes.is_floating(dtype):
        value = float(value)
    if dtype == dtypes.float32 or (dtype == dtypes.int32 and isinstance(value, int)):
        return w.fill("tf.fill(shape, value)", shape=tuple(shape), value=value)
    return w.fill("tf.fill(shape, tf.constant(value, dtype))", shape=tuple(shape), value=value, dtype=dtype)


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
    template = "tf.eye(n, dtype=dtype)" if rules.equal_sizes(n, m) else "tf.eye(n, m, dtype=dtype)"
    return w.fill(template, n=n, m=m, dtype=unless_float32(dtype))


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
    """Write `tf.pad` for a number as `value` and a `config` that only adds at the ends; a call of the helper `pad`
    otherwise. `config`: (low, high, between two elements) of each axis; negative widths cut off."""
    if not x.ndim:
        return w(x)
    plain = all(low >= 0 and high >= 0 and interior == 0 for low, high, interior in config)
    if plain and not isinstance(value, Var) and x.dtype not in dtypes.FLOAT8:  # which TensorFlow has few kernels for
        return w.fill("tf.pad(x, widths, constant_values=value)", x=x, value=None if value == 0 else value,
                      widths=tuple((low, high) for low, high, _ in config))  # fmt: skip
    return w.fill("pad(x, value, config)", x=x, value=value, config=tuple(map(tuple, config)))


def _slice_update(w: Writing, x: Var, update: Var, start: Any, step: Any) -> ast.expr:
    """Write `x` with `update` in the region from `start` by `step`; `update` alone if that is all of `x`."""
    index = rules.region(x, update, start, step)
    if all(i == slice(None) for i in index) or not x.ndim:
        return w(update)
    if all(rules.equal_sizes(s, 1) for s in step):
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
    """Return the rule of `tril` or `triu`: `band_part` if the main diagonal is kept, a `where` otherwise."""

    def rule(w: Writing, x: Var, k: Any = 0) -> ast.expr:
        keeps_diagonal = not isinstance(k, Var) and (k >= 0 if name == "tril" else k <= 0)
        if keeps_diagonal:
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
    if rules.equal_sizes(w.call_outcome().shape[-1], 0):
        return w.fill("x[..., 0, :0]", x=x)
    return w.fill("tf.linalg.diag_part(x, k=offset)", x=x, offset=offset or None)


def _arange(w: Writing, start: Any, stop: Any, step: Any, dtype: np.dtype) -> ast.expr:
    known = dtype in (dtypes.int32, dtypes.int64, dtypes.float32, dtypes.float64)
    numbers = [start, stop] if rules.equal_sizes(step, 1) else [start, stop, step]
    numbers = [stop] if len(numbers) == 2 and rules.equal_sizes(start, 0) else numbers
    computed_dtype = dtype if known else dtypes.float32 if dtypes.is_floating(dtype) else dtypes.int64
    out = expressions.call("tf.range", *map(w, numbers), dtype=w(computed_dtype))
    return out if known else w.fill("tf.cast(x, dtype)", x=out, dtype=dtype)


RULES: dict[str, Rule] = {
    "full": _full,
    "zeros": zeros_or_ones("zeros"),
    "ones": zeros_or_ones("ones"),
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
    "arange": _arange,
}  # fmt: skip
