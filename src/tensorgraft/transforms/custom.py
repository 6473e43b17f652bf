"""`custom_vjp`: functions whose derivative is a rule, on every backend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def custom_vjp(fn: Callable[..., Any], backward: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    """Return `fn` with a derivative given by a rule; loops, branches and searches in it are then not differentiated.

    ```python
    def root(a):  # by Newton's method
        x = xp.ones_like(a)
        while xp.max(xp.abs(x * x - a)) > 1e-12:
            x = (x + a / x) / 2
        return x

    sqrt = custom_vjp(root, lambda args, x, g: (g / (2 * x),))
    tg.grad(lambda a: xp.sum(sqrt(a)))(a)
    ```

    Derivatives of any order, forward (`tg.jvp`, the transpose of the rule) and reverse, are those of the rule, which
    may call the function itself. Inside `tg.grad` and its family `fn` is called once more, to determine which arrays it
    reads from outside: these count as constants.

    Arguments:
        fn: a function from pytrees of arrays to a pytree of arrays, which writes no arrays from outside.
        backward: (the tuple of arguments, the result, a cotangent of the result's structure) -> a tuple with a
            cotangent of each argument's structure, or None for zeros. It is linear in the cotangent, in JAX's
            convention: for complex numbers it is the transpose, not the adjoint.

    Raises TypeError and ValueError, from a derivative, if the rule does not return a cotangent of the right structure
    for each argument.
    """

    @functools.wraps(fn)
    def wrapped(*args: Any) -> Any:
        from tensorgraft.frontends.array_api.transforms import custom

        cells = custom.cells_of(lambda: fn(*args), args, by_value=True)

        def rule(residuals: tuple[Any, ...], out: Any, cotangent: Any) -> list[Any]:
            return [*_flat(fn, backward(residuals, out, cotangent), residuals), *[None] * len(cells)]

        return custom.custom_vjp(_name(fn), fn, args, rule, None, cells)

    return wrapped


def _flat(fn: Any, cotangents: Any, arguments: tuple[Any, ...]) -> list[Any]:
    """Return the cotangents of the arrays among the arguments in order. Raises TypeError and ValueError if a rule has
    returned others."""
    import optree

    from tensorgraft.frontends.array_api import Array

    if not isinstance(cotangents, tuple | list) or len(cotangents) != len(arguments):
        is_sequence = isinstance(cotangents, tuple | list)
        description = f"{len(cotangents)}" if is_sequence else f"a {type(cotangents).__qualname__}"
        raise TypeError(
            f"custom_vjp: the rule of {_name(fn)} must return a tuple of cotangents, one for each of the"
            f" {len(arguments)} arguments, got {description}"
        )
    flat: list[Any] = []
    for k, (g, x) in enumerate(zip(cotangents, arguments, strict=True)):
        leaves, structure = optree.tree_flatten(x)
        try:
            parts = [None] * len(leaves) if g is None else structure.flatten_up_to(g)
        except ValueError as error:
            raise ValueError(
                f"custom_vjp: the cotangent of argument {k} of {_name(fn)} does not have its structure: {error}"
            ) from None
        for part, leaf in zip(parts, leaves, strict=True):
            if not isinstance(leaf, Array):
                continue
            if part is not None and (not isinstance(part, Array) or part.shape != leaf.shape):
                description = f"one of shape {part.shape}" if isinstance(part, Array) else repr(part)
                raise ValueError(
                    f"custom_vjp: the cotangent of argument {k} of {_name(fn)} must have its shape {leaf.shape},"
                    f" got {description}"
                )
            flat.append(part)
    return flat


def _name(fn: Any) -> str:
    return getattr(fn, "__qualname__", type(fn).__qualname__)
