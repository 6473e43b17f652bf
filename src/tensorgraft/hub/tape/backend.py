"""`Taping`: a backend that computes on another one, and records how each result was computed.

Conventions are JAX's: a cotangent is transposed, not conjugated; equal maxima share the gradient equally.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.placement import Placement
from tensorgraft.hub.tape import elementwise, indexing, linalg, reduction, shape, windowed
from tensorgraft.hub.wrapper import Wrapper

Thunk = Callable[[], Array] | None  # the cotangent of an operand, None where it is zero

RULES: dict[str, Callable[..., Any]] = {}
for _area in (elementwise, reduction, shape, indexing, linalg, windowed):
    RULES.update(_area.RULES)


class Variable:
    """A value, and how it was computed: `pull(cotangents of the results)` gives thunks, one an operand."""

    __slots__ = ("node", "number", "tracked", "value")

    def __init__(self, value: Array, node: TapeNode | None = None, number: int = 0, tracked: bool = False) -> None:
        self.value = value
        self.node = node
        self.number = number  # the number of the node's result
        self.tracked = tracked or node is not None

    @property
    def shape(self) -> Any:
        return self.value.shape

    @property
    def dtype(self) -> Any:
        return self.value.dtype


class TapeNode:
    """A primitive that was applied to variables."""

    __slots__ = ("operands", "pull", "results")

    def __init__(self, operands: list[Any], pull: Callable[[list[Any]], Sequence[Thunk]], results: int) -> None:
        self.operands = operands  # Variables, and None for the others
        self.pull = pull
        self.results = results


_TREES = frozenset({tuple, list, dict})
_BY_VALUE = frozenset({"cond", "while_loop", "scan"})


def _operation(name: str, declared: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return a method that records a primitive on the tape; composites are the hub's, in terms of primitives."""
    if name in _BY_VALUE or not getattr(declared, "is_primitive", False):
        return None
    return lambda self, *args, **kwargs: self.apply(name, args, kwargs)


class _Operations(Wrapper, operation=_operation):
    pass


def _identity(x: Array) -> Array:
    return x


