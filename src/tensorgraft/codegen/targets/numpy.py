"""NumPy: its functions and methods; dtypes that it lacks by ml_dtypes, a few special functions by SciPy."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.codegen.targets import Rule, Target, Var, Writing, numpylike, rules, shared_words
from tensorgraft.codegen.targets.helpers import numpy as helpers
from tensorgraft.hub import dtypes

_FOREIGN = (dtypes.bfloat16, *dtypes.FLOAT8)  # dtypes of ml_dtypes, which Python scalars do not adopt
_NARROW = (dtypes.float16, *_FOREIGN)  # in which NumPy adds up with a rounding each time
_NAMES = {dtypes.bool_: "bool", **{t: t.name for t in _FOREIGN}}


def _dtype(dtype: np.dtype) -> str:
    return _NAMES.get(dtype, f"np.{dtype.name}")


# ---- elementwise -----------------------------------------------------------------------------------------------------


def _of_one_dtype(rule: Rule) -> Callable[..., ast.expr]:
    """Convert Python scalars to an ml_dtypes dtype of the other operand, which they do not adopt by themselves."""

    def typed(w: Writing, **operands: Any) -> ast.expr:
        dtype = next((x.dtype for x in reversed(operands.values()) if isinstance(x, Var)), None)
        if dtype in _FOREIGN:
            operands = {
                k: w.fill("dtype(x)", dtype=dtype, x=x) if isinstance(x, int | float) else x
                for k, x in operands.items()
            }  # fmt: skip
        return w.fill(rule, **operands) if isinstance(rule, str) else rule(w, **operands)

    return typed


def _widened(template: str) -> Callable[..., ast.expr]:
    """Return a rule that computes in float32 an operation for which NumPy rounds to the narrow dtype after each
    step."""

    def rule(w: Writing, **arguments: Any) -> ast.expr:
        arguments = rules.without_defaults(arguments)
        first, x = next((k, v) for k, v in arguments.items() if isinstance(v, Var))
        if x.dtype not in _NARROW:
            return w.fill(template, **arguments)
        arguments[first] = w.fill("x.astype(np.float32)", x=x)
        return w.fill("y.astype(dtype)", y=w.fill(template, **arguments), dtype=x.dtype)

    return rule


def _all_widened(rule: Rule) -> Callable[..., ast.expr]:
    """Return all operands in float32 where the first one is narrower."""

    def wide(w: Writing, **arguments: Any) -> ast.expr:
        dtype = next((v.dtype for v in rules.arrays(arguments)), None)
        if dtype not in _NARROW:
            return rule(w, **arguments)  # type: ignore[operator]
        arguments = {k: rules.mapped(lambda v: _float32(w, v), v) for k, v in arguments.items()}
        y = rule(w, **arguments)  # type: ignore[operator]
        result_vars = w.call_outcome()
        if isinstance(result_vars, Var):
            return w.fill("y.astype(dtype)", y=y, dtype=dtype)
        return w.fill("tuple([y.astype(dtype) for y in ys])", ys=y, dtype=dtype)

    return wide


def _float32(w: Writing, v: Any) -> Any:
    return w.fill("x.astype(np.float32)", x=v) if isinstance(v, Var) and v.dtype in _NARROW else v


def _complex(w: Writing, real: Any, imag: Any) -> ast.expr:
    return w.fill("to_complex(real, imag)", real=real, imag=imag)


def _pow(w: Writing, x: Any, y: Any) -> ast.expr:
    dtype = rules.dtype_of(x, y)
    if dtype.kind == "i" and (not isinstance(y, int) or y < 0):
        return w.fill("integer_pow(x, y)", x=x, y=y)
    return w.fill("x ** y", x=x, y=y)


def _clip(w: Writing, x: Var, low: Any = None, high: Any = None) -> ast.expr:
    if x.dtype in _FOREIGN:
        bounded = w(x) if low is None else w.fill("np.maximum(x, low)", x=x, low=low)
        return bounded if high is None else w.fill("np.minimum(x, high)", x=bounded, high=high)
    return w.fill("np.clip(x, low, high)", x=x, low=low, high=high)


def _astype(w: Writing, x: Var, dtype: np.dtype) -> ast.expr:
    if dtypes.is_complex(x.dtype) and not dtypes.is_complex(dtype):
        if dtypes.is_bool(dtype):
            return w.fill("x != 0", x=x)
        real = dtype == dtypes.real_dtype(x.dtype)
        return w.fill("x.real" if real else "x.real.astype(dtype)", x=x, dtype=dtype)
    if dtypes.is_floating(x.dtype) and dtypes.is_integer(dtype) and (dtype.itemsize < 4 or dtype == dtypes.uint32):
        return w.fill("x.astype(np.int64).astype(dtype)", x=x, dtype=dtype)  # wraps
    if x.dtype in _FOREIGN and dtype != dtypes.float32:
        return w.fill("x.astype(np.float32).astype(dtype)", x=x, dtype=dtype)
    return w.fill("x.astype(dtype)", x=x, dtype=dtype)


def _expm1_like(name: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Var) -> ast.expr:
        return w.fill(f"complex_{name}(x)" if dtypes.is_complex(x.dtype) else f"np.{name}(x)", x=x)

    return rule


def _angle(w: Writing, x: Var) -> ast.expr:
    if dtypes.is_complex(x.dtype):
        return w.fill("np.angle(x)", x=x)
    return w.fill("np.where(np.isnan(x), x, np.pi * (x < 0)).astype(dtype)", x=x, dtype=x.dtype)


# ---- reductions ------------------------------------------------------------------------------------------------------


def _total(name: str) -> Callable[..., ast.expr]:
    """Sums and products are of the operand's dtype; of narrow floats in float32."""

    def rule(w: Writing, x: Var, axis: Any = None, keepdims: bool = False) -> ast.expr:
        narrow = x.dtype in _NARROW
        result_dtype = dtypes.float32 if narrow else x.dtype if x.dtype in rules.NARROW_INTEGERS else None
        out = w.fill(
            f"np.{name}(x, axis=axis, keepdims=keepdims, dtype=dtype)",
            x=x, axis=axis, keepdims=keepdims or None, dtype=result_dtype,
        )  # fmt: skip
        return w.fill("y.astype(dtype)", y=out, dtype=x.dtype) if narrow else out

    return rule


