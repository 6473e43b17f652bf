"""A function of TensorFlow as a native function of another framework: `tg.graft(tf_function, onto="jax")`."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree
import tensorflow as tf

from tensorgraft.compiled.function import compiles_by
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.tensorflow.composites import NAMESPACE, structured
from tensorgraft.frontends.tensorflow.exchange import in_dtype_of
from tensorgraft.frontends.tensorflow.function_graphs import plain
from tensorgraft.frontends.tensorflow.program import GraphProgram
from tensorgraft.frontends.tensorflow.tracing import TracedFunctionGraph
from tensorgraft.frontends.tensorflow.variable_cache import VariableGroup, held_on
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.interrupts import all_or_none
from tensorgraft.precision import current

ConcreteFunction = tf.types.experimental.ConcreteFunction


_ON_HOST = (bool, int, float, complex, list, tuple, np.ndarray, np.generic)


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
        fixes_signature = isinstance(fn, ConcreteFunction) or getattr(fn, "input_signature", None) is not None
        self._function_type = fn.function_type if fixes_signature else None
        self._traced_fn = _with_defaults_captured(fn)
        self._signatures: dict[Any, GraphSignature] = {}

    def compiled(self) -> GraftedGraph:
        """Return the same function, of which each signature is one compiled program (`tg.jit` gives this)."""
        return type(self)(self.fn, self.xp, True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises UnsupportedOperationError for an operation without a rule, before anything is computed; ValueError and
        TypeError, TensorFlow's, for arguments that the function does not take; TracedValueError where a shape depends
        on values that are being traced."""
        with self.xp.native_scope():
            signature, arrays = self.signature(args, kwargs)
            return signature(arrays)

    def signature(self, args: Any, kwargs: Any) -> tuple[GraphSignature, list[Array | None]]:
        """Return (the `GraphSignature` for calls like this one, the arrays among its leaves)."""
        xp = self.xp
        plain = None  # the key of calls whose arguments are all arrays
        if not kwargs and self._function_type is None and all(map(xp.is_array, args)):
            plain = tuple(map(xp.signature, args))
            known = self._signatures.get(plain)
            if known is not None:
                return known, [*map(xp.operand, args)]
        call: Any = self._as_asked(args, kwargs)
        leaves, structure = optree.tree_flatten(call, none_is_leaf=True, namespace=NAMESPACE)
        arrays = [self._operand(x) for x in leaves]
        marks = [(type(x), x) if a is None else xp.signature(a) for x, a in zip(leaves, arrays, strict=True)]
        try:
            signature = self._signatures.get((structure, *marks))
        except TypeError:
            odd = next(x for x, a in zip(leaves, arrays, strict=True) if a is None and not _is_hashable(x))
            raise TypeError(
                f"{self.__name__} got a {type(odd).__qualname__}, which is neither an array of {xp.name} nor hashable"
            ) from None
        if signature is None:
            signature = self._signatures[structure, *marks] = self._trace(leaves, arrays, structure)
        if plain is not None:
            self._signatures[plain] = signature
        return signature, arrays

    def _as_asked(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments, with those of the host that a signature of the function's own wants as tensors of its
        dtypes, as TensorFlow has them: numbers, lists, arrays of another precision."""
        function_type = self._function_type
        if function_type is None or not any(isinstance(x, _ON_HOST) for x in (*args, *kwargs.values())):
            return args, kwargs
        bound = function_type.bind(*args, **kwargs)
        for name, x in bound.arguments.items():
            spec = function_type.parameters[name].type_constraint
            if isinstance(spec, tf.TensorSpec) and isinstance(x, _ON_HOST) and not _is_text(np.asarray(x)):
                host = np.asarray(x)
                if np.can_cast(host.dtype, spec.dtype.as_numpy_dtype, "same_kind"):
                    bound.arguments[name] = host.astype(spec.dtype.as_numpy_dtype)
        return bound.args, bound.kwargs

    def _operand(self, x: Any) -> Array | None:
        xp = self.xp
        array = xp.operand(x)
        if array is not None:
            return array
        x = as_array(xp, x)
        array = xp.operand(x)
        if array is None and _is_text(x):
            raise TypeError(
                f"{self.__name__} got a tensor of strings, which {xp.name} does not support: process strings in"
                " TensorFlow, outside, and pass numbers. (A Python string is a static argument.)"
            )
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
        if isinstance(self._traced_fn, ConcreteFunction):
            concrete = self._traced_fn
        elif getattr(self._traced_fn, "input_signature", None) is not None:  # its signature defines the shapes
            concrete = self._traced_fn.get_concrete_function()
        else:
            concrete = self._traced_fn.get_concrete_function(*args, **kwargs)
        return self._signed(concrete, _order(concrete, args, kwargs, specs, structure))

    def _signed(self, concrete: Any, order: list[int]) -> GraphSignature:
        return GraphSignature(self.xp, concrete, order, self.is_compiled)


_STATIC = (bool, int, float, complex, str, bytes, type(None))


def _with_defaults_captured(fn: Any) -> Any:
    """Return a `tf.function` that captures defaults of arguments that are tensors, variables, composites or data sets,
    because a graph would take them as arguments that no call passes. Return `fn` if there are none."""
    try:
        parameters = inspect.signature(getattr(fn, "python_function", fn)).parameters.values()
    except (TypeError, ValueError):
        return fn
    defaults = [p.default for p in parameters if p.default is not p.empty]
    if all(isinstance(x, _STATIC) or callable(x) for x in tf.nest.flatten(defaults)):
        return fn

    def with_defaults(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    with_defaults.__name__ = getattr(fn, "__name__", with_defaults.__name__)
    return tf.function(with_defaults, autograph=False)


def _is_text(x: Any) -> bool:
    if isinstance(x, np.ndarray | np.generic):
        return x.dtype.kind in "OSU"
    return isinstance(x, tf.Tensor) and x.dtype == tf.string


def _is_text_dtype(dtype: np.dtype | None) -> bool:
    return dtype is not None and dtype.kind in "OSU"


def _is_hashable(x: Any) -> bool:
    return getattr(type(x), "__hash__", None) is not None


def _order(concrete: Any, args: Any, kwargs: Any, specs: Sequence[Any], structure: Any) -> list[int]:
    """Return, for each argument of the graph, the number of the leaf of the call that it is."""
    signature = tf.nest.flatten(concrete.structured_input_signature, expand_composites=True)
    tensor_specs = [s for s in signature if isinstance(s, tf.TensorSpec)]
    tensor_leaves = [i for i, s in enumerate(specs) if isinstance(s, tf.TensorSpec)]
    names = {specs[i].name: i for i in tensor_leaves}
    if all(s.name in names for s in tensor_specs):
        return [names[s.name] for s in tensor_specs]
    if kwargs:  # a signature of its own, with names of its own; or composites, whose components have none
        args, kwargs = optree.tree_unflatten(structure, range(len(specs)))
        leaf_numbers = tf.nest.flatten(list(concrete.function_type.bind(*args, **kwargs).arguments.values()))
        tensor_leaves = [i for i in leaf_numbers if isinstance(i, int) and isinstance(specs[i], tf.TensorSpec)]
    if len(tensor_leaves) != len(tensor_specs):
        named = ", ".join(map(_spec_text, tensor_specs)) or "none"
        raise TypeError(f"{concrete.graph.name} takes {len(tensor_specs)} tensors ({named}), got {len(tensor_leaves)}")
    for i, s in zip(tensor_leaves, tensor_specs, strict=True):
        if not tf.TensorSpec(s.shape, _integers(s.dtype)).is_compatible_with(specs[i]):
            raise TypeError(
                f"{concrete.graph.name} was traced for {_spec_text(s)}, got {_spec_text(specs[i])}: convert the"
                " argument, or graft a tf.function with a signature that accepts it"
            )
    return tensor_leaves


def _spec_text(spec: tf.TensorSpec) -> str:
    extents = "..." if spec.shape.rank is None else ", ".join(map(str, spec.shape))
    return f"{spec.name}: {spec.dtype.name}({extents})"


def _integers(dtype: tf.DType) -> tf.DType:
    """Return the dtype that arrays have for one of TensorFlow's: plain integers for quantised ones."""
    return tf.as_dtype(plain(np.dtype(dtype.as_numpy_dtype))) if dtype.is_quantized else dtype


class GraphSignature:
    """The function for calls with the same key. `names`: {id of a variable's handle: name}."""

    def __init__(self, xp: Backend, concrete: Any, order: Sequence[int], compiled: bool, names: Any = None) -> None:
        self.xp, self.order = xp, order
        self.traced = TracedFunctionGraph(concrete, names)
        graph = self.traced.captured.graph
        texts = [graph.nodes[index] for index, k in graph.outputs if _is_text_dtype(graph.nodes[index].dtypes[k])]
        if texts:
            raise TypeError(
                f"{concrete.graph.name} returns a tensor of strings, from {texts[0]}, which {xp.name} does not"
                " support: return numbers, and convert them to strings in TensorFlow, outside"
            )
        self._is_compiled, self._structure = compiled, concrete.structured_outputs
        variables = self.traced.variables.values()
        self._open = [i for i, v in enumerate(variables) if not v.shape.is_fully_defined()]  # variables of other shapes
        self._programs: dict[Any, tuple[GraphProgram, Callable[..., tuple[Array, ...]]]] = {}
        self._program([])  # or an error, now

    def _program(self, values: Sequence[Array]) -> tuple[GraphProgram, Callable[..., tuple[Array, ...]]]:
        """Return the program in this region of autocast, for variables whose values may have other shapes later, and
        its native function."""
        region = current()
        shapes = tuple([tuple(self.xp.shape(values[i])) for i in self._open]) if values else ()
        known = self._programs.get((region, shapes))
        if known is None:
            traced = self.traced
            program = GraphProgram(traced.captured, list(traced.variables), self._is_compiled, traced.derive, region)
            known = self._programs[region, shapes] = program, self.xp.differentiable(program)
        return known

    def run(self, values: Sequence[Array], leaves: Sequence[Array | None]) -> tuple[Any, dict[str, Array]]:
        """Return (results, the new values of written variables), for the values of the program's variables, in
        order."""
        arrays: list[Any] = [*values, *[leaves[i] for i in self.order]]
        program, native = self._program(values)
        outputs = native(*arrays) if self.xp.is_watched(arrays) else program.primal(self.xp, arrays)
        results, became = self._parted(program, outputs)
        return results, dict(zip(program.written, became, strict=True))

    def _parted(self, program: GraphProgram, outputs: Sequence[Array]) -> tuple[Any, Sequence[Array]]:
        n = len(outputs) - len(program.written)
        return structured(self.xp, self._structure, iter(outputs[:n])), outputs[n:]

    def __call__(self, leaves: Sequence[Array | None]) -> Any:
        xp, variables = self.xp, self.traced.variables
        self.traced.reseed_if_needed()
        group = self._group if tf.executing_eagerly() else None
        arguments: list[Any] = [leaves[i] for i in self.order]
        values = group.read() if group else [value_of(xp, v) for v in variables.values()]
        if group is None or xp.is_watched(arguments):
            results, became = self.run(values, leaves)
            all_or_none(lambda call: call(), [writing(xp, variables[name], value) for name, value in became.items()])
            return results
        program, _ = self._program(values)
        results, new_values = self._parted(program, program.primal(xp, [*values, *arguments]))
        group.write(program.writes, new_values)
        return results

    @functools.cached_property
    def _group(self) -> VariableGroup | None:
        """The group of variables whose values are kept as arrays between calls, or None if values are copied at each
        call."""
        variables = [*self.traced.variables.values()]
        if not variables or self.xp.mutable or self.xp.operand(variables[0]) is not None:
            return None
        return held_on(self.xp).group([v.handle for v in variables])


def as_array(xp: Backend, x: Any) -> Any:
    """Return `x` as an array. Objects of the `__jax_array__` protocol (quantised arrays) are converted, which counts as
    a dequantisation."""
    protocol = None if xp.is_array(x) else getattr(type(x), "__jax_array__", None)
    return protocol(x) if callable(protocol) else x


def value_of(xp: Backend, variable: tf.Variable) -> Array:
    array = xp.operand(variable)
    return xp.adopt(variable.numpy()) if array is None else array


def writing(xp: Backend, variable: tf.Variable, value: Array) -> Callable[[], Any]:
    """Return a function that writes a variable, all of whose errors are raised here."""
    if isinstance(value, tf.Tensor):  # traced ones, too
        new: Any = in_dtype_of(variable.handle, value)
    elif xp.is_traced(value):
        raise TracedValueError(
            f"the variable {variable.name!r} is written while {xp.name} traces the call, when there is no value"
            f" yet to write: use tg.jit instead of the compiler of {xp.name}"
        )
    else:
        new = xp.to_numpy(value)
    return functools.partial(variable.assign, new, read_value=False)


compiles_by(GraftedGraph, operator.methodcaller("compiled"))
