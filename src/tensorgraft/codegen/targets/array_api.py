"""The Array API standard (2024.12): functions of the namespace `xp` of a function's first array.

The standard has no special functions, no random numbers and no updates of places that occur twice; what needs these is
an error that names it.
"""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from tensorgraft.codegen.recorders.calls import NotExpressibleError
from tensorgraft.codegen.targets import Rule, Target, Var, Writing, rules, shared_words
from tensorgraft.codegen.targets.helpers import array_api as helpers
from tensorgraft.hub import dtypes

_KNOWN = (dtypes.bool_, *dtypes.INTEGER, dtypes.float32, dtypes.float64, *dtypes.COMPLEX)


def _dtype(dtype: np.dtype) -> str:
    if dtype not in _KNOWN:
        raise NotExpressibleError(f"the Array API standard has no {dtype}")
    return "xp.bool" if dtype == np.bool_ else f"xp.{dtype.name}"


def _pow(w: Writing, x: Any, y: Any) -> ast.expr:
    if rules.dtype_of(x, y).kind == "i" and (not isinstance(y, int) or y < 0):
        return w.fill("integer_pow(x, y)", x=x, y=y)
    return w.fill("x ** y", x=x, y=y)


def _astype(w: Writing, x: Var, dtype: np.dtype) -> ast.expr:
    if dtypes.is_complex(x.dtype) and not dtypes.is_complex(dtype):
        if dtypes.is_bool(dtype):
            return w.fill("x != 0", x=x)
        return w.fill("xp.astype(xp.real(x), dtype)", x=x, dtype=dtype)
    if dtypes.is_floating(x.dtype) and dtypes.is_integer(dtype) and (dtype.itemsize < 4 or dtype == dtypes.uint32):
        return w.fill("xp.astype(xp.astype(x, xp.int64), dtype)", x=x, dtype=dtype)  # wraps
    return w.fill("xp.astype(x, dtype)", x=x, dtype=dtype)


def _reduced(name: str) -> Rule:
    def rule(w: Writing, x: Var, axis: Any = None, keepdims: bool = False) -> ast.expr:
        result_dtype = x.dtype if name in ("sum", "prod") and x.dtype in rules.NARROW_INTEGERS else None
        return w.fill(f"xp.{name}(x, axis=axis, keepdims=keepdims, dtype=dtype)", x=x, axis=axis,
                      keepdims=keepdims or None, dtype=result_dtype)  # fmt: skip

    return rule


def _extreme(name: str, identity: Any) -> Rule:
    def rule(w: Writing, x: Var, axis: Any = None, keepdims: bool = False) -> ast.expr:
        if rules.is_empty(x) and axis != ():
            return w.fill("xp.full(shape, value, dtype=dtype)", shape=w.call_outcome().shape, value=identity(x.dtype),
                          dtype=x.dtype)  # fmt: skip
        if x.dtype == np.bool_:
            reduction = {"max": "any", "min": "all"}[name]
            return w.fill(f"xp.{reduction}(x, axis=axis, keepdims=keepdims)", x=x, axis=axis, keepdims=keepdims or None)
        return w.fill(f"xp.{name}(x, axis=axis, keepdims=keepdims)", x=x, axis=axis, keepdims=keepdims or None)

    return rule


def _position(name: str) -> Rule:
    def rule(w: Writing, x: Var, axis: int, keepdims: bool = False) -> ast.expr:
        numbers = w.fill("xp.astype(x, xp.uint8)", x=x) if x.dtype == np.bool_ else x
        return w.fill(f"xp.{name}(x, axis=axis, keepdims=keepdims)", x=numbers, axis=axis, keepdims=keepdims or None)

    return rule


def _cumulative(name: str) -> Rule:
    def rule(w: Writing, x: Var, axis: int) -> ast.expr:
        result_dtype = x.dtype if x.dtype in rules.NARROW_INTEGERS else None
        return w.fill(f"xp.cumulative_{name}(x, axis=axis, dtype=dtype)", x=x, axis=axis, dtype=result_dtype)

    return rule