def _scan_along(name: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Var, axis: int) -> ast.expr:
        narrow = x.dtype in _NARROW
        result_dtype = dtypes.float32 if narrow else x.dtype if x.dtype in rules.NARROW_INTEGERS else None
        out = w.fill(f"np.{name}(x, axis=axis, dtype=dtype)", x=x, axis=axis, dtype=result_dtype)
        return w.fill("y.astype(dtype)", y=out, dtype=x.dtype) if narrow else out

    return rule


# ---- updates ---------------------------------------------------------------------------------------------------------


def _index(w: Writing, index: Any) -> ast.expr:
    """Return an index that is an argument: `np.s_[:, 1:]`."""
    parts = [rules.slice_expression(w, i) if isinstance(i, slice) else w(i) for i in index]
    value = parts[0] if len(parts) == 1 else ast.Tuple(parts, ast.Load())
    if not any(isinstance(i, slice) or i is Ellipsis for i in index):
        return value
    return ast.Subscript(w.fill("np.s_"), value, ast.Load())


def _slice_update(w: Writing, x: Var, update: Var, start: Any, step: Any) -> ast.expr:
    index = rules.region(x, update, start, step)
    if all(i == slice(None) for i in index):
        return w(update)
    return w.fill("updated(x, index, value)", x=x, index=_index(w, index), value=update)


def _scatter(w: Writing, x: Var, indices: Any, updates: Any, mode: str = "set") -> ast.expr:
    index = _index(w, list(indices) or [Ellipsis])
    if mode == "set":
        return w.fill("updated(x, index, value)", x=x, index=index, value=updates)
    ufunc = {"add": "np.add", "multiply": "np.multiply", "min": "np.minimum", "max": "np.maximum"}[mode]
    if x.dtype in _FOREIGN:
        x, updates = (w.fill("x.astype(np.float32)", x=v) for v in (x, updates))  # type: ignore[assignment]
        out = w.fill(f"combined({ufunc}, x, index, value)", x=x, index=index, value=updates)
        return w.fill("y.astype(dtype)", y=out, dtype=w.call_outcome().dtype)
    return w.fill(f"combined({ufunc}, x, index, value)", x=x, index=index, value=updates)


