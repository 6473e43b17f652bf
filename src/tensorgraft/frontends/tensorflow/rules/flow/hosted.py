"""Operations that the host computes, because the shapes of their results depend on values, or their data are no
arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.tensorflow.graph import GraphNode
from tensorgraft.frontends.tensorflow.values import is_known
from tensorgraft.hub.abstract import ShapeDtype
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


def arrays_among(operands: Sequence[Any]) -> list[Array]:
    return [x for x in operands if not is_known(x)]


def on_the_host(xp: Backend, x: Any) -> np.ndarray:
    return np.asarray(x) if is_known(x) else xp.to_numpy(x)


def specs_of(node: GraphNode) -> list[ShapeDtype] | None:
    """Return the shapes and dtypes of a node's results; None where one of them is not known before it is computed."""
    specs = []
    for shape, dtype in zip(node.shapes, node.dtypes, strict=True):
        if shape is None or None in shape or dtype is None or dtype.kind in "OSU":
            return None
        specs.append(ShapeDtype(tuple(n for n in shape if n is not None), dtype))
    return specs


def by_host(
    xp: Backend,
    node: GraphNode,
    fn: Callable[..., Sequence[np.ndarray]],
    operands: Sequence[Any],
    specs: Sequence[ShapeDtype] | None,
) -> list[Any]:
    """Compute `fn` of the operands' values, now or when the traced program runs. Results are arrays of the backend."""
    if any(map(xp.is_traced, arrays_among(operands))):
        return call_host(xp, node, fn, operands, specs)
    return [xp.asarray(np.asarray(x)) for x in fn(*(on_the_host(xp, x) for x in operands))]


def call_host(
    xp: Backend,
    node: GraphNode,
    fn: Callable[..., Sequence[np.ndarray]],
    operands: Sequence[Any],
    specs: Sequence[ShapeDtype] | None,
) -> list[Array]:
    """Call `fn` of the operands' values on the host, whenever the traced program runs. Raises TracedValueError where
    programs of the backend cannot, or where shapes of results depend on values (`specs` is None)."""
    if specs is None:
        raise TracedValueError(
            f"{node.op} is computed on the host and returns an array whose shape depends on values, but its"
            " operands are being traced: call the program without compiling it"
        )
    if type(xp).host_call is Backend.host_call:
        raise TracedValueError(
            f"{node.op} is computed on the host, which a compiled program on {xp.name} cannot call: call the"
            " program without compiling it"
        )

    def on_arrays(*values: np.ndarray) -> list[np.ndarray]:
        remaining = iter(values)
        results = fn(*(np.asarray(x) if is_known(x) else next(remaining) for x in operands))
        return [np.asarray(x, s.dtype).reshape(s.shape) for x, s in zip(results, specs, strict=True)]

    return xp.host_call(on_arrays, arrays_among(operands), specs)