def _full(w: Writing, shape: Any, value: Any, dtype: np.dtype) -> ast.expr:
    if isinstance(value, Var):
        cast = value if value.dtype == dtype else _astype(w, value, dtype)
        return w.fill("xp.broadcast_to(value, shape)", shape=tuple(shape), value=cast)
    if rules.is_plain_zero_or_one(value):
        name = "ones" if value else "zeros"
        return w.fill(f"xp.{name}(shape, dtype=dtype)", shape=tuple(shape), dtype=dtype)
    return w.fill("xp.full(shape, value, dtype=dtype)", shape=tuple(shape), value=value, dtype=dtype)


def _iota(w: Writing, n: Any, dtype: np.dtype) -> ast.expr:
    return w.fill("xp.arange(n, dtype=dtype)", n=n, dtype=dtype)


def _eye(w: Writing, n: Any, m: Any, dtype: np.dtype, k: int = 0) -> ast.expr:
    template = "xp.eye(n, k=k, dtype=dtype)" if rules.equal_sizes(n, m) else "xp.eye(n, m, k=k, dtype=dtype)"
    return w.fill(template, n=n, m=m, k=k or None, dtype=dtype)


def _swapaxes(w: Writing, x: Var, a: int, b: int) -> ast.expr:
    axes = list(range(x.ndim))
    axes[a], axes[b] = axes[b], axes[a]
    return _permute_dims(w, x, axes)


def _permute_dims(w: Writing, x: Any, axes: Any) -> ast.expr:
    return w.fill("x.T" if tuple(axes) == (1, 0) else "xp.permute_dims(x, axes)", x=x, axes=tuple(axes))


def _take(w: Writing, x: Var, indices: Any, axis: int) -> ast.expr:
    if isinstance(indices, Var) and indices.ndim == 1:
        return w.fill("xp.take(x, indices, axis=axis)", x=x, indices=indices, axis=axis % x.ndim)
    return w.fill("take(x, indices, axis)", x=x, indices=indices, axis=axis % x.ndim)


def _take_along_axis(w: Writing, x: Var, indices: Var, axis: int) -> ast.expr:
    if not x.ndim:
        return w.fill("xp.broadcast_to(x, indices.shape)", x=x, indices=indices)
    part = rules.indexed(w, x, rules.part_as_long(x, indices, axis))
    return w.fill("xp.take_along_axis(x, indices, axis=axis)", x=part, indices=indices, axis=axis)


def _tri(name: str) -> Rule:
    def rule(w: Writing, x: Var, k: Any = 0) -> ast.expr:
        if not isinstance(k, Var):
            return w.fill(f"xp.{name}(x, k=k)", x=x, k=k or None)
        mask = "xp.arange(n)[:, None] + k {} xp.arange(m)".format(">=" if name == "tril" else "<=")
        return w.fill(f"xp.where({mask}, x, xp.zeros_like(x))", x=x, n=x.shape[-2], m=x.shape[-1], k=k)

    return rule


def _sort(w: Writing, operands: Any, axis: int = -1, num_keys: int = 1) -> ast.expr:
    if len(operands) > 1:
        raise NotExpressibleError("the Array API standard cannot sort several arrays together")
    return ast.Tuple([w.fill("xp.sort(x, axis=axis)", x=operands[0], axis=None if axis == -1 else axis)], ast.Load())


def _argsort(w: Writing, x: Var, axis: int = -1, descending: bool = False) -> ast.expr:
    return w.fill("argsort(x, axis=axis, descending=descending)", x=x, axis=None if axis == -1 else axis,
                  descending=descending or None)  # fmt: skip


def _product(w: Writing, template: str, a: Var, b: Var, dtype: np.dtype | None, **fields: Any) -> ast.expr:
    out = a.dtype if dtype is None else dtype
    wide = dtypes.int32 if out == np.bool_ else out  # the standard multiplies numbers
    left, right = (w(x) if x.dtype == wide else w.fill("xp.astype(x, dtype)", x=x, dtype=wide) for x in (a, b))
    y = w.fill(template, a=left, b=right, **fields)
    return y if wide == out else w.fill("y != 0", y=y)


