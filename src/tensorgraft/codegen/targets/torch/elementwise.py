"""Elementwise operations in PyTorch."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from tensorgraft.codegen.targets import Rule, Var, Writing, rules
from tensorgraft.codegen.targets.torch.common import NARROW_FLOATS
from tensorgraft.hub import dtypes


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
        if x.dtype == bool:  # PyTorch cannot clamp booleans
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
        return w.fill("x ** torch.tensor(y)", x=x, y=y)  # PyTorch refuses numbers here
    return w.fill("x ** y", x=x, y=y)


def _in_float32(template: str, kinds: Any = NARROW_FLOATS) -> Rule:
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
    if isinstance(real, Var) and isinstance(imag, Var) and rules.equal_sizes(real.shape, imag.shape):
        return w.fill("torch.complex(real, imag)", real=real, imag=imag)
    return w.fill("torch.complex(*torch.broadcast_tensors(real, imag))", real=real, imag=imag)


def _softplus(w: Writing, x: Var) -> ast.expr:
    if x.dtype == dtypes.float64:  # beyond 20, F.softplus is x
        return w.fill("torch.logaddexp(x, torch.zeros_like(x))", x=x)
    return w.fill("F.softplus(x)", x=x)


_UNSIGNED = (dtypes.uint16, dtypes.uint32)
_IN_INT64 = {
    **{name: f"x {sign} y" for name, sign in rules.INFIX.items()},
    "negative": "-x", "bitwise_invert": "~x", "bitwise_left_shift": "x << y", "bitwise_right_shift": "x >> y",
    "integer_floor_divide": "x // y", "floor_divide": "x // y", "remainder": "x % y", "fmod": "x % y",
    "square": "torch.square(x)", "clip": "x.clamp(min=low, max=high)", "maximum": "torch.maximum(x, y)",
    "minimum": "torch.minimum(x, y)",
}  # fmt: skip


def _through_int64(template: str, rule: Rule) -> Rule:
    """Compute unsigned integers of 16 and 32 bits in int64, because PyTorch has few kernels for them; the conversion
    back wraps."""

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


RULES: dict[str, Rule] = {
    **rules.infix(),
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
}  # fmt: skip

for _name, _template in _IN_INT64.items():
    if _name in RULES:
        RULES[_name] = _through_int64(_template, RULES[_name])