def _index_update(w: Writing, x: Var, indices: Any, values: Any, mode: str = "set") -> ast.expr:
    return _scatter(w, x, shared_words.index_of(indices), values, mode)


def _put_along_axis(w: Writing, x: Var, indices: Var, updates: Any, axis: int, mode: str = "set") -> ast.expr:
    ufunc = {"set": None, "add": "np.add", "multiply": "np.multiply", "min": "np.minimum", "max": "np.maximum"}[mode]
    return w.fill(f"put_along_axis(x, indices, updates, axis{f', {ufunc}' if ufunc else ''})", x=x, indices=indices,
                  updates=updates, axis=axis)  # fmt: skip


def _pad(w: Writing, x: Var, value: Any, config: Any) -> ast.expr:
    if not x.ndim:
        return w(x)
    if all(low >= 0 and high >= 0 and interior == 0 for low, high, interior in config):
        constant = None if not isinstance(value, Var) and value == 0 else value
        return w.fill("np.pad(x, widths, constant_values=value)", x=x,
                      widths=tuple((low, high) for low, high, _ in config), value=constant)  # fmt: skip
    return w.fill("pad(x, value, config)", x=x, value=value, config=tuple(map(tuple, config)))


def _full(w: Writing, shape: Any, value: Any, dtype: np.dtype) -> ast.expr:
    if isinstance(value, Var):
        return w.fill("np.full(shape, value, dtype=dtype)", shape=shape, value=value, dtype=dtype)
    return numpylike.rules_of("np")["full"](w, shape=shape, value=value, dtype=dtype)  # type: ignore[operator]


# ---- sorting ---------------------------------------------------------------------------------------------------------


def _sort(w: Writing, operands: Any, axis: int = -1, num_keys: int = 1) -> ast.expr:
    axis_or_last = None if axis == -1 else axis
    if len(operands) == 1:
        # stable: of -0.0 and 0.0 the first one comes first
        return ast.Tuple([w.fill("np.sort(x, axis=axis, stable=True)", x=operands[0], axis=axis_or_last)], ast.Load())
    return w.fill("sort(operands, axis=axis, num_keys=num_keys)", operands=tuple(operands), axis=axis_or_last,
                  num_keys=None if num_keys == 1 else num_keys)  # fmt: skip


def _argsort(w: Writing, x: Var, axis: int = -1, descending: bool = False) -> ast.expr:
    if descending:
        return w.fill("argsort_descending(x, axis=axis)", x=x, axis=None if axis == -1 else axis)
    return w.fill("np.argsort(x, axis=axis, stable=True)", x=x, axis=None if axis == -1 else axis)


def _searchsorted(w: Writing, boundaries: Var, values: Any, right: bool = False) -> ast.expr:
    side = ', side="right"' if right else ""
    name = "np.searchsorted" if boundaries.ndim == 1 else "searchsorted"
    return w.fill(f"{name}(boundaries, values{side})", boundaries=boundaries, values=values)


# ---- products --------------------------------------------------------------------------------------------------------


def _product(w: Writing, template: str, a: Var, b: Var, dtype: np.dtype | None, **fields: Any) -> ast.expr:
    out = a.dtype if dtype is None else dtype
    wide = dtypes.float32 if out in _NARROW else out
    left, right = (w(x) if x.dtype == wide else w.fill("x.astype(dtype)", x=x, dtype=wide) for x in (a, b))
    y = w.fill(template, a=left, b=right, **fields)
    return y if wide == out else w.fill("y.astype(dtype)", y=y, dtype=out)


def _matmul(w: Writing, a: Var, b: Var, dtype: np.dtype | None = None) -> ast.expr:
    return _product(w, "a @ b", a, b, dtype)


