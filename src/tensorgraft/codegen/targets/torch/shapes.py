"""Creation, shapes and padding in PyTorch."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from tensorgraft.codegen.targets import Rule, Var, Writing, rules, shared_words
from tensorgraft.codegen.targets.torch.common import unless_float32, zeros_or_ones
from tensorgraft.codegen.targets.torch.indexing import index_argument
from tensorgraft.hub import dtypes


def _full(w: Writing, shape: Any, value: Any, dtype: np.dtype) -> ast.expr:
    if isinstance(value, Var):
        same_dtype = value.dtype == dtype
        return rules.unpacked(w.fill("x.expand(shape)", x=value if same_dtype else w.fill("x.to(t)", x=value, t=dtype),
                                     shape=tuple(shape)))  # fmt: skip
    if rules.is_plain_zero_or_one(value):
        name = "ones" if value else "zeros"
        return w.fill(f"torch.{name}(shape, dtype=dtype)", shape=shape, dtype=unless_float32(dtype))
    return w.fill("torch.full(shape, value, dtype=dtype)", shape=shape, value=value, dtype=dtype)


def _full_like(w: Writing, x: Var, value: Any) -> ast.expr:
    return w.fill("value.expand_as(x)" if isinstance(value, Var) else "torch.full_like(x, value)", x=x, value=value)


def _iota(w: Writing, n: Any, dtype: np.dtype) -> ast.expr:
    if dtype in (dtypes.uint16, dtypes.uint32):
        return w.fill("torch.arange(n).to(dtype)", n=n, dtype=dtype)
    return w.fill("torch.arange(n, dtype=dtype)", n=n, dtype=None if dtype == dtypes.int64 else dtype)


def _eye(w: Writing, n: Any, m: Any, dtype: np.dtype, k: int = 0) -> ast.expr:
    if k:
        return w.fill("(torch.arange(n)[:, None] + k == torch.arange(m)).to(dtype)", n=n, m=m, k=k, dtype=dtype)
    template = "torch.eye(n, dtype=dtype)" if rules.equal_sizes(n, m) else "torch.eye(n, m, dtype=dtype)"
    return w.fill(template, n=n, m=m, dtype=unless_float32(dtype))


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
    while pairs and rules.equal_sizes(pairs[0], (0, 0)):
        pairs.pop(0)
    return tuple(p for pair in reversed(pairs) for p in pair)


def pad(w: Writing, x: Var, value: Any, config: Any) -> ast.expr:
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
    return w.fill("updated(x, index, update)", x=x, index=index_argument(w, index), update=update)


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


RULES: dict[str, Rule] = {
    "full": _full,
    "zeros": zeros_or_ones("zeros"),
    "ones": zeros_or_ones("ones"),
    "zeros_like": "torch.zeros_like(x)",
    "ones_like": "torch.ones_like(x)",
    "full_like": _full_like,
    "iota": _iota,
    "eye": _eye,
    "reshape": rules.unpacked_arguments("x.reshape(shape)"),
    "permute_dims": _permute_dims,
    "matrix_transpose": rules.matrix_transpose,
    "broadcast_to": rules.unpacked_arguments("x.expand(shape)"),
    "concat": "torch.cat(arrays, dim=axis)",
    "stack": "torch.stack(arrays, dim=axis)",
    "pad": pad,
    "slice": rules.slice_,
    "take_slice": rules.take_slice,
    "slice_update": _slice_update,
    "flip": "torch.flip(x, axes)",
    "dynamic_slice": shared_words.dynamic_slice,
    "dynamic_update_slice": shared_words.dynamic_update_slice,
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
    "tile": rules.unpacked_arguments("x.repeat(repeats)"),
    "tril": _tri("tril"),
    "triu": _tri("triu"),
    "triangle_mask": _triangle_mask,
    "diagonal": "x.diagonal(offset=offset, dim1=-2, dim2=-1)",
    "arange": shared_words.arange("torch.arange"),
}  # fmt: skip
