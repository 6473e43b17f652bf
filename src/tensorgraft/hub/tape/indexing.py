"""Rules of gather, scatter and sort."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array


def _gather(xp: Any, y: Array, g: Array, x: Array, indices: Sequence[Array]) -> list[Any]:
    return [lambda: xp.scatter(xp.zeros_like(x), indices, g, mode="add"), *(None for _ in indices)]


def _scatter(
    xp: Any, y: Array, g: Array, x: Array, indices: Sequence[Array], updates: Array, mode: str = "set"
) -> list[Any]:
    gathered_shape = xp.shape(xp.gather(x, indices))  # to which the updates broadcast

    def to_updates(gathered: Array) -> Array:
        from tensorgraft.hub.tape.elementwise import unbroadcast

        return unbroadcast(xp, gathered, xp.shape(updates))

    def wide() -> Array:
        return xp.broadcast_to(updates, gathered_shape)

    def gradient_at_chosen(holds: Array, v: Array) -> Array:
        return xp.where(holds, v, xp.full((), 0, xp.dtype_of(v)))

    if mode == "set":

        def winners() -> Array:  # for equal indices, the update whose value was stored
            number = (
                xp.reshape(xp.iota(max(_size(gathered_shape), 1), dtypes.int64), gathered_shape)
                if _size(gathered_shape)
                else None
            )
            if number is None:
                return g
            placed = xp.scatter(xp.full(xp.shape(x), -1, dtypes.int64), indices, number)
            return gradient_at_chosen(xp.equal(xp.gather(placed, indices), number), xp.gather(g, indices))

        gx: Any = lambda: xp.scatter(g, indices, xp.zeros_like(updates))  # noqa: E731
        gu: Any = lambda: to_updates(winners())  # noqa: E731
    elif mode == "add":
        gx = lambda: g  # noqa: E731
        gu = lambda: to_updates(xp.gather(g, indices))  # noqa: E731
    elif mode == "multiply":
        gx = lambda: xp.scatter(g, indices, updates, mode="multiply")  # noqa: E731
        gu = lambda: to_updates(xp.divide(xp.gather(xp.multiply(g, y), indices), wide()))  # noqa: E731
    else:  # min, max: all that equal the result share the gradient

        def shares() -> tuple[Array, Array]:
            own_share = xp.astype(xp.equal(x, y), xp.dtype_of(g))
            update_share = xp.astype(xp.equal(wide(), xp.gather(y, indices)), xp.dtype_of(g))
            count = xp.scatter(own_share, indices, update_share, mode="add")
            return xp.divide(g, xp.where(xp.equal(count, 0.0), xp.ones_like(count), count)), update_share

        gx = lambda: xp.multiply(shares()[0], xp.astype(xp.equal(x, y), xp.dtype_of(g)))  # noqa: E731

        def gu() -> Array:
            share, update_share = shares()
            return to_updates(xp.multiply(xp.gather(share, indices), update_share))

    return [gx, *(None for _ in indices), gu]


def _size(shape: tuple[int, ...]) -> int:
    n = 1
    for extent in shape:
        n *= extent
    return n


def _sort(xp: Any, y: Any, g: Any, operands: Sequence[Array], axis: int = -1, num_keys: int = 1) -> list[Any]:
    """Differentiate a sort: it is stable, and positions that are sorted with the operands determine the source of each
    element."""
    shape = xp.shape(operands[0])
    at = axis % len(shape)
    positions = xp.reshape(xp.iota(shape[at], dtypes.int64), tuple(n if a == at else 1 for a, n in enumerate(shape)))
    came_from = xp.sort([*operands, xp.broadcast_to(positions, shape)], axis=axis, num_keys=num_keys)[-1]
    return [
        None if c is None else (lambda x=x, c=c: xp.put_along_axis(xp.zeros_like(x), came_from, c, at, mode="add"))
        for x, c in zip(operands, g, strict=True)
    ]


RULES: dict[str, Callable[..., Any]] = {"gather": _gather, "scatter": _scatter, "sort": _sort}