def _dot_general(w: Writing, a: Var, b: Var, contract: Any, batch: Any = ((), ()), dtype: Any = None) -> ast.expr:
    sign, letters = rules.contraction(a, b, contract, batch)
    if sign is not None:
        return _product(w, sign, a, b, dtype)
    if not any(batch) and a.dtype != np.bool_:
        axes = tuple(tuple(side) for side in contract)
        return _product(w, "np.tensordot(a, b, axes=axes)", a, b, dtype, axes=axes)
    return _product(w, "np.einsum(letters, a, b)", a, b, dtype, letters=letters)


# ---- windows ---------------------------------------------------------------------------------------------------------


# ---- control flow ----------------------------------------------------------------------------------------------------


_BASE = numpylike.rules_of("np")
RULES: dict[str, Rule] = {
    **_BASE,
    **{name: _of_one_dtype(_BASE[name]) for name in (*rules.INFIX, *numpylike.BINARY)},
    # elementwise
    **{name: _widened(f"np.{name}(x)") for name in ("cbrt", "exp2", "log2", "log10", "square")},
    "round": "np.rint(x)",
    "log1p": _expm1_like("log1p"),
    "expm1": "np.expm1(x)",
    "rsqrt": _widened("1 / np.sqrt(x)"),
    "reciprocal": _widened("1 / x"),
    "sigmoid": _widened("sigmoid(x)"),
    "softplus": _widened("np.logaddexp(x, 0)"),
    "erf": "erf(x)",
    "erfc": "erfc(x)",
    "erf_inv": "erf_inv(x)",
    "lgamma": "lgamma(x)",
    "digamma": "digamma(x)",
    "bessel_i0e": _widened("special.i0e(x)"),
    "bessel_i1e": _widened("special.i1e(x)"),
    **{name: _of_one_dtype(_widened(f"special.{scipy}(x, y)")) for name, scipy in
       {"igamma": "gammainc", "igammac": "gammaincc", "zeta": "zeta"}.items()},
    "pow": _of_one_dtype(_pow),
    "clip": _of_one_dtype(_clip),
    "angle": _angle,
    "complex": _complex,
    "astype": _astype,
    "bitcast": "x.view(dtype)",
    # reductions
    "sum": _total("sum"),
    "prod": _total("prod"),
    "cumsum": _scan_along("cumsum"),
    "cumprod": _scan_along("cumprod"),
    "cummax": "np.maximum.accumulate(x, axis=axis)",
    "cummin": "np.minimum.accumulate(x, axis=axis)",
    "mean": _widened("np.mean(x, axis=axis, keepdims=keepdims)"),
    "var": _widened("np.var(x, axis=axis, keepdims=keepdims, ddof=correction)"),
    "logsumexp": _widened("logsumexp(x, axis=axis, keepdims=keepdims)"),
    "softmax": _widened("softmax(x, axis=axis)"),
    "log_softmax": _widened("log_softmax(x, axis=axis)"),
    "cumlogsumexp": _widened("np.logaddexp.accumulate(x, axis=axis)"),
    # creation and shapes
    "full": _full,
    "pad": _of_one_dtype(_pad),
    "slice_update": _slice_update,
    "dynamic_slice": shared_words.dynamic_slice,
    "dynamic_update_slice": shared_words.dynamic_update_slice,
    "copy": "x.copy()",
    # indexing and sorting
    "scatter": _scatter,
    "put_along_axis": _put_along_axis,
    "one_hot": "(indices[..., None] == np.arange(n)).astype(dtype)",
    "sort": _sort,
    "argsort": _argsort,
    "sort_with_indices": shared_words.sort_with_indices,
    "searchsorted": _searchsorted,
    # products and factorisations
    "matmul": _matmul,
    "dot_general": _dot_general,
    "cholesky": "np.linalg.cholesky(x)",
    "qr": lambda w, x, full=False: w.fill('np.linalg.qr(x, mode="complete")' if full else "np.linalg.qr(x)", x=x),
    "svd": lambda w, x, full=False: w.fill("np.linalg.svd(x, full_matrices=full)", x=x, full=full),
    "eigh": lambda w, x, lower=True: w.fill("np.linalg.eigh(x)" if lower else 'np.linalg.eigh(x, UPLO="U")', x=x),
    "eig": lambda w, x: w.fill("np.linalg.eig(x)" if dtypes.is_complex(x.dtype) else "np.linalg.eig(x.astype(dtype))",
                               x=x, dtype=dtypes.complex_dtype(x.dtype)),
    "lu": "lu(x)",
    "triangular_solve": shared_words.triangular_solve,
    "householder_product": "householder_product(a, tau)",
    # windows
    "convolution": shared_words.convolution,
    "reduce_window": shared_words.reduce_window({"sum": "np.sum", "max": "np.max", "min": "np.min"}),
    # random numbers: a key is a numpy.random.Generator
    "fold_in": "key",
    "random_bits": "tuple(key.integers(2**32, size=(2, *shape), dtype=np.uint32))",
    "random_uint64": "key.integers(2**64, size=shape, dtype=np.uint64)",
    "uniform": lambda w, key, shape, dtype: _random(w, "key.random(shape, dtype=dtype)", key, shape, dtype),
    "normal": lambda w, key, shape, dtype: _random(w, "key.standard_normal(shape, dtype=dtype)", key, shape, dtype),
    "exponential": lambda w, key, shape, dtype: _random(
        w, "key.standard_exponential(shape, dtype=dtype)", key, shape, dtype),
    "randint": "key.integers(low, high, size=shape, dtype=dtype)",
    "permutation": "key.permutation(n)",
    # control flow
    "cond": shared_words.cond,
    "while_loop": shared_words.while_loop,
    "scan": shared_words.scan(),
    "optimization_barrier": lambda w, x, after: w(x),
    # words
    "relu": _of_one_dtype(lambda w, x: w.fill("np.maximum(x, zero)", x=x, zero=_zero(w, x))),
    **{f"jax_{name}": f"jax_{name}(key, shape)" for name in ("bits", "uniform", "normal", "split")},
    "jax_fold_in": "jax_fold_in(key, data)",
    "stop_gradient": "x",
    "resize": _all_widened(shared_words.resize),
    "linear": _all_widened(numpylike.linear),
    "dropout": "dropout(x, key, rate)",
    "leaky_relu": _widened("np.where(x > 0, x, slope * x)"),
    "relu6": _widened("np.clip(x, 0, 6)"),
    "hard_sigmoid": _widened("np.clip(x + 3, 0, 6) / 6"),
    "hard_silu": _widened("x * np.clip(x + 3, 0, 6) / 6"),
    "index": shared_words.index,
    "index_update": _index_update,
    "arange": shared_words.arange("np.arange"),
    "einsum": _all_widened(shared_words.einsum("np.einsum")),
    "split_key": lambda w, key: w((key, key)),
}  # fmt: skip


def _zero(w: Writing, x: Var) -> ast.expr:
    return w.fill("dtype(0)", dtype=x.dtype) if x.dtype in _FOREIGN else w(0)


def _random(w: Writing, template: str, key: Any, shape: Any, dtype: np.dtype) -> ast.expr:
    wide = dtypes.accumulator(dtype)
    out = w.fill(template, key=key, shape=shape, dtype=None if wide == dtypes.float64 else wide)
    return out if wide == dtype else w.fill("y.astype(dtype)", y=out, dtype=dtype)


TARGET = Target(
    name="numpy",
    title="NumPy",
    runner="numpy",
    trains=False,
    imports={
        "Any": "from typing import Any",
        "Callable": "from collections.abc import Callable",
        "Sequence": "from collections.abc import Sequence",
        "math": "import math",
        "np": "import numpy as np",
        "special": "from scipy import special",
        **{t.name: f"from ml_dtypes import {t.name}" for t in _FOREIGN},
    },
    rules=RULES,
    dtype=_dtype,
    array="np.ndarray",
    constant="np.array(x, dtype)",
    infinity="np.inf",
    nan="np.nan",
    helpers=helpers,
)
