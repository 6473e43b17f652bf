"""Functions that TensorFlow has traced: their captures, and their derivatives, which TensorFlow traces, too."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from tensorgraft.errors import DerivativeError
from tensorgraft.frontends.tensorflow.function_graphs import read_function
from tensorgraft.frontends.tensorflow.program import CapturedGraph, Derive, is_smooth
from tensorgraft.frontends.tensorflow.states import KernelState, with_states
from tensorgraft.frontends.tensorflow.tables import LookupTable, table_of

Tensors = Sequence[tf.Tensor]


class HandleVariable:
    """A variable of which a program has the handle alone."""

    def __init__(self, handle: tf.Tensor, name: str) -> None:
        data = handle._handle_data.shape_and_type[0]
        self.handle, self.name, self.trainable = handle, name, False
        self.dtype, self.shape = tf.as_dtype(data.dtype), tf.TensorShape(data.shape)

    def numpy(self) -> np.ndarray:
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype).numpy()

    def assign(self, value: Any, read_value: bool = False) -> None:
        value = tf.convert_to_tensor(value, self.dtype)
        tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)


def _is_of_variable(x: Any) -> bool:
    if x.dtype != tf.resource:
        return False
    data = getattr(x, "_handle_data", None)
    return data is not None and data.is_set and len(data.shape_and_type) == 1


class TracedFunctionGraph:
    """A `ConcreteFunction`, read.

    Arguments:
        concrete: the function.
        names: of variables, by the identity of their handles; others are called as TensorFlow calls them.

    Raises TypeError for what it captures that is no variable: tables, iterators.
    """

    def __init__(self, concrete: Any, names: Mapping[int, str] | None = None) -> None:
        self.concrete = concrete
        self.variables: dict[str, Any] = {}  # variables by unique names
        self._names = dict(names or {})
        self._copies = names is not None  # True for a model, whose state is copied
        self._tables: dict[int, LookupTable] = {}
        # {(kernel, seeds): names of the variables with their states}
        self._states: dict[tuple[str, tuple[int, int]], list[str]] = {}
        self._seeded: dict[str, KernelState] = {}
        self._since = _seeding()
        self.captured = self._read(concrete, primal=True)

    def _read(self, concrete: Any, primal: bool = False) -> CapturedGraph:
        handles = {id(v.handle): v for v in (*self.variables.values(), *concrete.graph.variables, *concrete.variables)}
        known = {id(v.handle): name for name, v in self.variables.items()}
        captures: list[str | np.ndarray | LookupTable] = []
        for placeholder, outside in zip(concrete.graph.internal_captures, concrete.captured_inputs, strict=True):
            variable = handles.get(id(outside))
            if variable is None and _is_of_variable(outside):
                variable = HandleVariable(outside, placeholder.op.name)
            if variable is not None:
                if id(outside) not in known:
                    known_name = self._names.get(id(outside), str(variable.name))
                    known[id(outside)] = name = _unique(known_name, self.variables)
                    self.variables[name] = variable
                captures.append(known[id(outside)])
            elif (table := self._table(outside)) is not None:
                captures.append(table)
            elif outside.dtype in (tf.resource, tf.variant):
                raise TypeError(
                    f"{concrete.name} captures {placeholder.op.name!r}, a {outside.dtype.name} that is neither a"
                    " variable nor a look-up table (an iterator): compute that part with TensorFlow, and pass its"
                    " result as an argument"
                )
            else:
                captures.append(outside.numpy())
        graph, states = with_states(read_function(concrete.graph, len(concrete.inputs), len(_results(concrete))))
        return CapturedGraph(graph, (*captures, *self._held_states(states, primal)))

    def _held_states(self, states: Sequence[KernelState], primal: bool) -> list[str]:
        """Return the variables that hold the states of kernels; in a derivative those of the same operations."""
        counts: Counter[tuple[str, tuple[int, int]]] = Counter()
        names = []
        for state in states:
            key = state.name, state.seeds
            if primal:
                name = _unique(f"{state.name}/state", self.variables)
                with tf.init_scope():
                    self.variables[name] = tf.Variable(state.first(), trainable=False, name=name)
                self._states.setdefault(key, []).append(name)
                self._seeded[name] = state
            elif key not in self._states:
                raise DerivativeError(f"the derivative draws random numbers of its own ({state.name!r})")
            names_of_key = self._states[key]
            names.append(names_of_key[min(counts[key], len(names_of_key) - 1)])
            counts[key] += 1
        return names

    def reseed_if_needed(self) -> None:
        """Give random kernels their first state again if `tf.random.set_seed` was called, as TensorFlow does."""
        if self._seeded and self._since is not (current_seeding := _seeding()):
            self._since = current_seeding
            for name, state in self._seeded.items():
                self.variables[name].assign(state.first())

    def _table(self, handle: Any) -> LookupTable | None:
        if handle.dtype != tf.resource or id(handle) in self._tables:
            return self._tables.get(id(handle))
        table = table_of(handle, self._copies)
        if table is not None:
            self._tables[id(handle)] = table
        return table

    # ---- derivatives -----------------------------------------------------------------------------------------------

    @property
    def derive(self) -> Derive:
        inputs = self.concrete.inputs[: self.captured.count]
        return self._derivatives(
            self._call, [tf.TensorSpec(t.shape, t.dtype) for t in inputs], [t.dtype for t in _results(self.concrete)]
        )

    def _call(self, arguments: Tensors) -> list[tf.Tensor]:
        """Call the function of flat tensors inside another trace."""
        signature = self.concrete.structured_input_signature
        remaining = iter(arguments)
        leaves = tf.nest.flatten(signature, expand_composites=True)
        leaves = [next(remaining) if isinstance(x, tf.TensorSpec) else x for x in leaves]
        args, kwargs = tf.nest.pack_sequence_as(signature, leaves, expand_composites=True)
        results = tf.nest.flatten(self.concrete(*args, **kwargs), expand_composites=True)
        return [t for t in results if isinstance(t, tf.Tensor)]

    def _derivatives(
        self, fn: Callable[[Tensors], list[tf.Tensor]], specs: list[tf.TensorSpec], outputs: list[tf.DType]
    ) -> Derive:
        smooth = [i for i, t in enumerate(outputs) if is_smooth(np.dtype(t.as_numpy_dtype))]
        variables = list(self.variables.values())

        def derive(kind: str, argnums: tuple[int | None, ...]) -> tuple[CapturedGraph, Derive]:
            if kind == "batched":
                return self._batched(fn, specs, outputs, *argnums)
            count, positions = len(variables), [i for i in argnums if i is not None]
            methods = _Differentiation(fn, len(specs), variables, positions, smooth).methods(kind)

            def trace(slope: Callable[[Tensors], list[tf.Tensor]]) -> tuple[Any, list[tf.TensorSpec]]:
                if kind == "pushforward":
                    extra = [_spec_of(variables[i]) if i < count else specs[i - count] for i in positions]
                else:
                    shapes = self._shapes(fn, specs)
                    extra = [tf.TensorSpec(shapes[i], outputs[i]) for i in smooth]
                return tf.function(slope, autograph=False).get_concrete_function([*specs, *extra]), [*specs, *extra]

            for slope in methods:  # TensorFlow's forward mode does not know all of its own calls
                try:
                    concrete, all_specs = _in_own_thread(functools.partial(trace, slope))
                except Exception as error:
                    if slope is methods[-1]:
                        message = str(error).strip().partition("\n")[0]
                        raise DerivativeError(f"TensorFlow has no {kind} of {self.concrete.name}: {message}") from error
                else:
                    results = [t.dtype for t in _results(concrete)]
                    return self._read(concrete), self._derivatives(slope, all_specs, results)
            raise AssertionError(kind)

        return derive

    def _batched(
        self,
        fn: Callable[[Tensors], list[tf.Tensor]],
        specs: list[tf.TensorSpec],
        outputs: list[tf.DType],
        size: int | None,
        *axes: int | None,
    ) -> tuple[CapturedGraph, Derive]:
        def rows(arguments: Tensors) -> list[tf.Tensor]:
            moved = {
                i: tf.experimental.numpy.moveaxis(x, axes[i], 0) for i, x in enumerate(arguments) if axes[i] is not None
            }
            return tf.vectorized_map(
                lambda row: fn([row.get(i, x) for i, x in enumerate(arguments)]), moved, fallback_to_while_loop=False
            )

        wide = []
        for spec, axis in zip(specs, axes, strict=True):
            shape = spec.shape.as_list()
            if axis is not None:
                shape.insert(axis, size)
            wide.append(tf.TensorSpec(shape, spec.dtype))
        logger = tf.get_logger()
        level = logger.level
        logger.setLevel(logging.CRITICAL)  # it logs operations that it cannot vectorise, and its progress
        try:
            concrete = _in_own_thread(lambda: tf.function(rows, autograph=False).get_concrete_function(wide))
        except Exception as error:
            raise DerivativeError(f"TensorFlow cannot vectorise {self.concrete.name}") from error
        finally:
            logger.setLevel(level)
        return self._read(concrete), self._derivatives(rows, wide, outputs)

    def _shapes(self, fn: Callable[[Tensors], list[tf.Tensor]], specs: list[tf.TensorSpec]) -> list[tf.TensorShape]:
        if fn == self._call:
            return [t.shape for t in _results(self.concrete)]
        return [t.shape for t in _results(tf.function(fn, autograph=False).get_concrete_function(specs))]


class _Differentiation:
    """Derivatives of a function by some of its variables and arguments, as functions of its arguments and then
    cotangents or tangents."""

    def __init__(
        self,
        fn: Callable[[Tensors], list[tf.Tensor]],
        count: int,
        variables: Sequence[tf.Variable],
        positions: Sequence[int],
        smooth: Sequence[int],
    ) -> None:
        """`count`: of the arguments; `positions`: of variables, then arguments; `smooth`: results with derivatives."""
        self._fn, self._count, self._smooth = fn, count, smooth
        self._variables, self._positions = variables, positions

    def methods(self, kind: str) -> list[Callable[[Tensors], list[tf.Tensor]]]:
        """Return the functions to try for a kind of derivative, one after another."""
        if kind == "pushforward":
            return [self.pushforward, self.pulled_back_twice]
        return [{"gradient": self.whole, "pullback": self.pullback}[kind]]

    def whole(self, arguments: Tensors) -> list[tf.Tensor]:
        results, gradients = self._gradient(arguments[: self._count], arguments[self._count :])
        return [*results, *gradients]

    def pullback(self, arguments: Tensors) -> list[tf.Tensor]:
        return list(self._gradient(arguments[: self._count], arguments[self._count :])[1])

    def pushforward(self, arguments: Tensors) -> list[tf.Tensor]:
        own_arguments, tangents = arguments[: self._count], arguments[self._count :]
        with tf.autodiff.ForwardAccumulator(self._sources(own_arguments), list(tangents)) as accumulator:
            results = self._fn(own_arguments)
        zero = tf.UnconnectedGradients.ZERO
        return [accumulator.jvp(results[i], unconnected_gradients=zero) for i in self._smooth]

    def pulled_back_twice(self, arguments: Tensors) -> list[tf.Tensor]:
        """Compute a pushforward as the derivative of the pullback by its cotangents, in which that is linear."""
        own_arguments, tangents = arguments[: self._count], arguments[self._count :]
        shaped = self._fn(own_arguments)
        cotangents = [tf.zeros_like(shaped[i]) for i in self._smooth]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(cotangents)
            _, gradients = self._gradient(own_arguments, cotangents)
        seeds = [_conjugate(t) for t in tangents]
        zero = tf.UnconnectedGradients.ZERO
        pushed = tape.gradient(gradients, cotangents, output_gradients=seeds, unconnected_gradients=zero)
        return [_conjugate(tf.convert_to_tensor(p)) for p in pushed]

    def _sources(self, arguments: Tensors) -> list[Any]:
        count = len(self._variables)
        return [self._variables[i] if i < count else arguments[i - count] for i in self._positions]

    def _gradient(self, arguments: Tensors, cotangents: Tensors) -> tuple[Tensors, Tensors]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._sources(arguments))
            results = self._fn(arguments)
        gradients = tape.gradient(
            [results[i] for i in self._smooth],
            self._sources(arguments),
            output_gradients=[_conjugate(c) for c in cotangents],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return results, [_conjugate(tf.convert_to_tensor(g)) for g in gradients]


def _seeding() -> Any:
    """Return an object that is another one after each `tf.random.set_seed`."""
    return getattr(context.context(), "_rng", None)


def _results(concrete: Any) -> list[tf.Tensor]:
    """Return the results of a function, without those that TensorFlow adds to its graph when it differentiates it."""
    flat = tf.nest.flatten(concrete.structured_outputs, expand_composites=True)
    return concrete.outputs[: sum(isinstance(x, tf.TypeSpec | tf.Tensor) for x in flat)]


def _in_own_thread(fn: Callable[[], Any]) -> Any:
    """Call `fn` in a thread of its own: apart from the tapes, graphs and watchers of variables of whoever asks."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(fn).result()


def _spec_of(variable: tf.Variable) -> tf.TensorSpec:
    return tf.TensorSpec(variable.shape, variable.dtype)


def _conjugate(x: tf.Tensor) -> tf.Tensor:
    """TensorFlow's cotangents are conjugated, the hub's are transposed."""
    return tf.math.conj(x) if x.dtype.is_complex else x


def _unique(name: str, used: Any) -> str:
    name = name.removesuffix(":0")
    return name if name not in used else next(n for k in range(1, len(used) + 2) if (n := f"{name}_{k}") not in used)
