"""Rules shared by NumPy and libraries that go by its names (`jax.numpy`)."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from tensorgraft.codegen.targets import Rule, Var, Writing, rules
from tensorgraft.hub import dtypes

_TEMPLATES: dict[str, str] = {
    **{name: f"np.{name}(x)" for name in rules.UNARY},
    **{name: f"np.{numpy}(x)" for name, numpy in rules.NUMPY_NAMES.items()},
    "round": "np.round(x)",
    "negative": "-x",
    "bitwise_invert": "~x",
    "logical_not": "~x",
    "real": "x.real",
    "imag": "x.imag",
    "conj": "x.conj()",
    "integer_floor_divide": "x // y",
    "mean": "np.mean(x, axis=axis, keepdims=keepdims)",
    "var": "np.var(x, axis=axis, keepdims=keepdims, ddof=correction)",
    "any": "np.any(x, axis=axis, keepdims=keepdims)",
    "all": "np.all(x, axis=axis, keepdims=keepdims)",
    "argmax": "np.argmax(x, axis=axis, keepdims=keepdims)",
    "argmin": "np.argmin(x, axis=axis, keepdims=keepdims)",
    "zeros": "np.zeros(shape, dtype=dtype)",
    "ones": "np.ones(shape, dtype=dtype)",
    "broadcast_to": "np.broadcast_to(x, shape)",
    "concat": "np.concatenate(arrays, axis=axis)",
    "stack": "np.stack(arrays, axis=axis)",
    "zeros_like": "np.zeros_like(x)",
    "ones_like": "np.ones_like(x)",
    "full_like": "np.full_like(x, value)",
    "flip": "np.flip(x, axis=axes)",
    "squeeze": "x.squeeze(axes)",
    "moveaxis": "np.moveaxis(x, source, target)",
    "swapaxes": "x.swapaxes(a, b)",
    "unstack": "np.unstack(x, axis=axis)",
    "roll": "np.roll(x, shift, axis=axis)",
    "tile": "np.tile(x, repeats)",
    "repeat": "np.repeat(x, times, axis=axis)",
    "diagonal": "np.diagonal(x, offset=offset, axis1=-2, axis2=-1)",
    "nonzero": "np.nonzero(x)",
    "solve": "np.linalg.solve(a, b)",
    "inv": "np.linalg.inv(x)",
    "svdvals": "np.linalg.svdvals(x)",
    "fft": "np.fft.fft(x, axis=axis)",
    "ifft": "np.fft.ifft(x, axis=axis)",
    "rfft": "np.fft.rfft(x, axis=axis)",
    "irfft": "np.fft.irfft(x, n, axis=axis)",
}
BINARY = {
    "fmod": "np.fmod(x, y)",
    "atan2": "np.arctan2(x, y)",
    **{name: f"np.{name}(x, y)" for name in ("nextafter", "maximum", "minimum", "copysign", "hypot", "logaddexp")},
    "bitwise_left_shift": "x << y",
    "bitwise_right_shift": "x >> y",
    "floor_divide": "x // y",
    "where": "np.where(condition, x, y)",
    "clip": "np.clip(x, low, high)",
    "reciprocal": "1 / x",
}


def rules_of(module: str) -> dict[str, Rule]:
    """Return the rules for a module that is imported under this name ("np", "jnp")."""
    module_rules = _Rules(module)
    return {
        **rules.infix(),
        **{name: module_rules.named(template) for name, template in {**_TEMPLATES, **BINARY}.items()},
        "pad_reflect": rules.pad(module_rules.named("np.pad(x, widths, mode='reflect')")),
        "pad_edge": rules.pad(module_rules.named("np.pad(x, widths, mode='edge')")),
        "max": module_rules.extreme("max", dtypes.lowest),
        "min": module_rules.extreme("min", dtypes.highest),
        "full": module_rules.full,
        "iota": module_rules.iota,
        "eye": module_rules.eye,
        "permute_dims": permute_dims,
        "reshape": rules.unpacked_arguments("x.reshape(shape)"),
        "matrix_transpose": rules.matrix_transpose,
        "expand_dims": rules.expand_dims(module_rules.named("np.expand_dims(x, axis)")),
        "slice": rules.slice_,
        "take_slice": rules.take_slice,
        "getitem": rules.getitem,
        "split": module_rules.split,
        "tril": module_rules.triangle("tril"),
        "triu": module_rules.triangle("triu"),
        "triangle_mask": module_rules.triangle_mask,
        "gather": rules.gather,
        "take": module_rules.take,
        "take_along_axis": module_rules.take_along_axis,
        "linear": linear,
        "embedding": lambda w, weight, indices, padding=None: rules.indexed(w, weight, [indices]),
        "constrain": lambda w, x, placement: w(x),
    }


class _Rules:
    """Rules that depend on arguments, for a module that is called so."""

    def __init__(self, module: str) -> None:
        self._module = module

    def named(self, template: str) -> str:
        return template.replace("np.", f"{self._module}.")

    def extreme(self, name: str, identity: Any) -> Rule:
        def rule(w: Writing, x: Var, axis: Any = None, keepdims: bool = False) -> ast.expr:
            initial = identity(x.dtype) if rules.is_empty(x) else None
            return w.fill(
                f"{self._module}.{name}(x, axis=axis, keepdims=keepdims, initial=initial)",
                x=x, axis=axis, keepdims=keepdims or None, initial=initial,
            )  # fmt: skip

        return rule

    def full(self, w: Writing, shape: Any, value: Any, dtype: np.dtype) -> ast.expr:
        if not isinstance(value, Var) and rules.is_plain_zero_or_one(value):
            return w.fill(
                self.named(f"np.{'ones' if value else 'zeros'}(shape, dtype=dtype)"), shape=shape, dtype=dtype
            )
        return w.fill(self.named("np.full(shape, value, dtype=dtype)"), shape=shape, value=value, dtype=dtype)

    def iota(self, w: Writing, n: Any, dtype: np.dtype) -> ast.expr:
        return w.fill(self.named("np.arange(n, dtype=dtype)"), n=n, dtype=None if dtype == dtypes.int64 else dtype)

    def eye(self, w: Writing, n: Any, m: Any, dtype: np.dtype, k: int = 0) -> ast.expr:
        template = "np.eye(n, k=k, dtype=dtype)" if rules.equal_sizes(n, m) else "np.eye(n, m, k=k, dtype=dtype)"
        return w.fill(self.named(template), n=n, m=m, k=k or None, dtype=dtype)

    def split(self, w: Writing, x: Var, sizes: Any, axis: int = 0) -> ast.expr:
        even, ends, rest = rules.sizes_of_split(x, sizes, axis)
        at = len(sizes) if even else tuple(ends)
        parts = w.fill(self.named("np.split(x, ends, axis=axis)"), x=x, ends=at, axis=axis or None)
        return w.fill("pieces[:-1]", pieces=parts) if rest else parts

    def triangle(self, name: str) -> Rule:
        def rule(w: Writing, x: Var, k: Any = 0) -> ast.expr:
            if not isinstance(k, Var):
                return w.fill(self.named(f"np.{name}(x, k=k)"), x=x, k=k or None)
            mask = "np.arange(n)[:, None] + k {} np.arange(m)".format(">=" if name == "tril" else "<=")
            template = self.named(f"np.where({mask}, x, np.zeros_like(x))")
            return w.fill(template, x=x, n=x.shape[-2], m=x.shape[-1], k=k)

        return rule

    def triangle_mask(self, w: Writing, n: Any, m: Any, k: Any = 0) -> ast.expr:
        if isinstance(k, Var):
            return w.fill(self.named("np.arange(n)[:, None] + k >= np.arange(m)"), n=n, m=m, k=k)
        template = "np.tri(n, k=k, dtype=bool)" if rules.equal_sizes(n, m) else "np.tri(n, m, k=k, dtype=bool)"
        return w.fill(self.named(template), n=n, m=m, k=k or None)

    def take(self, w: Writing, x: Var, indices: Any, axis: int) -> ast.expr:
        axis %= x.ndim
        if axis == 0:
            return rules.indexed(w, x, [indices])
        return w.fill(self.named("np.take(x, indices, axis=axis)"), x=x, indices=indices, axis=axis)

    def take_along_axis(self, w: Writing, x: Var, indices: Var, axis: int) -> ast.expr:
        if not x.ndim:
            return w.fill(self.named("np.broadcast_to(x, indices.shape)"), x=x, indices=indices)
        part = rules.indexed(w, x, rules.part_as_long(x, indices, axis))
        return w.fill(self.named("np.take_along_axis(x, indices, axis=axis)"), x=part, indices=indices, axis=axis)


def permute_dims(w: Writing, x: Var, axes: Any) -> ast.expr:
    if tuple(axes) == (1, 0):
        return w.fill("x.T", x=x)
    return rules.unpacked(w.fill("x.transpose(axes)", x=x, axes=tuple(axes)))


def linear(w: Writing, x: Any, weight: Any, bias: Any = None) -> ast.expr:
    return w.fill("x @ weight.T" if bias is None else "x @ weight.T + bias", x=x, weight=weight, bias=bias)
