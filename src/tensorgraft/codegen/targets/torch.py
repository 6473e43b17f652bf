"""PyTorch: methods of tensors, `torch` and `torch.nn.functional`."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.codegen.recorders.calls import CannotBeSaidError
from tensorgraft.codegen.targets import Rule, Target, Var, Writing, rules, worded
from tensorgraft.codegen.targets.helpers import torch as helpers
from tensorgraft.hub import dtypes

_NARROW = (dtypes.float16, dtypes.bfloat16)
_KNOWN = (*dtypes.ALL, *dtypes.FLOAT8)


def _dtype(dtype: np.dtype) -> str:
    if dtype not in _KNOWN:
        raise CannotBeSaidError(f"PyTorch has no tensors of {dtype}")
    return f"torch.{dtype.name}"


def _unless_float32(dtype: np.dtype) -> Any:
    """The dtype of what PyTorch makes of a shape, where it has to be said."""
    return None if dtype == dtypes.float32 else dtype


# ---- elementwise -----------------------------------------------------------------------------------------------------


def _tensors(template: Rule) -> Rule:
    """Return the rule for a function that takes only tensors: a Python scalar becomes one like the other operand."""

    def rule(w: Writing, x: Any, y: Any) -> ast.expr:
        if not isinstance(x, Var):
            x = w.fill("y.new_tensor(x)", x=x, y=y)
        elif not isinstance(y, Var):
            y = w.fill("x.new_tensor(y)", x=x, y=y)
        return w.fill(template, x=x, y=y) if isinstance(template, str) else template(w, x=x, y=y)

    return rule


def _bound(name: str, keyword: str) -> Rule:
    def rule(w: Writing, x: Any, y: Any) -> ast.expr:
        if isinstance(x, Var) and isinstance(y, Var):
            return w.fill(f"torch.{name}(x, y)", x=x, y=y)
        x, y = (x, y) if isinstance(x, Var) else (y, x)
        if x.dtype == bool:  # which PyTorch does not clamp
            return w.fill(f"x {'|' if keyword == 'min' else '&'} y", x=x, y=y)
        return w.fill(f"x.clamp({keyword}=y)", x=x, y=y)

    return rule


def _clip(w: Writing, x: Var, low: Any = None, high: Any = None) -> ast.expr:
    if low is None and high is None:
        return w(x)
    if low is not None and high is not None and isinstance(low, Var) != isinstance(high, Var):
        return w.fill("x.clamp(min=low).clamp(max=high)", x=x, low=low, high=high)
    return w.fill("x.clamp(min=low, max=high)", x=x, low=low, high=high)


def _pow(w: Writing, x: Any, y: Any) -> ast.expr:
    if rules.dtype_of(x, y).kind == "i" and not isinstance(y, Var) and y < 0:
        return w.fill("x ** torch.tensor(y)", x=x, y=y)  # of numbers PyTorch refuses it
    return w.fill("x ** y", x=x, y=y)


def _in_float32(template: str, kinds: Any = _NARROW) -> Rule:
    """Return a rule that computes in float32 where PyTorch has no CPU kernel for 16-bit floats, or a rough one."""

    def rule(w: Writing, **arguments: Any) -> ast.expr:
        arguments = rules.without_defaults(arguments)
        dtype = next(v.dtype for v in arguments.values() if isinstance(v, Var))
        if dtype not in kinds:
            return w.fill(template, **arguments)
        arguments = {k: w.fill("x.float()", x=v) if isinstance(v, Var) else v for k, v in arguments.items()}
        return w.fill("y.to(dtype)", y=w.fill(template, **arguments), dtype=dtype)

    return rule


def _astype(w: Writing, x: Var, dtype: np.dtype) -> ast.expr:
    if dtypes.is_complex(x.dtype) and not dtypes.is_complex(dtype):
        if dtypes.is_bool(dtype):
            return w.fill("x != 0", x=x)
        real = dtype == dtypes.real_dtype(x.dtype)
        return w.fill("x.real" if real else "x.real.to(dtype)", x=x, dtype=dtype)
    if dtypes.is_floating(x.dtype) and dtype.kind == "u":
        return w.fill("x.to(torch.int64).to(dtype)", x=x, dtype=dtype)  # wraps
    return w.fill("x.to(dtype)", x=x, dtype=dtype)


def _complex(w: Writing, real: Any, imag: Any) -> ast.expr:
    if isinstance(real, Var) and isinstance(imag, Var) and rules.same(real.shape, imag.shape):
        return w.fill("torch.complex(real, imag)", real=real, imag=imag)
    return w.fill("torch.complex(*torch.broadcast_tensors(real, imag))", real=real, imag=imag)


def _softplus(w: Writing, x: Var) -> ast.expr:
    if x.dtype == dtypes.float64:  # beyond 20, F.softplus is x
        return w.fill("torch.logaddexp(x, torch.zeros_like(x))", x=x)
    return w.fill("F.softplus(x)", x=x)


# ---- reductions ------------------------------------------------------------------------------------------------------


def _axes(x: Var, axis: Any, keepdims: bool = False) -> Any:
    """Return the axes for PyTorch, None for all of them, which it takes only without keepdim."""
    if axis is None:
        return tuple(range(x.ndim)) if keepdims and x.ndim else None
    return tuple(axis) if isinstance(axis, tuple | list) else axis


def _reduced(name: str, over_none: str = "x", of_sum: bool = False, suffix: str = "") -> Rule:
    """`over_none`: of each element by itself, which PyTorch takes for all."""

    def rule(w: Writing, x: Var, axis: Any = None, keepdims: bool = False) -> ast.expr:
        if axis == ():
            return w.fill(over_none, x=x)
        result_dtype = x.dtype if of_sum and x.dtype in rules.NARROW_INTEGERS else None
        return w.fill(f"x.{name}(dim=axis, keepdim=keepdims, dtype=dtype{suffix})", x=x, axis=_axes(x, axis, keepdims),
                      keepdims=keepdims or None, dtype=result_dtype)  # fmt: skip

    return rule


def _prod(w: Writing, x: Var, axis: Any = None, keepdims: bool = False) -> ast.expr:
    """PyTorch multiplies along one axis, or all."""
    narrow = x.dtype in _NARROW
    result_dtype = x.dtype if x.dtype in rules.NARROW_INTEGERS else None
    out = w.fill("x.float()", x=x) if narrow else w(x)
    axes = rules.axes_of(x, axis)
    if axis is None and not keepdims:
        out = w.fill("x.prod(dtype=dtype)", x=out, dtype=result_dtype)
    for a in sorted(axes, reverse=True) if axis is not None or keepdims else ():
        out = w.fill(
            "x.prod(dim=a, keepdim=keepdims, dtype=dtype)", x=out, a=a, keepdims=keepdims or None, dtype=result_dtype
        )
    return w.fill("y.to(dtype)", y=out, dtype=x.dtype) if narrow and (axes or not x.ndim) else out


def _extreme(name: str, identity: Any) -> Rule:
    def rule(w: Writing, x: Var, axis: Any = None, keepdims: bool = False) -> ast.expr:
        if axis == () or not x.ndim:
            return w(x)
        if rules.is_empty(x):
            shape = w.call_outcome().shape
            return w.fill("torch.full(shape, v, dtype=dtype)", shape=shape, v=identity(x.dtype), dtype=x.dtype)
        return w.fill(f"x.{name}(dim=axis, keepdim=keepdims)", x=x, axis=_axes(x, axis, keepdims),
                      keepdims=keepdims or None)  # fmt: skip

    return rule


def _position(name: str) -> Rule:
    def rule(w: Writing, x: Var, axis: int, keepdims: bool = False) -> ast.expr:
        numbers = w.fill("x.byte()", x=x) if x.dtype == np.bool_ else x
        return w.fill(f"x.{name}(dim=axis, keepdim=keepdims)", x=numbers, axis=axis, keepdims=keepdims or None)

    return rule


def _var(w: Writing, x: Var, axis: Any = None, keepdims: bool = False, correction: Any = 0) -> ast.expr:
    if axis == ():
        return w.fill("(x - x).abs()", x=x)
    narrow = x.dtype in _NARROW
    wide = w.fill("x.float()", x=x) if narrow else x
    out = w.fill("x.var(dim=axis, correction=correction, keepdim=keepdims)", x=wide, axis=_axes(x, axis),
                 correction=correction, keepdims=keepdims or None)  # fmt: skip
    return w.fill("y.to(dtype)", y=out, dtype=x.dtype) if narrow else out


def _logsumexp(w: Writing, x: Var, axis: Any = None, keepdims: bool = False) -> ast.expr:
    if axis == () or not x.ndim:
        return w(x)
    return w.fill("torch.logsumexp(x, dim=axis, keepdim=keepdims)", x=x,
                  axis=tuple(range(x.ndim)) if axis is None else axis, keepdims=keepdims or None)  # fmt: skip


def _scan_along(name: str) -> Rule:
    def rule(w: Writing, x: Var, axis: int) -> ast.expr:
        if x.dtype in _NARROW:
            return w.fill(f"x.{name}(dim=axis, dtype=torch.float32).to(dtype)", x=x, axis=axis, dtype=x.dtype)
        result_dtype = x.dtype if x.dtype in rules.NARROW_INTEGERS else None
        return w.fill(f"x.{name}(dim=axis, dtype=dtype)", x=x, axis=axis, dtype=result_dtype)

    return rule


def _running(name: str) -> Rule:
    def rule(w: Writing, x: Var, axis: int) -> ast.expr:
        if x.dtype == np.bool_:
            return w.fill(f"x.byte().{name}(dim=axis).values.bool()", x=x, axis=axis)
        return w.fill(f"x.{name}(dim=axis).values", x=x, axis=axis)

    return rule


# ---- creation and shapes ---------------------------------------------------------------------------------------------


def _full(w: Writing, shape: Any, value: Any, dtype: np.dtype) -> ast.expr:
    if isinstance(value, Var):
        same_dtype = value.dtype == dtype
        return rules.unpacked(w.fill("x.expand(shape)", x=value if same_dtype else w.fill("x.to(t)", x=value, t=dtype),
                                     shape=tuple(shape)))  # fmt: skip
    if rules.is_plain_zero_or_one(value):
        name = "ones" if value else "zeros"
        return w.fill(f"torch.{name}(shape, dtype=dtype)", shape=shape, dtype=_unless_float32(dtype))
    return w.fill("torch.full(shape, value, dtype=dtype)", shape=shape, value=value, dtype=dtype)


def _zeros(name: str) -> Callable[..., ast.expr]:
    return lambda w, shape, dtype: w.fill(
        f"torch.{name}(shape, dtype=dtype)", shape=tuple(shape), dtype=_unless_float32(dtype)
    )


def _full_like(w: Writing, x: Var, value: Any) -> ast.expr:
    return w.fill("value.expand_as(x)" if isinstance(value, Var) else "torch.full_like(x, value)", x=x, value=value)


def _iota(w: Writing, n: Any, dtype: np.dtype) -> ast.expr:
    if dtype in (dtypes.uint16, dtypes.uint32):
        return w.fill("torch.arange(n).to(dtype)", n=n, dtype=dtype)
    return w.fill("torch.arange(n, dtype=dtype)", n=n, dtype=None if dtype == dtypes.int64 else dtype)


def _eye(w: Writing, n: Any, m: Any, dtype: np.dtype, k: int = 0) -> ast.expr:
    if k:
        return w.fill("(torch.arange(n)[:, None] + k == torch.arange(m)).to(dtype)", n=n, m=m, k=k, dtype=dtype)
    template = "torch.eye(n, dtype=dtype)" if rules.same(n, m) else "torch.eye(n, m, dtype=dtype)"
    return w.fill(template, n=n, m=m, dtype=_unless_float32(dtype))


def _permute_dims(w: Writing, x: Var, axes: Any) -> ast.expr:
    moved = [a for a, b in enumerate(axes) if a != b]
    if tuple(axes) == (1, 0):
        return w.fill("x.T", x=x)
    if len(moved) == 2:
        return w.fill("x.transpose(a, b)", x=x, a=moved[0], b=moved[1])
    return rules.unpacked(w.fill("x.permute(axes)", x=x, axes=tuple(axes)))


def _padding(config: Any) -> tuple[Any, ...]:
    """Return (low, high) of the last axis first, without axes that stay."""
    pairs = [(low, high) for low, high, *_ in config]
    while pairs and rules.same(pairs[0], (0, 0)):
        pairs.pop(0)
    return tuple(p for pair in reversed(pairs) for p in pair)


def _pad(w: Writing, x: Var, value: Any, config: Any) -> ast.expr:
    if isinstance(value, Var) or any(interior for _, _, interior in config):
        return w.fill("pad(x, value, config)", x=x, value=value, config=tuple(map(tuple, config)))
    widths = _padding(config)
    if not widths:
        return w(x)
    return w.fill("F.pad(x, widths, value=value)", x=x, widths=widths, value=None if value == 0 else value)


def _pad_by(mode: str) -> Rule:
    def rule(w: Writing, x: Var, pads: Any) -> ast.expr:
        widths = tuple(p for pair in reversed(pads) for p in pair)
        return w.fill(f"F.pad(x, widths, mode='{mode}')", x=x, widths=widths)

    return rule


def _slice_update(w: Writing, x: Var, update: Var, start: Any, step: Any) -> ast.expr:
    index = rules.region(x, update, start, step)
    changed = [i for i in index if isinstance(i, slice) and i != slice(None)]
    if not changed:
        return w(update)
    if len(changed) == 1:
        (s,) = changed
        at = index.index(s) if Ellipsis not in index else index.index(s) - len(index)
        return w.fill("torch.slice_scatter(x, update, dim, start, end, step)" if s.step is not None else
                      "torch.slice_scatter(x, update, dim, start=start, end=end)",
                      x=x, update=update, dim=at, start=s.start, end=s.stop, step=s.step)  # fmt: skip
    return w.fill("updated(x, index, update)", x=x, index=_place(w, index), update=update)


def _place(w: Writing, index: Any) -> ast.expr:
    """An index that is an argument."""
    parts = [w(i) if not isinstance(i, slice) else w.fill("slice(a, b, c)", a=i.start, b=i.stop, c=i.step)
             if i.step is not None else w.fill("slice(a, b)", a=i.start, b=i.stop) for i in index]  # fmt: skip
    return parts[0] if len(parts) == 1 else ast.Tuple(parts, ast.Load())


def _split(w: Writing, x: Var, sizes: Any, axis: int = 0) -> ast.expr:
    even, _, rest = rules.sizes_of_split(x, sizes, axis)
    if even and 0 not in sizes:
        return w.fill("x.chunk(n, dim=axis)", x=x, n=len(sizes), axis=axis or None)
    if rest:
        left = rules.minus(x.shape[axis % x.ndim], *sizes)
        return w.fill("x.split(sizes, dim=axis)[:-1]", x=x, sizes=[*sizes, left], axis=axis or None)
    return w.fill("x.split(sizes, dim=axis)", x=x, sizes=list(sizes), axis=axis or None)


def _tri(name: str) -> Rule:
    def rule(w: Writing, x: Var, k: Any = 0) -> ast.expr:
        if not isinstance(k, Var):
            return w.fill(f"x.{name}()" if not k else f"x.{name}(k)", x=x, k=k)
        mask = "torch.arange(n)[:, None] + k {} torch.arange(m)".format(">=" if name == "tril" else "<=")
        return w.fill(f"torch.where({mask}, x, torch.zeros_like(x))", x=x, n=x.shape[-2], m=x.shape[-1], k=k)

    return rule


def _triangle_mask(w: Writing, n: Any, m: Any, k: Any = 0) -> ast.expr:
    if isinstance(k, Var):
        return w.fill("torch.arange(n)[:, None] + k >= torch.arange(m)", n=n, m=m, k=k)
    return w.fill(f"torch.ones(n, m, dtype=torch.bool).tril({'k' if k else ''})", n=n, m=m, k=k)


# ---- indexing and sorting --------------------------------------------------------------------------------------------


def _long(w: Writing, i: Any) -> Any:
    """Indices as PyTorch takes them: it has uint8 for masks."""
    return w.fill("i.long()", i=i) if isinstance(i, Var) and i.dtype not in (dtypes.int64, dtypes.int32) else i


def _int64(w: Writing, i: Any) -> Any:
    return w.fill("i.long()", i=i) if isinstance(i, Var) and i.dtype != dtypes.int64 else i


def _gather(w: Writing, x: Var, indices: Any) -> ast.expr:
    return rules.indexed(w, x, [_long(w, i) for i in indices])


def _scatter(w: Writing, x: Var, indices: Any, updates: Any, mode: str = "set") -> ast.expr:
    at = tuple(_long(w, i) for i in indices)
    if mode == "set" and indices:
        return w.fill("x.index_put(at, updates)", x=x, at=at, updates=updates)
    if mode == "add" and indices and x.dtype not in (dtypes.bool_, *_NARROW):
        return w.fill("x.index_put(at, updates, accumulate=True)", x=x, at=at, updates=updates)
    reduce = {"set": "set", "add": "sum", "multiply": "prod", "min": "amin", "max": "amax"}[mode]
    return w.fill("scatter_reduce(x, at, updates, reduce)", x=x, at=at, updates=updates, reduce=reduce)


def _take(w: Writing, x: Var, indices: Any, axis: int) -> ast.expr:
    return rules.indexed(w, x, [*[slice(None)] * (axis % x.ndim), _long(w, indices)])


def _take_along_axis(w: Writing, x: Var, indices: Var, axis: int) -> ast.expr:
    if not x.ndim:
        return w.fill("x.expand_as(indices)", x=x, indices=indices)
    return w.fill("x.gather(axis, indices)", x=x, axis=axis, indices=_int64(w, indices))


def _put_along_axis(w: Writing, x: Var, indices: Var, updates: Any, axis: int, mode: str = "set") -> ast.expr:
    at = _int64(w, indices)
    if mode == "set":
        return w.fill("x.scatter(axis, at, updates)", x=x, axis=axis, at=at, updates=updates)
    if x.dtype in _NARROW:
        x, updates = (w.fill("x.float()", x=v) for v in (x, updates))  # type: ignore[assignment]
    if mode == "add":
        out = w.fill("x.scatter_add(axis, at, updates)", x=x, axis=axis, at=at, updates=updates)
    else:
        reduce = {"multiply": "prod", "min": "amin", "max": "amax"}[mode]
        out = w.fill("x.scatter_reduce(axis, at, updates, reduce)", x=x, axis=axis, at=at, updates=updates,
                     reduce=reduce)  # fmt: skip
    dtype = w.call_outcome().dtype
    return w.fill("y.to(dtype)", y=out, dtype=dtype) if dtype in _NARROW else out


def _one_hot(w: Writing, indices: Var, n: Any, dtype: np.dtype) -> ast.expr:
    # what lies outside is a row of zeros, which F.one_hot refuses
    hot = w.fill("i[..., None] == torch.arange(n)", i=indices, n=n)
    return hot if dtype == dtypes.bool_ else w.fill("x.to(dtype)", x=hot, dtype=dtype)


def _sort(w: Writing, operands: Any, axis: int = -1, num_keys: int = 1) -> ast.expr:
    if len(operands) == 1:
        value = w.fill("x.sort(dim=axis, stable=True).values", x=operands[0], axis=None if axis == -1 else axis)
        return ast.Tuple([value], ast.Load())
    return w.fill("sort(operands, axis, num_keys)", operands=tuple(operands), axis=axis, num_keys=num_keys)


def _sorted(name: str) -> Rule:
    def rule(w: Writing, x: Var, axis: int = -1, descending: bool = False) -> ast.expr:
        return w.fill(f"torch.{name}(x, dim=axis, descending=descending, stable=True)", x=x,
                      axis=None if axis == -1 else axis, descending=descending or None)  # fmt: skip

    return rule


def _searchsorted(w: Writing, boundaries: Var, values: Any, right: bool = False) -> ast.expr:
    return w.fill("torch.searchsorted(boundaries, values, right=right)", boundaries=boundaries, values=values,
                  right=right or None)  # fmt: skip


# ---- products --------------------------------------------------------------------------------------------------------


def _product(w: Writing, template: str, a: Var, b: Var, dtype: np.dtype | None, **fields: Any) -> ast.expr:
    out = a.dtype if dtype is None else dtype
    wide = dtypes.float32 if out in (dtypes.bool_, dtypes.float16) else out
    left, right = (w(x) if x.dtype == wide else w.fill("x.to(dtype)", x=x, dtype=wide) for x in (a, b))
    y = w.fill(template, a=left, b=right, **fields)
    if out == dtypes.bool_:
        return w.fill("y != 0", y=y)
    return y if wide == out else w.fill("y.to(dtype)", y=y, dtype=out)


def _matmul(w: Writing, a: Var, b: Var, dtype: np.dtype | None = None) -> ast.expr:
    return _product(w, "a @ b", a, b, dtype)


def _dot_general(w: Writing, a: Var, b: Var, contract: Any, batch: Any = ((), ()), dtype: Any = None) -> ast.expr:
    sign, letters = rules.contraction(a, b, contract, batch)
    if sign is not None:
        return _product(w, sign, a, b, dtype)
    return _product(w, "torch.einsum(letters, a, b)", a, b, dtype, letters=letters)


def _qr(w: Writing, x: Var, full: bool = False) -> ast.expr:
    return w.fill('torch.linalg.qr(x, mode="complete")' if full else "torch.linalg.qr(x)", x=x)


def _triangular_solve(
    w: Writing, a: Var, b: Var, lower: bool, left: bool = True, transpose: bool = False, adjoint: bool = False,
    unit_diagonal: bool = False,
) -> ast.expr:  # fmt: skip
    swapped = transpose or adjoint
    return w.fill(
        "torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unit)",
        a=w.fill("a.mH" if adjoint else "a.mT", a=a) if swapped else a, b=b, upper=lower if swapped else not lower,
        left=None if left else False, unit=unit_diagonal or None,
    )  # fmt: skip


# ---- windows ---------------------------------------------------------------------------------------------------------


def _single(v: Any) -> Any:
    """Return (2, 2) as 2."""
    return v[0] if len(set(v)) == 1 else tuple(v)


def _non_default(usual: int, v: Any) -> Any:
    return None if all(rules.same(x, usual) for x in v) else _single(v)


def _symmetric(padding: Any) -> bool:
    return all(rules.same(low, high) and low >= 0 for low, high in padding)


def _convolution(
    to: Writing, x: Var, w: Var, strides: Any, padding: Any, lhs_dilation: Any, rhs_dilation: Any, groups: int = 1,
    batch_groups: int = 1,
) -> ast.expr:  # fmt: skip
    n = len(tuple(strides))
    known = 1 <= n <= 3 and batch_groups == 1 and all(d == 1 for d in lhs_dilation) and dtypes.is_floating(x.dtype)
    known = known and not rules.is_empty(x) and not rules.is_empty(w) and not rules.is_empty(to.call_outcome())
    if known:
        return _conv(to, x, w, None, tuple(strides), tuple(map(tuple, padding)), tuple(rhs_dilation), groups)
    return worded.convolution(to, x, w, strides, padding, lhs_dilation, rhs_dilation, groups, batch_groups)


def _conv(
    w: Writing, x: Any, weight: Any, bias: Any = None, stride: Any = (1,), padding: Any = ((0, 0),),
    dilation: Any = (1,), groups: int = 1,
) -> ast.expr:  # fmt: skip
    n = len(stride)
    narrow = x.dtype == dtypes.float16
    symmetric = None
    if _symmetric(padding):
        symmetric = _non_default(0, [low for low, _ in padding])
    else:
        x = _pad(w, x, 0, [(0, 0, 0), (0, 0, 0), *((*p, 0) for p in padding)])
    if narrow:
        x, weight, bias = (None if v is None else w.fill("x.float()", x=v) for v in (x, weight, bias))
    out = w.fill(
        f"F.conv{n}d(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)" if bias is not
        None else f"F.conv{n}d(x, weight, stride=stride, padding=padding, dilation=dilation, groups=groups)",
        x=x, weight=weight, bias=bias, stride=_non_default(1, stride), padding=symmetric,
        dilation=_non_default(1, dilation), groups=None if groups == 1 else groups,
    )  # fmt: skip
    return w.fill("y.half()", y=out) if narrow else out


def _conv_transpose(
    w: Writing, x: Any, weight: Any, bias: Any = None, stride: Any = (1,), padding: Any = (0,),
    output_padding: Any = (0,), dilation: Any = (1,), groups: int = 1,
) -> ast.expr:  # fmt: skip
    operands = "x, weight" if bias is None else "x, weight, bias"
    return w.fill(
        f"F.conv_transpose{len(stride)}d({operands}, stride=stride, padding=padding, output_padding=extra,"
        " groups=groups, dilation=dilation)",
        x=x, weight=weight, bias=bias, stride=_non_default(1, stride), padding=_non_default(0, padding),
        extra=_non_default(0, output_padding), dilation=_non_default(1, dilation),
        groups=None if groups == 1 else groups,
    )  # fmt: skip


def _pool(kind: str) -> Rule:
    """F.max_pool2d and the like take padding on both sides, of no more than half a window."""

    def rule(
        w: Writing, x: Var, window: Any, stride: Any, padding: Any = ((0, 0),), dilation: Any = None,
        count_padding: bool = True,
    ) -> ast.expr:  # fmt: skip
        n, pads = len(window), tuple(padding) if len(padding) == len(window) else tuple(padding) * len(window)
        is_supported = _symmetric(pads) and all(2 * low <= k for (low, _), k in zip(pads, window, strict=True))
        if not is_supported or n > 3 or x.ndim not in (n + 1, n + 2) or not dtypes.is_floating(x.dtype):
            unit_dims = (1,) * (x.ndim - n)
            where = {"window": unit_dims + tuple(window), "stride": unit_dims + tuple(stride)}
            where["padding"] = ((0, 0),) * len(unit_dims) + pads
            if kind == "max":
                gaps = None if dilation is None else unit_dims + tuple(dilation)
                template = "reduce_window(torch.amax, x, least, window, stride, padding, dilation=gaps)"
                return w.fill(template, x=x, least=rules.identity("max", x.dtype), gaps=gaps, **where)
            total = "reduce_window(torch.sum, {}, 0, window, stride, padding)"
            count = str(math.prod(window)) if count_padding else total.format("torch.ones_like(x)")
            return w.fill(f"{total.format('x')} / {count}", x=x, **where)
        return w.fill(
            f"F.{kind}_pool{n}d(x, window, stride=stride, padding=padding,"
            f" {'dilation=dilation' if kind == 'max' else 'count_include_pad=counted'})",
            x=x, window=_single(window), stride=None if rules.same(tuple(stride), tuple(window)) else _single(stride),
            padding=_non_default(0, [low for low, _ in pads]),
            dilation=None if dilation is None else _non_default(1, dilation),
            counted=None if count_padding or not any(low for low, _ in pads) else False,
        )  # fmt: skip

    return rule


# ---- words -----------------------------------------------------------------------------------------------------------


def _normalised(function: str, usual_eps: float) -> Rule:
    def rule(w: Writing, x: Var, axes: int = 1, eps: float = 0.0, **affine: Any) -> ast.expr:
        values = list(affine.values())
        while values and values[-1] is None:
            values.pop()
        call = w.fill(f"F.{function}(x, shape, eps=eps)", x=x, shape=tuple(x.shape[x.ndim - axes :]),
                      eps=None if eps == usual_eps else eps)  # fmt: skip
        assert isinstance(call, ast.Call)
        call.args += [w(v) for v in values]
        return call

    return rule


def _group_norm(w: Writing, x: Var, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> ast.expr:
    affine = ", weight, bias" if bias is not None else ", weight" if weight is not None else ""
    return w.fill(f"F.group_norm(x, groups{affine}, eps=eps)", x=x, groups=groups, weight=weight, bias=bias,
                  eps=None if eps == 1e-5 else eps)  # fmt: skip


def _batch_norm(
    w: Writing, x: Var, mean: Any, variance: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> ast.expr:
    affine = ", weight, bias" if bias is not None else ", weight" if weight is not None else ""
    return w.fill(f"F.batch_norm(x, mean, variance{affine}, eps=eps)", x=x, mean=mean, variance=variance, weight=weight,
                  bias=bias, eps=None if eps == 1e-5 else eps)  # fmt: skip


def _cross_entropy(
    w: Writing, logits: Var, labels: Var, weight: Any = None, reduction: str = "mean", ignored: int | None = -100,
    smoothing: float = 0.0,
) -> ast.expr:  # fmt: skip
    return w.fill(
        f"F.cross_entropy(logits, labels, weight{'' if weight is not None else '=weight'}, reduction=reduction,"
        " ignore_index=ignored, label_smoothing=smoothing)" if weight is not None else
        "F.cross_entropy(logits, labels, reduction=reduction, ignore_index=ignored, label_smoothing=smoothing)",
        logits=logits, labels=labels, weight=weight, reduction=None if reduction == "mean" else reduction,
        ignored=None if ignored in (None, -100) else ignored, smoothing=smoothing or None,
    )  # fmt: skip


def _dot_product_attention(
    w: Writing, q: Var, k: Var, v: Var, mask: Any = None, causal: bool = False, scale: float | None = None
) -> ast.expr:
    if mask is not None and causal:  # of which PyTorch takes one
        causal_mask = w.fill(
            "torch.ones(n, m, dtype=torch.bool, device=x.device).tril()", n=q.shape[2], m=k.shape[2], x=q
        )
        combined = "mask & seen" if mask.dtype == dtypes.bool_ else "mask.masked_fill(~seen, -torch.inf)"
        mask, causal = w.fill(combined, mask=mask, seen=causal_mask), False
    return w.fill(
        "F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=shared)",
        q=q, k=k, v=v, mask=mask, causal=causal or None, scale=scale,
        shared=None if rules.same(q.shape[1], k.shape[1]) else True,
    )  # fmt: skip


def _resize(w: Writing, x: Var, size: Any, method: str = "nearest", corners: bool = False) -> ast.expr:
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}
    mode = {"nearest": None, "linear": linear[len(size)], "cubic": "bicubic"}[method]
    return w.fill("F.interpolate(x, size=size, mode=mode, align_corners=corners)", x=x, size=tuple(size), mode=mode,
                  corners=corners or None)  # fmt: skip


def _index(w: Writing, x: Var, indices: Any) -> ast.expr:
    return rules.indexed(w, x, [slice(None) if i is None else _long(w, i) for i in indices])


def _index_update(w: Writing, x: Var, indices: Any, values: Any, mode: str = "set") -> ast.expr:
    at = [slice(None) if i is None else _long(w, i) for i in indices]
    if None not in indices:
        return w.fill("x.index_put(at, values, accumulate=add)", x=x, at=tuple(at), values=values,
                      add=True if mode == "add" else None)  # fmt: skip
    if mode == "add":
        return w.fill("added(x, at, values)", x=x, at=[None if i is None else _long(w, i) for i in indices],
                      values=values)  # fmt: skip
    return w.fill("updated(x, at, values)", x=x, at=_place(w, at), values=values)


# ---- control flow ----------------------------------------------------------------------------------------------------


WORDS: dict[str, Rule] = {
    **rules.infix(),
    # elementwise
    **{name: f"torch.{name}(x)" for name in (
        *rules.UNARY, *rules.NUMPY_NAMES, "rsqrt", "sigmoid", "round", "erf", "erfc", "lgamma", "digamma",
    ) if name not in ("cbrt", "sign")},
    "abs": lambda w, x: w(x) if x.dtype.kind == "u" else w.fill("torch.abs(x)", x=x),
    "sign": lambda w, x: w.fill("sign(x)" if dtypes.is_floating(x.dtype) else "torch.sgn(x)", x=x),
    "negative": "-x",
    "reciprocal": "1 / x",
    "bitwise_invert": "~x",
    "logical_not": "~x",
    "real": "x.real",
    "imag": "x.imag",
    "conj": "x.conj()",
    "erf_inv": "torch.erfinv(x)",
    "bessel_i0e": "torch.special.i0e(x)",
    "bessel_i1e": "torch.special.i1e(x)",
    "softplus": _softplus,
    "angle": "torch.angle(x)",
    "fmod": _tensors("torch.fmod(x, y)"),
    **{name: _tensors(f"torch.{name}(x, y)") for name in ("atan2", "copysign", "hypot", "logaddexp")},
    "nextafter": _tensors("torch.nextafter(x, y)"),
    "igamma": _tensors("torch.special.gammainc(x, y)"),
    "igammac": _tensors("torch.special.gammaincc(x, y)"),
    "zeta": _tensors(_in_float32("torch.special.zeta(x, y)")),
    "maximum": _bound("maximum", "min"),
    "minimum": _bound("minimum", "max"),
    "clip": _clip,
    "pow": _pow,
    "bitwise_left_shift": "x << y",
    "bitwise_right_shift": "x >> y",
    "integer_floor_divide": "x // y",
    "floor_divide": "x // y",
    "where": "torch.where(condition, x, y)",
    "complex": _complex,
    "astype": _astype,
    "bitcast": lambda w, x, dtype: w.fill(
        "x.view(torch.uint8) != 0" if dtype == np.bool_ else "x.view(dtype)", x=x, dtype=dtype),
    # reductions
    "sum": _reduced("sum", of_sum=True),
    "prod": _prod,
    "max": _extreme("amax", dtypes.lowest),
    "min": _extreme("amin", dtypes.highest),
    "any": _reduced("any"),
    "all": _reduced("all"),
    "mean": _reduced("mean"),
    "var": _var,
    "argmax": _position("argmax"),
    "argmin": _position("argmin"),
    "cumsum": _scan_along("cumsum"),
    "cumprod": _scan_along("cumprod"),
    "cummax": _running("cummax"),
    "cummin": _running("cummin"),
    "cumlogsumexp": "torch.logcumsumexp(x, dim=axis)",
    "logsumexp": _logsumexp,
    "softmax": "F.softmax(x, dim=axis)",
    "log_softmax": "F.log_softmax(x, dim=axis)",
    # creation and shapes
    "full": _full,
    "zeros": _zeros("zeros"),
    "ones": _zeros("ones"),
    "zeros_like": "torch.zeros_like(x)",
    "ones_like": "torch.ones_like(x)",
    "full_like": _full_like,
    "iota": _iota,
    "eye": _eye,
    "reshape": rules.spread("x.reshape(shape)"),
    "permute_dims": _permute_dims,
    "matrix_transpose": rules.matrix_transpose,
    "broadcast_to": rules.spread("x.expand(shape)"),
    "concat": "torch.cat(arrays, dim=axis)",
    "stack": "torch.stack(arrays, dim=axis)",
    "pad": _pad,
    "slice": rules.slice_,
    "take_slice": rules.take_slice,
    "slice_update": _slice_update,
    "flip": "torch.flip(x, axes)",
    "dynamic_slice": worded.dynamic_slice,
    "dynamic_update_slice": worded.dynamic_update_slice,
    "copy": "x.clone()",
    "expand_dims": "x.unsqueeze(axis)",
    "squeeze": "x.squeeze(axes)",
    "moveaxis": "x.movedim(source, target)",
    "swapaxes": "x.transpose(a, b)",
    "split": _split,
    "unstack": "x.unbind(dim=axis)",
    "roll": "torch.roll(x, shift, axis)",
    "repeat": "x.repeat_interleave(times, dim=axis)",
    "pad_reflect": _pad_by("reflect"),
    "pad_edge": _pad_by("replicate"),
    "tile": rules.spread("x.repeat(repeats)"),
    "tril": _tri("tril"),
    "triu": _tri("triu"),
    "triangle_mask": _triangle_mask,
    "diagonal": "x.diagonal(offset=offset, dim1=-2, dim2=-1)",
    # indexing and sorting
    "gather": _gather,
    "scatter": _scatter,
    "nonzero": "torch.nonzero(x, as_tuple=True)",
    "take": _take,
    "take_along_axis": _take_along_axis,
    "put_along_axis": _put_along_axis,
    "one_hot": _one_hot,
    "sort": _sort,
    "argsort": _sorted("argsort"),
    "sort_with_indices": _sorted("sort"),
    "searchsorted": _searchsorted,
    # products and factorisations
    "matmul": _matmul,
    "dot_general": _dot_general,
    "cholesky": "torch.linalg.cholesky(x)",
    "qr": _qr,
    "svd": lambda w, x, full=False: w.fill("torch.linalg.svd(x, full_matrices=full)", x=x, full=full),
    "svdvals": "torch.linalg.svdvals(x)",
    "eigh": lambda w, x, lower=True: w.fill(
        "torch.linalg.eigh(x)" if lower else 'torch.linalg.eigh(x, UPLO="U")', x=x),
    "eig": "torch.linalg.eig(x)",
    "lu": "lu(x)",
    "triangular_solve": _triangular_solve,
    "householder_product": "torch.linalg.householder_product(a, tau)",
    "solve": "torch.linalg.solve(a, b)",
    "inv": "torch.linalg.inv(x)",
    # windows
    "convolution": _convolution,
    "reduce_window": worded.reduce_window({"sum": "torch.sum", "max": "torch.amax", "min": "torch.amin"}),
    # transforms
    "fft": "torch.fft.fft(x, dim=axis)",
    "ifft": "torch.fft.ifft(x, dim=axis)",
    "rfft": "torch.fft.rfft(x, dim=axis)",
    "irfft": "torch.fft.irfft(x, n, dim=axis)",
    # random numbers: a key is a torch.Generator
    "fold_in": "key",
    "uniform": lambda w, key, shape, dtype: w.fill(
        "torch.rand(shape, generator=key, dtype=dtype)", key=key, shape=shape, dtype=_unless_float32(dtype)),
    "normal": lambda w, key, shape, dtype: w.fill(
        "torch.randn(shape, generator=key, dtype=dtype)", key=key, shape=shape, dtype=_unless_float32(dtype)),
    "randint": "torch.randint(low, high, shape, generator=key, dtype=dtype)",
    "permutation": "torch.randperm(n, generator=key)",
    "exponential": lambda w, key, shape, dtype: w.fill(
        "torch.empty(shape, dtype=dtype).exponential_(generator=key)", key=key, shape=shape,
        dtype=_unless_float32(dtype)),
    # control flow
    "cond": worded.cond,
    "while_loop": worded.while_loop,
    "scan": worded.scan(_zeros("zeros")),
    "optimization_barrier": lambda w, x, after: w(x),
    "constrain": lambda w, x, placement: w(x),
    # words
    "getitem": rules.getitem,
    "linear": lambda w, x, weight, bias=None: w.fill(
        "F.linear(x, weight)" if bias is None else "F.linear(x, weight, bias)", x=x, weight=weight, bias=bias),
    "conv": _conv,
    "relu": "F.relu(x)",
    "silu": "F.silu(x)",
    "gelu": lambda w, x, approximate=False: w.fill(
        'F.gelu(x, approximate="tanh")' if approximate else "F.gelu(x)", x=x),
    "embedding": "F.embedding(indices, weight, padding_idx=padding)",
    **{f"jax_{name}": f"jax_{name}(key, shape)" for name in ("bits", "uniform", "normal", "split")},
    "jax_fold_in": "jax_fold_in(key, data)",
    "stop_gradient": "x.detach()",
    **{name: f"F.{torch}(x)" for name, torch in {
        "selu": "selu", "mish": "mish", "log_sigmoid": "logsigmoid", "relu6": "relu6", "hard_sigmoid": "hardsigmoid",
        "hard_silu": "hardswish"}.items()},
    "leaky_relu": "F.leaky_relu(x, negative_slope=slope)",
    "elu": "F.elu(x, alpha=alpha)",
    "conv_transpose": _conv_transpose,
    "resize": _resize,
    "max_pool": _pool("max"),
    "avg_pool": _pool("avg"),
    "layer_norm": _normalised("layer_norm", 1e-5),
    "rms_norm": _normalised("rms_norm", 0),
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "batch_norm_training": "batch_norm_training(x, mean, variance, weight, bias, momentum=momentum, eps=eps)",
    "cross_entropy": _cross_entropy,
    "dot_product_attention": _dot_product_attention,
    "dropout": lambda w, x, key, rate: w.fill(
        "F.dropout(x, rate)" if key is None else "dropout(x, key, rate)", x=x, key=key, rate=rate),
    "flatten": lambda w, x, start=0, end=-1: w.fill(
        "x.flatten(start, end)" if end != -1 else "x.flatten(start)" if start else "x.flatten()", x=x, start=start,
        end=end),
    "index": _index,
    "index_update": _index_update,
    "arange": worded.arange("torch.arange"),
    "einsum": worded.einsum("torch.einsum"),
    "split_key": lambda w, key: w((key, key)),
}  # fmt: skip

# ---- unsigned integers ----------------------------------------------------------------------------------------------

_UNSIGNED = (dtypes.uint16, dtypes.uint32)
_IN_INT64 = {
    **{name: f"x {sign} y" for name, sign in rules.INFIX.items()},
    "negative": "-x", "bitwise_invert": "~x", "bitwise_left_shift": "x << y", "bitwise_right_shift": "x >> y",
    "integer_floor_divide": "x // y", "floor_divide": "x // y", "remainder": "x % y", "fmod": "x % y",
    "square": "torch.square(x)", "clip": "x.clamp(min=low, max=high)", "maximum": "torch.maximum(x, y)",
    "minimum": "torch.minimum(x, y)",
}  # fmt: skip


def _through_int64(template: str, rule: Rule) -> Rule:
    """PyTorch has few kernels of unsigned integers of 16 and 32 bits: int64 has room for them, and what is more than
    they hold is lost on the way back."""

    def wide(w: Writing, **arguments: Any) -> ast.expr:
        if not any(v.dtype in _UNSIGNED for v in rules.arrays(arguments)):
            operands = rules.without_defaults(arguments)
            return w.fill(rule, **operands) if isinstance(rule, str) else rule(w, **arguments)
        expression = template
        if template.startswith("torch.m") and not all(isinstance(v, Var) for v in arguments.values()):
            x, y = sorted(arguments.values(), key=lambda v: not isinstance(v, Var))
            expression = f"x.clamp({'min' if 'maximum' in template else 'max'}=y)"
            arguments = {"x": x, "y": y}
        y = w.fill(
            expression, **{k: w.fill("x.long()", x=v) if isinstance(v, Var) else v for k, v in arguments.items()}
        )
        result_vars = w.call_outcome()
        return w.fill("y.to(dtype)", y=y, dtype=result_vars.dtype) if result_vars.dtype in _UNSIGNED else y

    return wide


for _name, _template in _IN_INT64.items():
    if _name in WORDS:
        WORDS[_name] = _through_int64(_template, WORDS[_name])

TARGET = Target(
    name="torch",
    imports={
        "Any": "from typing import Any",
        "Callable": "from collections.abc import Callable",
        "Sequence": "from collections.abc import Sequence",
        "math": "import math",
        "torch": "import torch",
        "F": "import torch.nn.functional as F",
    },
    words=WORDS,
    dtype=_dtype,
    array="torch.Tensor",
    constant="torch.tensor(x, dtype=dtype)",
    infinity="torch.inf",
    nan="torch.nan",
    helpers=helpers,
    title="PyTorch",
    runner="torch",
)
