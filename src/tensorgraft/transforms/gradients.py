"""`tg.grad` and its family: derivatives and batching of functions of Array API arrays, on every backend.

JAX and PyTorch transform programs themselves; on NumPy the hub's tape of primitives is used. In-place writes and views
are supported: a function may write its arguments, and arrays from outside, which are written when it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def grad(fn: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False) -> Callable[..., Any]:
    """Return the gradient of a function that returns a real 0-dimensional floating-point array.

    Arguments:
        fn: a function of pytrees of `tensorgraft.array_api` arrays.
        argnums: the numbers of the arguments; an int gives one gradient, several a tuple. Each has its argument's
            structure.
        has_aux: `fn` returns (value, anything); the result is (gradient, anything).

    Returns a function with the arguments of `fn`; a gradient has the shape and dtype of its argument. For complex
    arguments the convention is that of `jax.grad`.

    Raises TypeError for arguments that are not floating-point arrays, and for results that are not scalars; ValueError
    for `argnums` that the call does not have.

    >>> import tensorgraft as tg, tensorgraft.array_api as xp
    >>> tg.grad(lambda x: xp.sum(x * x))(xp.asarray([1.0, 2.0], device="numpy")).tolist()
    [2.0, 4.0]
    """
    from tensorgraft.frontends.array_api.transforms import gradients

    return gradients.grad(fn, argnums, has_aux=has_aux)


def value_and_grad(
    fn: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """Return (the result of `fn`, its gradient); arguments and exceptions are those of `grad`. Raises TypeError,
    ValueError.

    >>> import tensorgraft as tg, tensorgraft.array_api as xp
    >>> value, gradient = tg.value_and_grad(lambda x: xp.sum(x * x))(xp.asarray([1.0, 2.0], device="numpy"))
    >>> float(value), gradient.tolist()
    (5.0, [2.0, 4.0])
    """
    from tensorgraft.frontends.array_api.transforms import gradients

    return gradients.value_and_grad(fn, argnums, has_aux=has_aux)


def vjp(fn: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Return (the result of `fn(*primals)`, a function from cotangents of it to a tuple of cotangents of the primals).

    Cotangents have the shapes of the results, and are converted to their dtypes. Raises TypeError for primals that are
    not floating-point arrays, ValueError for cotangents of another structure than the result.
    """
    from tensorgraft.frontends.array_api.transforms import gradients

    return gradients.vjp(fn, *primals)


def jvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Return (the result of `fn(*primals)`, its tangent). Tangents have the shapes of the primals, and are converted to
    their dtypes.

    Raises TypeError for primals that are not floating-point arrays, ValueError for tangents of another structure.
    """
    from tensorgraft.frontends.array_api.transforms import gradients

    return gradients.jvp(fn, primals, tangents)


def vmap(fn: Callable[..., Any], in_axes: int | Sequence[int | None] = 0, out_axes: int = 0) -> Callable[..., Any]:
    """Apply `fn` to every slice of its arguments along an axis, and stack the results along `out_axes`.

    Arguments:
        in_axes: the axis of every argument's arrays, or one for each argument, None where it is not mapped.

    Raises ValueError where the extents differ, and where `fn` writes an array from outside.

    >>> import tensorgraft as tg, tensorgraft.array_api as xp
    >>> tg.vmap(xp.sum)(xp.asarray([[1.0, 2.0], [3.0, 4.0]], device="numpy")).tolist()
    [3.0, 7.0]
    """
    from tensorgraft.frontends.array_api.transforms import gradients

    return gradients.vmap(fn, in_axes, out_axes)


def jacobian(fn: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of each result with respect to each argument named: an array of the
    result's shape, then the argument's, in the dtype of the argument.

    Raises TypeError for arguments or results that are not floating-point arrays.
    """
    from tensorgraft.frontends.array_api.transforms import gradients

    return gradients.jacobian(fn, argnums)


def hessian(fn: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Return the second derivatives of a function that returns a real scalar: the jacobian of its gradient, of the
    shape of the argument twice. Raises TypeError as `grad` does."""
    from tensorgraft.frontends.array_api.transforms import gradients

    return gradients.hessian(fn, argnums)
