"""A function of TensorFlow as a native function of another framework: `tg.graft(tf_function, onto="jax")`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import optree
import tensorflow as tf

from tensorgraft.compiled.function import compiles_by
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.tensorflow.program import GraphProgram
from tensorgraft.frontends.tensorflow.tracing import TracedFunctionGraph
from tensorgraft.hub.backend import Backend

Array = Any
ConcreteFunction = tf.types.experimental.ConcreteFunction


class GraftedGraph:
    """A `tf.function` of the backend's arrays, and of structures of them; other arguments are static, as they are for
    TensorFlow. TensorFlow traces it, once for each signature. What it reads and writes are the `tf.Variable`s.

    Arrays of NumPy and TensorFlow are taken, too.
    """

    def __init__(self, fn: Any, xp: Backend, compiled: bool = False) -> None:
        name = getattr(fn, "__name__", None) or getattr(fn, "name", type(fn).__name__)
        self.__name__ = name if isinstance(name, str) else type(fn).__name__
        self.__wrapped__ = fn
        self.fn, self.xp, self.is_compiled = fn, xp, compiled
        self._signatures: dict[Any, GraphSignature] = {}

    def compiled(self) -> GraftedGraph:
        """The same function, of which each signature is one compiled program (`tg.jit` gives this)."""
        return type(self)(self.fn, self.xp, True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises UnsupportedOperationError for an operation without a rule, before anything is computed; ValueError and
        TypeError, TensorFlow's, for arguments that the function does not take; TracedValueError where a shape depends
        on values that are being traced."""
        with self.xp.native_scope():
            signature, arrays = self.signature(args, kwargs)
            return signature(arrays)

    def signature(self, args: Any, kwargs: Any) -> tuple[GraphSignature, list[Array | None]]:
        """(what is known for calls like this one, the arrays among its leaves)."""
        xp = self.xp
        call: Any = (args, kwargs)
        leaves, structure = optree.tree_flatten(call, none_is_leaf=True, namespace="tensorgraft.tensorflow")
        arrays = [self._operand(x) for x in leaves]
        marks = [
            (type(x), x) if a is None else (tuple(xp.shape(a)), xp.dtype_of(a))
            for x, a in zip(leaves, arrays, strict=True)
        ]
        try:
            signature = self._signatures.get((structure, *marks))
        except TypeError:
            odd = next(x for x, a in zip(leaves, arrays, strict=True) if a is None and not _is_hashable(x))
            raise TypeError(
                f"{self.__name__} was given a {type(odd).__qualname__}, which is neither an array of {xp.name} nor"
                " hashable"
            ) from None
        if signature is None:
            signature = self._signatures[structure, *marks] = self._trace(leaves, arrays, structure)
        return signature, arrays

    def _operand(self, x: Any) -> Array | None:
        xp = self.xp
        array = xp.operand(x)
        if array is None and isinstance(x, np.ndarray | np.generic):
            return xp.asarray(np.asarray(x))
        if array is None and isinstance(x, tf.Tensor | tf.Variable):
            return xp.asarray(x.numpy())
        return array

    def _trace(self, leaves: Sequence[Any], arrays: Sequence[Array | None], structure: Any) -> GraphSignature:
        xp = self.xp
        specs = [
            x if a is None else tf.TensorSpec(xp.shape(a), tf.as_dtype(xp.dtype_of(a)), name=f"argument_{i}")
            for i, (x, a) in enumerate(zip(leaves, arrays, strict=True))
        ]
        args, kwargs = optree.tree_unflatten(structure, specs)
        if isinstance(self.fn, ConcreteFunction):
            concrete = self.fn
        elif getattr(self.fn, "input_signature", None) is not None:  # which says the shapes itself
            concrete = self.fn.get_concrete_function()
        else:
            concrete = self.fn.get_concrete_function(*args, **kwargs)
        return self._signed(concrete, _order(concrete, args, kwargs, specs))

    def _signed(self, concrete: Any, order: list[int]) -> GraphSignature:
        return GraphSignature(self.xp, concrete, order, self.is_compiled)