def _dot_general(w: Writing, a: Var, b: Var, contract: Any, batch: Any = ((), ()), dtype: Any = None) -> ast.expr:
    sign, _ = rules.contraction(a, b, contract, batch)
    if sign is not None:
        return _product(w, sign, a, b, dtype)
    axes = tuple(tuple(side) for side in contract)
    if not any(batch):
        return _product(w, "xp.tensordot(a, b, axes=axes)", a, b, dtype, axes=axes)
    return _product(w, "contracted(a, b, contract, batch)", a, b, dtype, contract=axes,
                    batch=tuple(tuple(side) for side in batch))  # fmt: skip


def _slice_update(w: Writing, x: Var, update: Var, start: Any, step: Any) -> ast.expr:
    index = rules.region(x, update, start, step)
    if all(i == slice(None) for i in index):
        return w(update)
    parts = [w(i) if not isinstance(i, slice) else w.fill("slice(a, b, c)", a=i.start, b=i.stop, c=i.step)
             for i in index]  # fmt: skip
    return w.fill("updated(x, index, update)", x=x, index=ast.Tuple(parts, ast.Load()), update=update)


def _pad(w: Writing, x: Var, value: Any, config: Any) -> ast.expr:
    return w.fill("pad(x, value, config)", x=x, value=value, config=tuple(map(tuple, config)))


_SAME = ("abs", "sign", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh",
         "exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "square", "ceil", "floor", "trunc", "round", "real",
         "imag", "conj", "isnan", "isinf", "isfinite", "signbit", "zeros_like", "ones_like")  # fmt: skip
_PAIRS = {name: name for name in ("nextafter", "maximum", "minimum", "copysign", "hypot", "logaddexp")}
_TRANSFORMS = ("fft", "ifft", "rfft")

