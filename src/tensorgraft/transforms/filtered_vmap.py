"""`filter_vmap`: batches of functions of any pytrees."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import optree

from tensorgraft.arrays import is_array
from tensorgraft.transforms.gradients import vmap
from tensorgraft.transforms.module import field
from tensorgraft.transforms.wrapper import WrappedFunction, adopted, name_of


def if_array(axis: int) -> Callable[[Any], int | None]:
    """Return a specification: `axis` for arrays, and None for everything else."""
    return _IfArray(axis)


class _IfArray:
    def __init__(self, axis: int) -> None:
        self.axis = axis

    def __call__(self, x: Any) -> int | None:
        return self.axis if is_array(x) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IfArray) and other.axis == self.axis

    def __hash__(self) -> int:
        return hash(("if_array", self.axis))

    def __repr__(self) -> str:
        return f"if_array({self.axis})"


def _axes(name: str, spec: Any, tree: Any) -> list[int | None]:
    """Return the axis of each leaf of a tree, of which the specification is a prefix."""
    axes: list[int | None] = []

    def below(axis: Any, part: Any) -> None:
        for x in optree.tree_leaves(part):
            a = axis(x) if callable(axis) else axis
            if a is not None and not isinstance(a, int):
                raise TypeError(
                    f"filter_vmap: {name} must consist of ints, None and functions that return them, got {a!r}"
                )
            if a is not None and not is_array(x):
                raise TypeError(f"filter_vmap: {name} is {a} for a {type(x).__qualname__}, which has no axes")
            axes.append(a)

    try:
        optree.tree_map_(below, spec, tree, is_leaf=lambda x: x is None)
    except ValueError as error:
        raise ValueError(f"filter_vmap: {name} is not a prefix of the structure that it applies to: {error}") from None
    return axes


class _Vmap(WrappedFunction):
    in_axes: Any = field(static=True)
    out_axes: Any = field(static=True)
    axis_size: int | None = field(static=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import tensorgraft.array_api as xp

        if kwargs:
            bound = inspect.signature(self.fn).bind(*args, **kwargs)
            if bound.kwargs:
                raise TypeError(
                    f"filter_vmap of {name_of(self.fn)}: pass arguments by position, since in_axes has no names"
                )
            args = bound.args
        leaves: list[Any]
        leaves, structure = optree.tree_flatten(adopted(args))
        spec = self.in_axes if not isinstance(self.in_axes, list) else tuple(self.in_axes)
        axes = _axes("in_axes", spec, optree.tree_unflatten(structure, leaves))
        mapped = [k for k, a in enumerate(axes) if a is not None]

        def run(*slices: Any) -> Any:
            new_leaves = list(leaves)
            for k, x in zip(mapped, slices, strict=True):
                new_leaves[k] = x
            return self.fn(*optree.tree_unflatten(structure, new_leaves))

        if mapped:
            n = leaves[mapped[0]].shape[axes[mapped[0]]]
            if self.axis_size is not None and self.axis_size != n:
                raise ValueError(f"filter_vmap: axis_size is {self.axis_size}, but the mapped axes have {n} elements")
            out = vmap(run, in_axes=[axes[k] for k in mapped])(*(leaves[k] for k in mapped))
        elif self.axis_size is None:
            raise ValueError("filter_vmap: no argument is mapped: pass axis_size=")
        else:
            size = self.axis_size
            out = optree.tree_map(
                lambda x: xp.broadcast_to(x, (size, *x.shape)) + 0 if is_array(x) else x, adopted(run())
            )
        results, out_structure = optree.tree_flatten(out)
        out_axes_of = _axes("out_axes", self.out_axes, out)
        for k, (x, axis) in enumerate(zip(results, out_axes_of, strict=True)):
            if is_array(x) and axis is None:
                raise ValueError(
                    "filter_vmap: out_axes is None for an array that differs between slices: specify an axis, or"
                    f" return an array from outside of {name_of(self.fn)}"
                )
            if axis:
                results[k] = xp.moveaxis(x, 0, axis)
        return optree.tree_unflatten(out_structure, results)


def filter_vmap(
    fn: Callable[..., Any] | None = None,
    *,
    in_axes: Any = if_array(0),  # noqa: B008  (an immutable value)
    out_axes: Any = if_array(0),  # noqa: B008
    axis_size: int | None = None,
) -> Any:
    """Apply `fn` to every slice of its arguments, and stack the results.

        ensemble = filter_vmap(lambda key: nn.MLP(2, 1, 8, 2, key=key))(tg.random.split(key, 10))
        filter_vmap(lambda model, x: model(x), in_axes=(if_array(0), None))(ensemble, x)

    Arguments:
        in_axes: a prefix of the tuple of arguments, whose leaves are axes, None for arguments that are the same for
            every slice, and functions (leaf -> axis or None). By default arrays are mapped along their first axis.
        out_axes: the position of the new axis, as a prefix of the result. Leaves that are not arrays are returned
            unchanged.
        axis_size: the number of slices, if no argument is mapped.

    Raises ValueError if extents differ, nothing is mapped, or an array of the result has no axis; TypeError for an axis
    of a leaf that has none.
    """
    if fn is None:
        return lambda fn: filter_vmap(fn, in_axes=in_axes, out_axes=out_axes, axis_size=axis_size)
    return _Vmap(fn, in_axes, out_axes, axis_size)
