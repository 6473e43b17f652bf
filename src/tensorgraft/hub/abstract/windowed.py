"""Rules of convolution and windowed reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorgraft.hub.abstract.array import ShapeDtype, check, check_kinds
from tensorgraft.hub.operations.windowed import window_count

Ints = tuple[int, ...]
Pads = Sequence[tuple[int, int]]


def _dilated_extent(n: int, dilation: int) -> int:
    """Return the extent of an axis of `n` elements with `dilation - 1` zeros between them."""
    return (n - 1) * dilation + 1 if n else 0


def convolution(
    op: str,
    x: ShapeDtype,
    w: ShapeDtype,
    strides: Ints,
    padding: Pads,
    lhs_dilation: Ints,
    rhs_dilation: Ints,
    groups: int = 1,
    batch_groups: int = 1,
) -> ShapeDtype:
    check_kinds(op, "bifc", x, w)
    arguments = (x, w, strides, padding, lhs_dilation, rhs_dilation, groups, batch_groups)
    spatial = w.ndim - 2
    settings = (strides, padding, lhs_dilation, rhs_dilation)
    check(
        x.ndim == w.ndim >= 2 and all(len(s) == spatial for s in settings),
        op,
        arguments,
        "x (N, C, spatial...), w (O, C / groups, spatial...) and one setting a spatial axis",
    )
    positive = all(n >= 1 for s in (strides, lhs_dilation, rhs_dilation, (groups, batch_groups)) for n in s)
    check(positive, op, arguments, "strides, dilations and groups of at least 1")
    check(1 in (groups, batch_groups), op, arguments, "groups of the channels or of the batch, not both")
    check(x.shape[1] == groups * w.shape[1], op, arguments, f"{x.shape[1]} channels to be groups x {w.shape[1]}")
    check(w.shape[0] % (groups * batch_groups) == 0, op, arguments, "output channels that the groups divide")
    check(x.shape[0] % batch_groups == 0, op, arguments, "a batch that the batch groups divide")
    extents = [_dilated_extent(n, d) + sum(p) for n, d, p in zip(x.shape[2:], lhs_dilation, padding, strict=True)]
    check(all(n >= 0 for n in extents), op, arguments, "no more to be cut off than there is")
    out = map(window_count, extents, w.shape[2:], strides, rhs_dilation)
    return x.like(x.shape[0] // batch_groups, w.shape[0], *out)


def reduce_window(
    op: str, x: ShapeDtype, kind: str, window: Ints, strides: Ints, padding: Pads, window_dilation: Ints
) -> ShapeDtype:
    kinds = {"sum": "ifc", "max": "if", "min": "if"}
    arguments = (x, kind, window, strides, padding, window_dilation)
    check(kind in kinds, op, arguments, "a kind of sum, max, min")
    check_kinds(f"{op} {kind}", kinds[kind], x)
    settings = (window, strides, padding, window_dilation)
    check(all(len(s) == x.ndim for s in settings), op, arguments, "one setting an axis")
    positive = all(n >= 1 for s in (window, strides, window_dilation) for n in s)
    check(positive, op, arguments, "windows, strides and dilations of at least 1")
    extents = [n + sum(p) for n, p in zip(x.shape, padding, strict=True)]
    check(all(n >= 0 for n in extents), op, arguments, "no more to be cut off than there is")
    return x.like(*map(window_count, extents, window, strides, window_dilation))


RULES: dict[str, Callable[..., Any]] = {"convolution": convolution, "reduce_window": reduce_window}