RULES: dict[str, Rule] = {
    **rules.infix(),
    "logical_and": "xp.logical_and(x, y)",
    "logical_or": "xp.logical_or(x, y)",
    "logical_xor": "xp.logical_xor(x, y)",
    **{name: f"xp.{name}(x)" for name in _SAME},
    **{name: f"xp.{api}(x, y)" for name, api in {**_PAIRS, "atan2": "atan2"}.items()},
    "rsqrt": "1 / xp.sqrt(x)",
    "reciprocal": "1 / x",
    "exp2": lambda w, x: w.fill(
        "xp.exp(x * 0.6931471805599453)" if dtypes.is_complex(x.dtype) else "xp.pow(2.0, x)", x=x),
    "negative": "-x",
    "bitwise_invert": "~x",
    "logical_not": "xp.logical_not(x)",
    "sigmoid": "sigmoid(x)",
    "erf": "erf(x)",
    "fmod": "fmod(x, y)",
    "pow": _pow,
    "bitwise_left_shift": "x << y",
    "bitwise_right_shift": "x >> y",
    "integer_floor_divide": "x // y",
    "where": "xp.where(condition, x, y)",
    "clip": "xp.clip(x, low, high)",
    "complex": "real + 1j * imag",
    "astype": _astype,
    # reductions
    **{name: _reduced(name) for name in ("sum", "prod", "mean", "any", "all")},
    "max": _extreme("max", dtypes.lowest),
    "min": _extreme("min", dtypes.highest),
    "argmax": _position("argmax"),
    "argmin": _position("argmin"),
    "cumsum": _cumulative("sum"),
    "cumprod": _cumulative("prod"),
    "cummax": lambda w, x, axis: w.fill("running(xp.maximum, x, axis)" if x.dtype != np.bool_ else
                                        "running(xp.logical_or, x, axis)", x=x, axis=axis),
    "cummin": lambda w, x, axis: w.fill("running(xp.minimum, x, axis)" if x.dtype != np.bool_ else
                                        "running(xp.logical_and, x, axis)", x=x, axis=axis),
    "softmax": "softmax(x, axis=axis)",
    "log_softmax": "log_softmax(x, axis=axis)",
    # creation and shapes
    "full": _full,
    "zeros": "xp.zeros(shape, dtype=dtype)",
    "ones": "xp.ones(shape, dtype=dtype)",
    "iota": _iota,
    "eye": _eye,
    "reshape": "xp.reshape(x, shape)",
    "permute_dims": _permute_dims,
    "swapaxes": _swapaxes,
    "matrix_transpose": rules.matrix_transpose,
    "broadcast_to": "xp.broadcast_to(x, shape)",
    "concat": lambda w, arrays, axis: w.fill("xp.concat(arrays, axis=axis)", arrays=list(arrays), axis=axis),
    "stack": "xp.stack(arrays, axis=axis)",
    "expand_dims": rules.expand_dims("xp.expand_dims(x, axis=axis)"),
    "squeeze": "xp.squeeze(x, axis=axes)",
    "moveaxis": "xp.moveaxis(x, source, target)",
    "flip": lambda w, x, axes: w.fill("xp.flip(x, axis=axes)", x=x, axes=tuple(axes)) if axes else w(x),
    "roll": "xp.roll(x, shift, axis=axis)",
    "repeat": "xp.repeat(x, times, axis=axis)",
    "tile": lambda w, x, repeats: w.fill("xp.tile(x, repeats)", x=x, repeats=tuple(repeats)),
    "unstack": "xp.unstack(x, axis=axis)",
    "tril": _tri("tril"),
    "triu": _tri("triu"),
    "slice": rules.slice_,
    "take_slice": rules.take_slice,
    "getitem": rules.getitem,
    "slice_update": _slice_update,
    "pad": _pad,
    "copy": "xp.asarray(x, copy=True)",
    "diagonal": "xp.linalg.diagonal(x, offset=offset)",
    # indexing and sorting
    "gather": rules.gather,
    "index": shared_words.index,
    "embedding": lambda w, weight, indices, padding=None: _take(w, weight, indices, 0),
    "nonzero": "xp.nonzero(x)",
    "take": _take,
    "take_along_axis": _take_along_axis,
    "sort": _sort,
    "argsort": _argsort,
    "sort_with_indices": shared_words.sort_with_indices,
    "searchsorted": lambda w, boundaries, values, right=False: w.fill(
        "xp.searchsorted(b, v, side=side)" if boundaries.ndim == 1 else "searchsorted(b, v, side=side)", b=boundaries,
        v=values, side="right" if right else None),
    # products and factorisations
    "matmul": lambda w, a, b, dtype=None: _product(w, "a @ b", a, b, dtype),
    "dot_general": _dot_general,
    "linear": lambda w, x, weight, bias=None: w.fill("x @ weight.T" if bias is None else "x @ weight.T + bias", x=x,
                                                     weight=weight, bias=bias),
    "cholesky": "xp.linalg.cholesky(x)",
    "qr": lambda w, x, full=False: w.fill('xp.linalg.qr(x, mode="complete")' if full else "xp.linalg.qr(x)", x=x),
    "svd": lambda w, x, full=False: w.fill("xp.linalg.svd(x, full_matrices=full)", x=x, full=full),
    "svdvals": "xp.linalg.svdvals(x)",
    "eigh": lambda w, x, lower=True: w.fill("xp.linalg.eigh(x)" if lower else "xp.linalg.eigh(xp.conj(x.mT))", x=x),
    "solve": "xp.linalg.solve(a, b)",
    "inv": "xp.linalg.inv(x)",
    # windows and transforms
    "convolution": shared_words.convolution,
    "reduce_window": shared_words.reduce_window({"sum": "xp.add", "max": "xp.maximum", "min": "xp.minimum"}),
    **{name: f"xp.fft.{name}(x, axis=axis)" for name in _TRANSFORMS},
    "irfft": "xp.fft.irfft(x, n=n, axis=axis)",
    # control flow
    "cond": shared_words.cond,
    "while_loop": shared_words.while_loop,
    "scan": shared_words.scan(),
    "optimization_barrier": lambda w, x, after: w(x),
    "constrain": lambda w, x, placement: w(x),
    # words
    "stop_gradient": "x",
    "arange": shared_words.arange("xp.arange"),
}  # fmt: skip

TARGET = Target(
    name="array_api",
    title="the Array API standard",
    runner="numpy",
    trains=False,
    imports={
        "Any": "from typing import Any",
        "Callable": "from collections.abc import Callable",
        "Sequence": "from collections.abc import Sequence",
        "math": "import math",
        "xp": "import numpy as xp",
    },
    rules=RULES,
    dtype=_dtype,
    array="Any",
    constant="xp.asarray(x, dtype=dtype)",
    infinity="math.inf",
    nan="math.nan",
    prelude="xp = x.__array_namespace__()",
    helpers=helpers,
)