class Taping(_Operations):
    """A backend whose arrays are `Variable`s. Composites are the hub's, so that only primitives need rules.

    `double`: the tape is on one that was made with it (forward derivatives), and what is lifted goes through both.
    """

    def __init__(self, inner: Backend, double: bool = False) -> None:
        super().__init__(inner)
        self.double = double

    def apply(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute a primitive on values. If an operand is tracked and a result is inexact, its rule is recorded."""
        leaves: Sequence[Any] = args
        if kwargs or any(type(x) in _TREES for x in args):
            call: Any = (args, kwargs)
            leaves, structure = optree.tree_flatten(call)
            values = [x.value if type(x) is Variable else x for x in leaves]
            plain_args, plain_kwargs = optree.tree_unflatten(structure, values)
        else:
            plain_args, plain_kwargs = tuple([x.value if type(x) is Variable else x for x in args]), {}
        result = getattr(self.inner, name)(*plain_args, **plain_kwargs)
        is_tuple = isinstance(result, tuple)
        results = list(result) if is_tuple else [result]
        tracked = any(type(x) is Variable and x.tracked for x in leaves)
        node = None
        if tracked and any(dtypes.is_inexact(self.inner.dtype_of(r)) for r in results):
            rule = RULES.get(name)
            if rule is None:
                raise NotImplementedError(f"{name} has no derivative on the backend {self.name}")
            operands = [x if type(x) is Variable and x.tracked else None for x in leaves if self._operand(x)]
            xp = self.inner
            node = TapeNode(operands, lambda g: rule(xp, result, g if is_tuple else g[0], *plain_args, **plain_kwargs),
                        len(results))  # fmt: skip
        out = [Variable(r, node if node is not None and dtypes.is_inexact(self.inner.dtype_of(r)) else None, k)
               for k, r in enumerate(results)]  # fmt: skip
        return tuple(out) if is_tuple else out[0]

    def _operand(self, x: Any) -> bool:
        return type(x) is Variable or self.inner.is_array(x)

    def lifted(self, x: Array) -> Array:
        """Return an array as a constant of the tape."""
        return Variable(self.inner.lifted(x) if self.double else x)

    # ---- arrays ------------------------------------------------------------------------------------------------------

    def is_array(self, x: Any, /) -> bool:
        return type(x) is Variable

    def is_traced(self, x: Array, /) -> bool:
        return self.inner.is_traced(x.value)

    def is_differentiated(self, x: Array, /) -> bool:
        return x.tracked or self.inner.is_differentiated(x.value)

    def shape(self, x: Array, /) -> tuple[int, ...]:
        return self.inner.shape(x.value)

    def dtype_of(self, *operands: Any) -> np.dtype:
        return self.inner.dtype_of(*[x.value if type(x) is Variable else x for x in operands])

    def asarray(self, x: np.ndarray, /) -> Array:
        return Variable(self.inner.asarray(x))

    def to_numpy(self, x: Array, /) -> np.ndarray:
        return self.inner.to_numpy(x.value)

    def from_dlpack(self, x: Any, /) -> Array:
        return Variable(self.inner.from_dlpack(x))

    def materialize(self, x: Array, /) -> Array:
        if x.tracked:
            raise TypeError(
                "the backend's own array is needed inside a transform (tg.grad), where it would lose its"
                " derivative: use functions of tensorgraft.array_api"
            )
        return self.inner.materialize(x.value)

    # ---- the backend itself ------------------------------------------------------------------------------------------

    def compile(self, fn: Callable[..., Any], /, donate: Sequence[int] = ()) -> Callable[..., Any]:
        return fn

    # ---- rules of the program's own ----------------------------------------------------------------------------------

    def custom_vjp(self, fn: Any, backward: Any, forward: Any = None, /, *arrays: Array) -> tuple[Array, ...]:
        xp = self.inner
        values = [x.value for x in arrays]
        outputs = xp.custom_vjp(fn, backward, forward, *values)
        smooth = [dtypes.is_inexact(xp.dtype_of(r)) for r in outputs]
        node = None
        if any(smooth) and any(x.tracked for x in arrays):

            def pull(cotangents: list[Array | None]) -> list[Thunk]:
                seeds = [xp.zeros_like(r) if g is None else g for g, r in zip(cotangents, outputs, strict=True)]
                gradients = backward(xp, values, outputs, seeds)
                return [None if g is None else functools.partial(_identity, g) for g in gradients]

            node = TapeNode([x if x.tracked else None for x in arrays], pull, len(outputs))
        return tuple(
            [Variable(r, node if s else None, k) for k, (r, s) in enumerate(zip(outputs, smooth, strict=True))]
        )

    # ---- control flow ------------------------------------------------------------------------------

    def constrain(self, x: Array, placement: Placement, /) -> Array:
        xp, value = self.inner, self.inner.constrain(x.value, placement)
        if not x.tracked or not dtypes.is_inexact(xp.dtype_of(value)):
            return Variable(value)
        return Variable(value, TapeNode([x], lambda g: [lambda: xp.constrain(g[0], placement)], 1))

    def cond(self, predicate: Array, true_fn: Any, false_fn: Any, /, *operands: Any) -> Any:
        if not self.is_traced(predicate):
            return (true_fn if self.to_numpy(predicate) else false_fn)(*operands)
        # both are on the tape, of which one counts
        return optree.tree_map(lambda x, y: self.where(predicate, x, y), true_fn(*operands), false_fn(*operands))

    def while_loop(self, condition: Callable[[Any], Array], body: Callable[[Any], Any], init: Any, /) -> Any:
        while self.to_numpy(condition(init)):
            init = body(init)
        return init

    def scan(
        self, body: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, /, length: int, reverse: bool = False
    ) -> tuple[Any, Any]:
        leaves, tree = optree.tree_flatten(xs)
        columns = [self.unstack(x) for x in leaves]
        carry, ys = init, []
        for i in reversed(range(length)) if reverse else range(length):
            x = optree.tree_unflatten(tree, [rows[i] for rows in columns])
            carry, y = body(carry, x)
            ys.append(y)
        if reverse:
            ys.reverse()
        return carry, optree.tree_map(lambda *rows: self.stack(list(rows)), *ys)