def _is_hashable(x: Any) -> bool:
    return getattr(type(x), "__hash__", None) is not None


def _order(concrete: Any, args: Any, kwargs: Any, specs: Sequence[Any]) -> list[int]:
    """For each argument of the graph the leaf of the call that it is."""
    asked = [s for s in tf.nest.flatten(concrete.structured_input_signature) if isinstance(s, tf.TensorSpec)]
    mine = [i for i, s in enumerate(specs) if isinstance(s, tf.TensorSpec)]
    names = {specs[i].name: i for i in mine}
    if all(s.name in names for s in asked):
        return [names[s.name] for s in asked]
    if kwargs:  # a signature of its own, with names of its own
        bound = concrete.function_type.bind(*args, **kwargs)
        given = [s for s in tf.nest.flatten(list(bound.arguments.values())) if isinstance(s, tf.TensorSpec)]
        mine = [names[s.name] for s in given]
    if len(mine) != len(asked):
        raise TypeError(f"{concrete.name} takes {len(asked)} tensors, {asked}, and was given {len(mine)}")
    for i, s in zip(mine, asked, strict=True):
        if not s.is_compatible_with(tf.TensorSpec(specs[i].shape, specs[i].dtype)):
            raise TypeError(f"{concrete.name} takes {s}, and was given {specs[i].dtype.name}{specs[i].shape}")
    return mine


class GraphSignature:
    """The function for calls that look the same. `names`: of variables, by their handles' identity."""

    def __init__(self, xp: Backend, concrete: Any, order: Sequence[int], compiled: bool, names: Any = None) -> None:
        self.xp, self.order = xp, order
        self.traced = TracedFunctionGraph(concrete, names)
        self.program = GraphProgram(self.traced.captured, list(self.traced.held), compiled, self.traced.derive)
        self.native = xp.differentiable(self.program)
        self._structure = concrete.structured_outputs

    def run(self, values: Sequence[Array], leaves: Sequence[Array | None]) -> tuple[Any, dict[str, Array]]:
        """(results, what variables have become), for the values of those that the program has, in order."""
        xp = self.xp
        arrays = [*values, *[leaves[i] for i in self.order]]
        followed = xp.has_tape or xp.in_trace() or xp.is_tracing() or any(map(xp.is_traced, arrays))
        outputs = self.native(*arrays) if followed else self.program.primal(xp, arrays)
        n = len(outputs) - len(self.program.written)
        return structured(self._structure, outputs[:n]), dict(zip(self.program.written, outputs[n:], strict=True))

    def __call__(self, leaves: Sequence[Array | None]) -> Any:
        xp, held = self.xp, self.traced.held
        self.traced.begin_anew()
        results, became = self.run([value_of(xp, v) for v in held.values()], leaves)
        for name, value in became.items():
            write(xp, held[name], value)
        return results


def value_of(xp: Backend, variable: tf.Variable) -> Array:
    array = xp.operand(variable)
    return xp.adopt(variable.numpy()) if array is None else array


def write(xp: Backend, variable: tf.Variable, value: Array) -> None:
    if isinstance(value, tf.Tensor):  # traced ones, too
        variable.assign(value, read_value=False)
    elif xp.is_traced(value):
        raise TracedValueError(
            f"the variable {variable.name!r} is written while {xp.name} traces the call, when there is no value yet"
            " that it could hold: use tg.jit in the place of the framework's own"
        )
    else:
        variable.assign(xp.to_numpy(value), read_value=False)


def structured(structure: Any, results: Sequence[Array]) -> Any:
    remaining = iter(results)
    return tf.nest.map_structure(lambda x: next(remaining) if isinstance(x, tf.TypeSpec | tf.Tensor) else x, structure)


compiles_by(GraftedGraph, operator.methodcaller("compiled"))
