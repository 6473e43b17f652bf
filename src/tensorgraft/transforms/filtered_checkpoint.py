"""`filter_checkpoint`: derivatives that recompute intermediate results instead of saving them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import optree

from tensorgraft.transforms.wrapper import WrappedFunction, adopted


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)


class _Checkpoint(WrappedFunction):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from tensorgraft.frontends.array_api.transforms import custom

        call = adopted((self.fn, args, kwargs))
        cells = custom.cells_of(lambda: _call(*call), call)

        def backward(call: Any, out: Any, cotangent: Any) -> Any:
            with _as_new_values(call, cells, cotangent) as new_call:
                return custom.cotangents_of(_call, new_call, cotangent, cells)

        def forward(call: Any, out: Any, tangents: Sequence[Any], of_cells: Sequence[Any]) -> Any:
            return custom.tangent_of(_call, call, tangents, cells, of_cells)

        return custom.custom_vjp("filter_checkpoint", _call, call, backward, forward, cells)


@contextlib.contextmanager
def _as_new_values(call: Any, cells: Sequence[Any], cotangent: Any) -> Iterator[Any]:
    """Return the arguments, and the values of captured variables, behind a barrier: a compiler would otherwise find
    that all results were computed before, and keep them."""
    from tensorgraft.frontends.array_api.core.array import Array
    from tensorgraft.storage import Storage

    last = next((x for x in optree.tree_leaves(cotangent) if isinstance(x, Array)), None)
    if last is None:
        yield call
        return

    def other(cell: Any, value: Any) -> Any:
        xp = cell.backend
        return xp.optimization_barrier(value, last._value()) if xp is last._cell.backend else value

    before = [cell.array for cell in cells]
    for cell in cells:
        cell.array = other(cell, cell.array)
    try:
        yield optree.tree_map(
            lambda x: Array(Storage(other(x._cell, x._value()), x._cell.backend)) if isinstance(x, Array) else x, call
        )
    finally:
        for cell, array in zip(cells, before, strict=True):
            cell.array = array


def filter_checkpoint(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fn` with a derivative that keeps only the arguments and recomputes everything else (Griewank and Walther
    2000, and Chen et al. 2016, arXiv 1604.06174), which saves memory at the cost of one more call.

        def block(layer, x):
            return filter_checkpoint(layer)(x)

    Arguments and results are pytrees with leaves of any kind; arrays that the function contains or reads from outside
    have derivatives, too. Inside `tg.grad` and its family it is called once more, to determine what it reads.

    Raises ValueError, in a derivative, if `fn` writes an array from outside.
    """
    return _Checkpoint(fn)
