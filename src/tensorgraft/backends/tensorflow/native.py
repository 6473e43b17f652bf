"""Functions for TensorFlow's own users, out of functions in hub operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tensorgraft.backends.tensorflow.framework import tf
from tensorgraft.backends.tensorflow.graph import constants_inside, order_of, unrecorded
from tensorgraft.backends.tensorflow.operation import dtype_of
from tensorgraft.backends.tensorflow.program import CompiledFunction
from tensorgraft.errors import DerivativeError, TracedValueError
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.interchange import Differentiable


def native_function(
    primal: Callable[..., Sequence[Array]],
    forward: Callable[..., tuple[Sequence[Array], Sequence[Array]]],
    backward: Callable[[Sequence[Array], Sequence[Array]], Sequence[Array | None]],
) -> Callable[..., tuple[Array, ...]]:
    """See `Backend.native_function`. Eagerly each part is one program, compiled by XLA where it can; in a `tf.function`
    its operations are those of the graph. Callers keep one function for each signature."""
    return _NativeFunction(primal, forward, backward)


class _NativeFunction:
    """A function with a derivative of its own, in as few programs as there can be."""

    def __init__(
        self,
        primal: Callable[..., Sequence[Array]],
        forward: Callable[..., tuple[Sequence[Array], Sequence[Array]]],
        backward: Callable[[Sequence[Array], Sequence[Array]], Sequence[Array | None]],
    ) -> None:
        self._forward, self._backward = forward, backward
        self._results = self._residuals = 0  # the numbers of results and residuals
        self._used: list[bool] = []  # for each argument, True if it has a cotangent
        self._results_only, self._with_residuals = CompiledFunction(primal), _Recorded(self._forward_and_backward, 1)
        self._undifferentiated, self._pullback = _Recorded(primal, 1), _Recorded(self._pulled_back)
        self._differentiated = tf.custom_gradient(self._run)

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        arrays = tensors(arrays)
        if not arrays or (tf.executing_eagerly() and not order_of(arrays)):
            return self._results_only(*arrays)
        return self._differentiated(*arrays)

    def _run(self, *arrays: Array) -> Any:
        try:
            outputs = self._with_residuals(*arrays)
        except DerivativeError as error:
            missing = error

            def no_gradient(*cotangents: Array | None) -> Any:
                raise missing

            return tuple(self._undifferentiated(*arrays)), no_gradient
        except TracedValueError:
            if not tf.executing_eagerly():
                raise
            return self._by_operations(arrays)
        results, residuals = outputs[: self._results], outputs[self._results :]

        def gradient(*cotangents: Array | None) -> list[Array | None]:
            remaining = iter(self._pullback(*residuals, *_seeds(results, cotangents)))
            return [_transposed(next(remaining)) if used else None for used in self._used]

        return tuple(results), gradient

    def _forward_and_backward(self, *arrays: Array) -> list[Array]:
        results, residuals = self._forward(*arrays)
        self._results, self._residuals = len(results), len(residuals)
        return [*results, *residuals]

    def _pulled_back(self, *operands: Array) -> list[Array]:
        n = self._residuals
        gradients = self._backward(operands[:n], operands[n:])
        self._used = [g is not None for g in gradients]
        return [g for g in gradients if g is not None]

    def _by_operations(self, arrays: Sequence[Array]) -> Any:
        """Compute by single operations: a function with shapes that depend on values is no program."""
        if order_of(arrays) > 1:
            raise DerivativeError(
                "a function with shapes that depend on values can be differentiated only once, but a second"
                " GradientTape or a ForwardAccumulator watches its arguments"
            )
        with unrecorded():
            results, residuals = self._forward(*arrays)

        def gradient(*cotangents: Array | None) -> list[Array | None]:
            with unrecorded():
                gradients = self._backward(residuals, _seeds(results, cotangents))
            return [None if g is None else _transposed(g) for g in gradients]

        return tuple(results), gradient


def tensors(arrays: Sequence[Array]) -> tuple[Array, ...]:
    return tuple([a if isinstance(a, tf.Tensor) else tf.constant(a) for a in arrays])


def differentiable(xp: Backend, function: Differentiable) -> Callable[..., tuple[Array, ...]]:
    """See `Backend.differentiable`. Higher derivatives are those of `function.pullback`, because TensorFlow lacks
    derivatives of some operations."""
    natives: dict[tuple[int, ...], Callable[..., tuple[Array, ...]]] = {}
    refused: set[tuple[int, ...]] = set()
    primal = _Recorded(lambda *arrays: function.primal(xp, arrays))

    def by(argnums: tuple[int, ...]) -> Callable[..., tuple[Array, ...]]:
        def forward(*arrays: Array) -> tuple[Sequence[Array], Sequence[Array]]:
            try:
                return function.forward(xp, arrays, argnums)
            except DerivativeError:
                refused.add(argnums)
                raise

        def backward(residuals: Sequence[Array], cotangents: Sequence[Array]) -> Sequence[Array | None]:
            gradients = dict(zip(argnums, function.backward(xp, residuals, cotangents, argnums), strict=True))
            return [gradients.get(i) for i in range(count)]

        if argnums not in natives:
            natives[argnums] = native_function(lambda *arrays: function.primal(xp, arrays), forward, backward)
        return natives[argnums]

    @functools.cache
    def pullback(argnums: tuple[int, ...]) -> Callable[..., tuple[Array, ...]]:
        return differentiable(xp, function.pullback(argnums))

    @tf.custom_gradient
    def with_gradient(*arrays: Array) -> Any:
        argnums = _differentiable_inputs(arrays)
        with unrecorded():
            results = primal(*arrays)

        def gradient(*cotangents: Array | None) -> list[Array | None]:
            argument_gradients = pullback(argnums)(*arrays, *_seeds(results, cotangents))
            gradients = dict(zip(argnums, map(_transposed, argument_gradients), strict=True))
            return [gradients.get(i) for i in range(count)]

        return tuple(results), gradient

    count = 0

    def call(*arrays: Array) -> tuple[Array, ...]:
        nonlocal count
        count, arrays = len(arrays), tensors(arrays)
        if order_of(arrays) > 1:
            return with_gradient(*arrays)
        argnums = _inexact(arrays)
        if argnums in refused and tf.executing_eagerly():  # perhaps there is one for the watched arguments
            return by(_differentiable_inputs(arrays))(*arrays)
        results = by(argnums)(*arrays)
        return call(*arrays) if argnums in refused and tf.executing_eagerly() else results

    return call


def _inexact(arrays: Sequence[Array]) -> tuple[int, ...]:
    return tuple([i for i, x in enumerate(arrays) if dtypes.is_inexact(dtype_of(x))])


def _differentiable_inputs(arrays: Sequence[Array]) -> tuple[int, ...]:
    """Return the inexact inputs for which gradients may be requested: those that a tape watches, or in a graph all of
    them, as it may be differentiated later."""
    inexact = _inexact(arrays)
    return tuple([i for i in inexact if order_of(arrays[i : i + 1])]) if tf.executing_eagerly() else inexact


def _seeds(results: Sequence[Array], cotangents: Sequence[Array | None]) -> list[Array]:
    return [
        tf.zeros_like(r) if g is None else _transposed(g)
        for g, r in zip(cotangents, results, strict=True)
        if dtypes.is_inexact(dtype_of(r))
    ]


class _Recorded:
    """A compiled program that is one operation for a `tf.GradientTape`. Derivatives of it (which a second derivative of
    the whole needs) are TensorFlow's own, compiled programs as well."""

    def __init__(self, fn: Callable[..., Sequence[Array]], order: int = 0) -> None:
        """`order`: the number of times that the function has been differentiated by its own derivative."""
        self._fn, self._program, self._order = fn, CompiledFunction(fn), order
        self._operation = tf.custom_gradient(self._run)
        self._count = 0  # the number of arguments
        self._used: list[bool] = []  # for each argument, True if it has a derivative

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        if not tf.executing_eagerly():
            with constants_inside():
                return self._program(*arrays)
        if order_of(arrays) > self._order:
            return self._operation(*arrays)
        with unrecorded():
            return self._program(*arrays)

    def _run(self, *arrays: Array) -> Any:
        with unrecorded():
            outputs = self._program(*arrays)
        self._count = len(arrays)
        smooth = [k for k, y in enumerate(outputs) if dtypes.is_inexact(dtype_of(y))]

        def gradient(*cotangents: Array) -> list[Array | None]:
            remaining = iter(self._pullback(*arrays, *(cotangents[k] for k in smooth)))
            return [next(remaining) if used else None for used in self._used]

        return outputs, gradient

    @functools.cached_property
    def _pullback(self) -> _Recorded:
        """Return the cotangents of the arrays that are `_used`, from the arrays and the cotangents of the inexact
        results."""

        def pulled_back(*inputs: Array) -> list[Array]:
            arrays = inputs[: self._count]
            smooth_outputs = [y for y in self._fn(*arrays) if dtypes.is_inexact(dtype_of(y))]
            smooth = [x for x in arrays if dtypes.is_inexact(dtype_of(x))]
            try:
                gradients = iter(tf.gradients(smooth_outputs, smooth, list(inputs[self._count :])))
            except LookupError as error:  # "gradient registry has no entry for: ..."
                raise NotImplementedError(
                    f"the second derivative goes through an operation that TensorFlow cannot differentiate: {error}"
                ) from error
            padded = [next(gradients) if dtypes.is_inexact(dtype_of(x)) else None for x in arrays]
            self._used = [g is not None for g in padded]
            return [g for g in padded if g is not None]

        return _Recorded(pulled_back)


def _transposed(g: Array) -> Array:
    """TensorFlow's cotangents are conjugated, the hub's are transposed."""
    return tf.math.conj(g) if dtypes.is_complex(dtype_of(g)) else g
