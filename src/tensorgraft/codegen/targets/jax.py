"""JAX: functions of `jax.numpy`, `jax.nn` and `jax.lax`."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from tensorgraft.codegen.targets import Block, Rule, Target, Var, Writing, numpylike, rules, shared_words
from tensorgraft.codegen.targets.helpers import jax as helpers
from tensorgraft.hub import dtypes

# Without 64-bit types, which JAX has only where they are switched on, `int` is int32 and says nothing.
_NAMES = {dtypes.bool_: "bool", dtypes.int64: "int"}


def _dtype(dtype: np.dtype) -> str:
    return _NAMES.get(dtype, f"jnp.{dtype.name}")


# ---- elementwise -----------------------------------------------------------------------------------------------------


def _broadcast(name: str) -> Rule:
    """Return the rule for a function of `jax.lax` whose operands must have equal shapes."""

    def rule(w: Writing, **operands: Any) -> ast.expr:
        x, y = operands.values()
        if isinstance(x, Var) and isinstance(y, Var) and x.shape == y.shape:
            return w.fill(f"jax.lax.{name}(x, y)", x=x, y=y)
        return w.fill(f"jax.lax.{name}(*jnp.broadcast_arrays(x, y))", x=_array(w, x, y), y=_array(w, y, x))

    return rule


def _array(w: Writing, x: Any, like: Any) -> ast.expr:
    return w(x) if isinstance(x, Var) else w.fill("jnp.array(x, dtype)", x=x, dtype=like.dtype)


def _pow(w: Writing, x: Any, y: Any) -> ast.expr:
    dtype = rules.dtype_of(x, y)
    may_be_negative = not isinstance(y, int) or y < 0
    if dtype.kind == "i" and may_be_negative:
        return w.fill("integer_pow(x, y)", x=x, y=y)
    return w.fill("x ** y", x=x, y=y)


def _astype(w: Writing, x: Var, dtype: np.dtype) -> ast.expr:
    if dtypes.is_complex(x.dtype) and not dtypes.is_complex(dtype):
        if dtypes.is_bool(dtype):
            return w.fill("x != 0", x=x)
        real = dtype == dtypes.real_dtype(x.dtype)
        return w.fill("x.real" if real else "x.real.astype(dtype)", x=x, dtype=dtype)
    if dtypes.is_floating(x.dtype) and dtypes.is_integer(dtype) and dtype.itemsize < 4:
        return w.fill("x.astype(wide).astype(dtype)", x=x, wide=dtypes.int32, dtype=dtype)  # wraps, as in C
    if dtypes.is_floating(x.dtype) and dtype == dtypes.uint32:
        return w.fill("x.astype(wide).astype(dtype)", x=x, wide=dtypes.int64, dtype=dtype)
    return w.fill("x.astype(dtype)", x=x, dtype=dtype)


def _angle(w: Writing, x: Var) -> ast.expr:
    if dtypes.is_complex(x.dtype):
        return w.fill("jnp.angle(x)", x=x)
    return w.fill("jnp.where(jnp.isnan(x), x, jnp.where(x < 0, jnp.array(jnp.pi, dtype), 0))", x=x, dtype=x.dtype)


# ---- reductions ------------------------------------------------------------------------------------------------------


def _total(name: str) -> Rule:
    """Sums and products of narrow integers are of `int`, unless they are told."""

    def rule(w: Writing, x: Var, axis: Any = None, keepdims: bool = False) -> ast.expr:
        narrow = x.dtype in rules.NARROW_INTEGERS
        return w.fill(
            f"jnp.{name}(x, axis=axis, keepdims=keepdims, dtype=dtype)",
            x=x, axis=axis, keepdims=keepdims or None, dtype=x.dtype if narrow else None,
        )  # fmt: skip

    return rule


def _scan_along(name: str) -> Rule:
    def rule(w: Writing, x: Var, axis: int) -> ast.expr:
        narrow = x.dtype in rules.NARROW_INTEGERS
        template = f"jnp.{name}(x, axis=axis, dtype=dtype)"
        return w.fill(template, x=x, axis=axis, dtype=x.dtype if narrow else None)

    return rule


def _running(name: str) -> Rule:
    def rule(w: Writing, x: Var, axis: int) -> ast.expr:
        template = f"jax.lax.{name}(x, axis=axis)"
        if x.dtype == np.bool_:
            template = f"jax.lax.{name}(x.astype(jnp.uint8), axis=axis).astype(bool)"
        return w.fill(template, x=x, axis=axis % x.ndim)

    return rule


# ---- creation and shapes ---------------------------------------------------------------------------------------------


def _pad(w: Writing, x: Var, value: Any, config: Any) -> ast.expr:
    if not x.ndim:
        return w(x)
    if all(low >= 0 and high >= 0 and interior == 0 for low, high, interior in config):
        widths = tuple((low, high) for low, high, _ in config)
        constant = None if not isinstance(value, Var) and value == 0 else value
        return w.fill("jnp.pad(x, widths, constant_values=value)", x=x, widths=widths, value=constant)
    return w.fill("jax.lax.pad(x, jnp.array(value, x.dtype), config)", x=x, value=value,
                  config=tuple(map(tuple, config)))  # fmt: skip


def _updated(w: Writing, x: Var, index: list[Any], update: Any, mode: str = "set") -> ast.expr:
    target = rules.indexed(w, w.fill("x.at", x=x), index or [Ellipsis])
    return w.fill(f"place.{mode}(update)", place=target, update=update)


def _slice_update(w: Writing, x: Var, update: Var, start: Any, step: Any) -> ast.expr:
    index = rules.region(x, update, start, step)
    if all(i == slice(None) for i in index):
        return w(update)
    return _updated(w, x, index, update)


def _start_indices(w: Writing, start: Any) -> ast.expr:
    """Indices of one dtype, which `jax.lax` asks for."""
    kinds = {i.dtype for i in start if isinstance(i, Var)}
    if len(kinds) < 2:
        return w(tuple(start))
    return w(
        tuple(w.fill("i.astype(int)", i=i) if isinstance(i, Var) and i.dtype != dtypes.int64 else i for i in start)
    )


def _dynamic_slice(w: Writing, x: Var, start: Any, sizes: Any) -> ast.expr:
    if not x.ndim:
        return w(x)
    return w.fill("jax.lax.dynamic_slice(x, start, sizes, allow_negative_indices=False)",
                  x=x, start=_start_indices(w, start), sizes=tuple(sizes))  # fmt: skip


def _dynamic_update_slice(w: Writing, x: Var, update: Var, start: Any) -> ast.expr:
    if not x.ndim:
        return w(update)
    return w.fill("jax.lax.dynamic_update_slice(x, update, start, allow_negative_indices=False)",
                  x=x, update=update, start=_start_indices(w, start))  # fmt: skip


# ---- indexing and sorting --------------------------------------------------------------------------------------------


def _scatter(w: Writing, x: Var, indices: Any, updates: Any, mode: str = "set") -> ast.expr:
    if x.dtype == np.bool_ and mode != "set":
        mode = {"add": "max", "multiply": "min"}.get(mode, mode)
        wide = _updated(w, w.fill("x.astype(jnp.uint8)", x=x), list(indices), w.fill("y.astype(jnp.uint8)", y=updates),  # type: ignore[arg-type]
                        mode)  # fmt: skip
        return w.fill("x.astype(bool)", x=wide)
    return _updated(w, x, list(indices), updates, mode)


def _put_along_axis(w: Writing, x: Var, indices: Var, updates: Any, axis: int, mode: str = "set") -> ast.expr:
    return w.fill("put_along_axis(x, indices, updates, axis, mode)", x=x, indices=indices, updates=updates, axis=axis,
                  mode=mode)  # fmt: skip


def _sort(w: Writing, operands: Any, axis: int = -1, num_keys: int = 1) -> ast.expr:
    if len(operands) == 1:
        return ast.Tuple(
            [w.fill("jnp.sort(x, axis=axis)", x=operands[0], axis=None if axis == -1 else axis)], ast.Load()
        )
    return w.fill("jax.lax.sort(operands, dimension=axis, num_keys=num_keys)", operands=tuple(operands), axis=axis,
                  num_keys=None if num_keys == 1 else num_keys)  # fmt: skip


def _argsort(w: Writing, x: Var, axis: int = -1, descending: bool = False) -> ast.expr:
    return w.fill("jnp.argsort(x, axis=axis, descending=descending)", x=x, axis=None if axis == -1 else axis,
                  descending=descending or None)  # fmt: skip


def _searchsorted(w: Writing, boundaries: Var, values: Any, right: bool = False) -> ast.expr:
    side = '"right"' if right else '"left"'
    if boundaries.ndim > 1:
        return w.fill(f"searchsorted(boundaries, values, {side})", boundaries=boundaries, values=values)
    option = f", side={side}" if right else ""
    return w.fill(f"jnp.searchsorted(boundaries, values{option}).astype(int)", boundaries=boundaries, values=values)


# ---- products --------------------------------------------------------------------------------------------------------


def _product(w: Writing, a: Var, b: Var, dtype: np.dtype | None, template: str) -> ast.expr:
    wide = None if dtype is None or dtype == a.dtype else dtype
    if wide is not None and template == "a @ b":
        return w.fill("jnp.matmul(a, b, preferred_element_type=dtype)", a=a, b=b, dtype=wide)
    return w.fill(template, a=a, b=b)


def _matmul(w: Writing, a: Var, b: Var, dtype: np.dtype | None = None) -> ast.expr:
    return _product(w, a, b, dtype, "a @ b")


def _dot_general(w: Writing, a: Var, b: Var, contract: Any, batch: Any = ((), ()), dtype: Any = None) -> ast.expr:
    sign, letters = rules.contraction(a, b, contract, batch)
    wide = None if dtype is None or dtype == a.dtype else dtype
    if sign is not None and (wide is None or sign == "a @ b"):
        return _product(w, a, b, dtype, sign)
    return w.fill("jnp.einsum(letters, a, b, preferred_element_type=dtype)", letters=letters, a=a, b=b, dtype=wide)


def _triangular_solve(
    w: Writing, a: Var, b: Var, lower: bool, left: bool = True, transpose: bool = False, adjoint: bool = False,
    unit_diagonal: bool = False,
) -> ast.expr:  # fmt: skip
    return w.fill(
        "jax.lax.linalg.triangular_solve(a, b, left_side=left, lower=lower, transpose_a=transpose, conjugate_a=adjoint,"
        " unit_diagonal=unit)",
        a=a, b=b, left=left, lower=lower, transpose=transpose or adjoint or None, adjoint=adjoint or None,
        unit=unit_diagonal or None,
    )  # fmt: skip


# ---- convolution and windows -----------------------------------------------------------------------------------------


def _convolution(
    to: Writing, x: Var, w: Var, strides: Any, padding: Any, lhs_dilation: Any, rhs_dilation: Any, **groups: int
) -> ast.expr:
    template = (
        "jax.lax.conv_general_dilated(x, weight, strides, padding, lhs_dilation=lhs, rhs_dilation=rhs,"
        " feature_group_count=groups, batch_group_count=batch_groups)"
    )
    pads = _pads(padding, lhs_dilation)
    return shared_words.convolution(to, x, w, strides, pads, lhs_dilation, rhs_dilation, **groups, template=template)


def _conv_channels_last(
    w: Writing, x: Var, weight: Var, bias: Any = None, stride: Any = (1,), padding: Any = ((0, 0),),
    dilation: Any = (1,), groups: int = 1,
) -> ast.expr:  # fmt: skip
    axes = "DHW"[3 - len(stride) :]
    return w.fill(
        "jax.lax.conv_general_dilated(x, weight, stride, padding, rhs_dilation=dilation, dimension_numbers=layout,"
        f" feature_group_count=groups){'' if bias is None else ' + bias'}",
        x=x, weight=weight, bias=bias, stride=tuple(stride), padding=_pads(padding), dilation=rules.gaps(dilation),
        layout=(f"N{axes}C", f"{axes}IO", f"N{axes}C"), groups=None if groups == 1 else groups,
    )  # fmt: skip


def _pads(padding: Any, lhs_dilation: Any = ()) -> Any:
    # JAX accepts no padding by name together with dilation
    plain = any(map(any, padding)) or rules.gaps(lhs_dilation) is not None
    return tuple(map(tuple, padding)) if plain else "VALID"


def _reduce_window(
    w: Writing, x: Var, kind: str, window: Any, strides: Any, padding: Any, window_dilation: Any
) -> ast.expr:
    name = {"sum": "add", "max": "max", "min": "min"}[kind]
    start = w(rules.identity(kind, x.dtype))
    if not dtypes.is_floating(x.dtype):
        start = w.fill("np.array(start, dtype)", start=start, dtype=x.dtype)
    return w.fill(
        f"jax.lax.reduce_window(x, start, jax.lax.{name}, window, strides, padding, window_dilation=dilation)",
        x=x, start=start, window=tuple(window), strides=tuple(strides), padding=_pads(padding),
        dilation=rules.gaps(window_dilation),
    )  # fmt: skip


# ---- random numbers --------------------------------------------------------------------------------------------------


def _random(template: str) -> Rule:
    return f"jax.random.{template}"


# ---- control flow ----------------------------------------------------------------------------------------------------


def _cond(w: Writing, predicate: Any, true_fn: Block, false_fn: Block, operands: Any = ()) -> ast.expr:
    call = w.fill("jax.lax.cond(predicate, true, false)", predicate=predicate, true=w.body(true_fn, "true_branch"),
                  false=w.body(false_fn, "false_branch"))  # fmt: skip
    assert isinstance(call, ast.Call)
    call.args += [w(x) for x in operands]
    return call


def _while_loop(w: Writing, condition: Block, body: Block, init: Any) -> ast.expr:
    return w.fill("jax.lax.while_loop(condition, body, init)", condition=w.body(condition, "condition"),
                  body=w.body(body, "body"), init=tuple(init))  # fmt: skip


def _scan(w: Writing, body: Block, init: Any, xs: Any, length: Any, reverse: bool = False) -> ast.expr:
    return w.fill("jax.lax.scan(step, init, xs, length=length, reverse=reverse)", step=w.body(body, "step"),
                  init=tuple(init), xs=tuple(xs), length=None if xs else length, reverse=reverse or None)  # fmt: skip


def _embedding(w: Writing, weight: Any, indices: Any, padding: int | None) -> ast.expr:
    if padding is None:
        return rules.indexed(w, weight, [indices])
    return w.fill("padded_embedding(weight, indices, padding)", weight=weight, indices=indices, padding=padding)


RULES: dict[str, Rule] = {
    **numpylike.rules_of("jnp"),
    # elementwise
    "rsqrt": "jax.lax.rsqrt(x)",
    "sigmoid": "jax.nn.sigmoid(x)",
    "softplus": "jax.nn.softplus(x)",
    "erf": "jax.lax.erf(x)",
    "erfc": "jax.lax.erfc(x)",
    "erf_inv": "jax.lax.erf_inv(x)",
    "lgamma": "jax.lax.lgamma(x)",
    "digamma": "jax.lax.digamma(x)",
    "bessel_i0e": "jax.lax.bessel_i0e(x)",
    "bessel_i1e": "jax.lax.bessel_i1e(x)",
    "igamma": _broadcast("igamma"),
    "igammac": _broadcast("igammac"),
    "zeta": _broadcast("zeta"),
    "polygamma": _broadcast("polygamma"),
    "complex": lambda w, real, imag: w.fill(
        "jax.lax.complex(real, imag)" if getattr(real, "shape", 0) == getattr(imag, "shape", 1)
        else "jax.lax.complex(*jnp.broadcast_arrays(real, imag))", real=real, imag=imag),
    "pow": _pow,
    "angle": _angle,
    "astype": _astype,
    "bitcast": "x.view(dtype)",
    # reductions
    "sum": _total("sum"),
    "prod": _total("prod"),
    "cumsum": _scan_along("cumsum"),
    "cumprod": _scan_along("cumprod"),
    "cummax": _running("cummax"),
    "cummin": _running("cummin"),
    "cumlogsumexp": _running("cumlogsumexp"),
    "logsumexp": "jax.nn.logsumexp(x, axis=axis, keepdims=keepdims)",
    "softmax": "jax.nn.softmax(x, axis=axis)",
    "log_softmax": "jax.nn.log_softmax(x, axis=axis)",
    # creation and shapes
    "pad": _pad,
    "slice_update": _slice_update,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "copy": "x.copy()",
    # indexing and sorting
    "scatter": _scatter,
    "put_along_axis": _put_along_axis,
    "one_hot": "jax.nn.one_hot(indices, n, dtype=dtype)",
    "sort": _sort,
    "argsort": _argsort,
    "sort_with_indices": shared_words.sort_with_indices,
    "searchsorted": _searchsorted,
    # products and factorisations
    "matmul": _matmul,
    "dot_general": _dot_general,
    "cholesky": "jnp.linalg.cholesky(x, symmetrize_input=False)",
    "qr": lambda w, x, full=False: w.fill('jnp.linalg.qr(x, mode="complete")' if full else "jnp.linalg.qr(x)", x=x),
    "svd": lambda w, x, full=False: w.fill("jnp.linalg.svd(x, full_matrices=full)", x=x, full=full),
    "eigh": lambda w, x, lower=True: w.fill(
        f'jnp.linalg.eigh(x, "{"L" if lower else "U"}", symmetrize_input=False)', x=x),
    "eig": "jnp.linalg.eig(x)",
    "lu": "jax.lax.linalg.lu(x)",
    "triangular_solve": _triangular_solve,
    "householder_product": "jax.lax.linalg.householder_product(a, tau)",
    # windows
    "convolution": _convolution,
    "reduce_window": _reduce_window,
    # random numbers: a key is one of `jax.random`
    "fold_in": "jax.random.fold_in(key, low)",
    "random_bits": "tuple(jax.random.bits(key, (2, *shape)))",
    "random_uint64": 'jax.random.bits(key, shape, dtype="uint64")',
    "uniform": "jax.random.uniform(key, shape, dtype=dtype)",
    "normal": "jax.random.normal(key, shape, dtype=dtype)",
    "randint": "jax.random.randint(key, shape, low, high, dtype=dtype)",
    "permutation": "jax.random.permutation(key, n)",
    "exponential": "jax.random.exponential(key, shape, dtype=dtype)",
    # control flow
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "optimization_barrier": "jax.lax.optimization_barrier((x, after))[0]",
    # words
    "relu": "jax.nn.relu(x)",
    "silu": "jax.nn.silu(x)",
    "gelu": lambda w, x, approximate=False: w.fill("jax.nn.gelu(x, approximate=approximate)", x=x,
                                                   approximate=approximate),
    # the random numbers of JAX, whose keys are arrays
    "jax_bits": "jax.random.bits(jax.random.wrap_key_data(key), shape, jnp.uint32)",
    "jax_uniform": "jax.random.uniform(jax.random.wrap_key_data(key), shape, jnp.float32)",
    "jax_normal": "jax.random.normal(jax.random.wrap_key_data(key), shape, jnp.float32)",
    "jax_split": "jax.random.key_data(jax.random.split(jax.random.wrap_key_data(key), shape))",
    "jax_fold_in": "jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(key), data))",
    "stop_gradient": "jax.lax.stop_gradient(x)",
    "dropout": "dropout(x, key, rate)",
    "resize": shared_words.resize,
    "leaky_relu": "jax.nn.leaky_relu(x, negative_slope=slope)",
    "elu": "jax.nn.elu(x, alpha=alpha)",
    **{name: f"jax.nn.{name}(x)" for name in ("selu", "mish", "log_sigmoid", "relu6", "hard_sigmoid", "hard_silu")},
    "index": shared_words.index,
    "index_update": lambda w, x, indices, values, mode="set": _updated(
        w, x, shared_words.index_of(indices), values, mode),
    "arange": shared_words.arange("jnp.arange"),
    "einsum": shared_words.einsum("jnp.einsum"),
    "conv_channels_last": _conv_channels_last,
    "split_key": "jax.random.split(key)",
    "embedding": _embedding,
}  # fmt: skip

TARGET = Target(
    name="jax",
    imports={"np": "import numpy as np", "math": "import math", "jax": "import jax", "jnp": "import jax.numpy as jnp"},
    rules=RULES,
    dtype=_dtype,
    array="jax.Array",
    constant="jnp.array(x, dtype)",
    infinity="jnp.inf",
    nan="jnp.nan",
    load="jnp.asarray(x)",
    helpers=helpers,
)
