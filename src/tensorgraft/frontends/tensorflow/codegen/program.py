"""A function or model of TensorFlow as a program that `tg.source` writes down."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core.ag_ctx import ControlStatusCtx, Status

from tensorgraft.codegen.program import Evaluation, by_path, cosines
from tensorgraft.codegen.recorders.call_recorder import leaves, single_arguments
from tensorgraft.codegen.recorders.frames import Watched, framed
from tensorgraft.codegen.recorders.sized_values import said_as
from tensorgraft.codegen.trace import Frame, SourceStep, SourceTrace, Var, steps, variables
from tensorgraft.frontends.tensorflow import rules  # noqa: F401  (they register themselves)
from tensorgraft.frontends.tensorflow.codegen.call_recorder import GraphWatch, mapped
from tensorgraft.frontends.tensorflow.codegen.models import ProgramVariables, held_by
from tensorgraft.frontends.tensorflow.codegen.recording import GraphRecorder, TensorKey, recorded_plan
from tensorgraft.frontends.tensorflow.models import is_model
from tensorgraft.frontends.tensorflow.tracing import TracedFunctionGraph
from tensorgraft.frontends.tensorflow.values import lifted
from tensorgraft.hub import dtypes


class GraphFunctionProgram:
    """A function of TensorFlow (`tf.function` or plain), a `tf.Module`, or a layer or model of Keras."""

    framework = "tensorflow"

    def __init__(self, fn: Any, owner: Any = None) -> None:
        """`owner`: what keeps variables alive that the function reads."""
        self.fn, self.owner = fn, owner
        self.is_model = is_model(fn)
        self.buffers: set[str] = set()  # names of the buffers of the last trace
        python = getattr(fn, "python_function", fn)
        owner = type(fn) if self.is_model else inspect.unwrap(python)
        self.name = _identifier(getattr(owner, "__name__", type(fn).__name__))
        qualified = f"{getattr(owner, '__module__', '')}.{getattr(owner, '__qualname__', self.name)}"
        library = f"TensorFlow {tf.__version__}"
        if hasattr(fn, "weights"):
            library = f"Keras {sys.modules['keras'].__version__} on {library}"
        self.origin = f"{qualified.removeprefix('__main__.').removeprefix('keras.src.')} of {library}"

    # ---- arguments -------------------------------------------------------------------------------------------------

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        """Return the arguments by name."""
        fn = getattr(self.fn, "python_function", self.fn)
        fn = fn.call if hasattr(fn, "call") and self.is_model else fn
        try:
            return single_arguments(fn, args, kwargs)
        except (TypeError, ValueError):
            return [*((f"x{i}" if i else "x", x) for i, x in enumerate(args)), *kwargs.items()]

    def flatten(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]]]:
        arrays = [x for _, tree in self.bound(args, kwargs) for x in leaves(tree) if _is_array(x)]

        def rebuild(new: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            replacements = {id(old): x for old, x in zip(arrays, new, strict=True)}
            return _put((args, kwargs), replacements)

        return arrays, rebuild

    def resized(self, x: Any, shape: tuple[int, ...]) -> Any:
        values = np.asarray(x)
        for axis, n in enumerate(shape):
            if values.shape[axis] != n:
                values = np.take(values, np.arange(n) % values.shape[axis], axis=axis)
        return values if isinstance(x, np.ndarray) else tf.constant(values)

    def numpy(self, x: Any) -> np.ndarray:
        return np.asarray(x)

    # ---- its own results -------------------------------------------------------------------------------------------

    def evaluate(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool, same_numbers: bool = False
    ) -> Evaluation:
        if same_numbers:
            return Evaluation({}, {}, {}, "results are not compared: each framework has random numbers of its own")
        variables = held_by(self.fn)
        before = {name: v.numpy() for name, v in variables.variables.items()}
        args, kwargs = mapped_tree(lambda x: tf.constant(x) if isinstance(x, np.ndarray) else x, (args, kwargs))
        trained = {n: v for n, v in variables.variables.items() if _is_trained(v)} if gradients else {}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(list(trained.values()))
            out = by_path(
                _results(tf.function(self.fn)(*args, **kwargs) if self.is_model else self.fn(*args, **kwargs))
            )
            outputs = {n: x for n, x in out.items() if isinstance(x, tf.Tensor | tf.Variable)}
            outputs = {n: tf.convert_to_tensor(x) for n, x in outputs.items()}
            smooth = [x for x in outputs.values() if x.dtype.is_floating or x.dtype.is_complex]
            sums = [
                tf.reduce_sum(tf.cast(tf.math.real(x), tf.float32) * cosines(x.shape).astype(np.float32))
                for x in smooth
            ]
            total = tf.add_n(sums) if sums else None
        expected_gradients: dict[str, np.ndarray] = {}
        values_after = {name: v.numpy() for name, v in variables.variables.items()}
        if trained and total is not None:
            tape_gradients = tape.gradient(total, list(trained.values()))
            expected_gradients = {
                n: tf.convert_to_tensor(g).numpy()
                for n, g in zip(trained, tape_gradients, strict=True)
                if g is not None and n not in self.buffers
            }
        for name, v in variables.variables.items():
            if not _is_equal(before[name], values_after[name]):
                v.assign(before[name])
        return Evaluation(
            {n: x.numpy() for n, x in outputs.items()},
            expected_gradients,
            {n: x for n, x in values_after.items() if n in self.buffers},
        )

    # ---- the trace -------------------------------------------------------------------------------------------------

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SourceTrace:
        """Raises UnsupportedOperationError for an operation without a rule, with the line of the program."""
        return _Tracing(self, args, kwargs).trace()


class _Tracing:
    def __init__(self, program: GraphFunctionProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.program = program
        self.bound = program.bound(args, kwargs)
        self.arrays, self.rebuild = program.flatten(args, kwargs)
        self.held: ProgramVariables = held_by(program.fn)
        self.watch = GraphWatch()
        self.structure: Any = None

    def concrete(self) -> Any:
        fn = self.program.fn
        autograph = tf.__internal__.autograph
        enabled = ControlStatusCtx(status=Status.ENABLED)

        def flat(*tensors: Any) -> list[Any]:
            args, kwargs = self.rebuild(list(tensors))
            function = fn if self.program.is_model else self.watch.fresh(fn) if hasattr(fn, "python_function") else fn
            result = _results(autograph.tf_convert(function, enabled, user_requested=True)(*args, **kwargs))
            result_tensors: list[Any] = []

            def keep(x: Any) -> Any:
                if isinstance(x, tf.Tensor | tf.Variable):
                    result_tensors.append(tf.identity(x))
                    return _Slot(len(result_tensors) - 1)
                return x

            self.structure = mapped(keep, result)
            return result_tensors

        specs = [tf.TensorSpec(x.shape, x.dtype) for x in map(tf.convert_to_tensor, self.arrays)]
        with self.watch.watching(self.held.paths, self.held.classes), self.watch.of_variables():
            return tf.function(flat, autograph=False).get_concrete_function(*specs)

    def trace(self) -> SourceTrace:
        concrete = self.concrete()
        names = {id(v.handle): name for name, v in self.held.variables.items()}
        traced = TracedFunctionGraph(concrete, names)
        captured = traced.captured
        recorded_plan(captured.graph, self.watch)
        xp = GraphRecorder()
        variables = {n: Var(tuple(v.shape), np.dtype(v.dtype.as_numpy_dtype)) for n, v in traced.variables.items()}
        inputs = [Var(tuple(x.shape), np.asarray(x).dtype) for x in self.arrays]
        with xp.recording() as calls:
            results, final_values = captured.run(xp, list(variables), list(variables.values()), inputs)
            results = [xp.variable(lifted(xp, said_as(xp, x))) for x in results]
            final_values = {n: xp.variable(lifted(xp, said_as(xp, x))) for n, x in final_values.items()}
        generators = {n for n in variables if n in traced._seeded or n.endswith("seed_generator_state")}
        writes = {n: x for n, x in final_values.items() if x is not variables[n] and n not in generators}
        replacements = {id(x): v for x, v in zip(self.arrays, inputs, strict=True)}
        arguments = [(n, mapped(lambda x: replacements.get(id(x), x), tree)) for n, tree in self.bound]
        result = mapped(lambda x: results[x.number] if isinstance(x, _Slot) else x, self.structure)
        watched = Watched(self.watch.program_calls, xp.values, self.watch.names, _library_layers(), _filled)
        root, (result, writes), used = framed(xp, watched, calls, (result, writes), arguments, self.program.name)
        key = _hand_keys(root, xp.drawn)
        weights = {n: v.numpy() for n, v in traced.variables.items()}
        used_names = [n for n, v in variables.items() if n not in generators and (v in used or n in writes)]
        parameters = {n: variables[n] for n in used_names if _is_trained(traced.variables[n]) and n not in writes}
        buffers = {n: variables[n] for n in used_names if n not in parameters}
        self.program.buffers = set(buffers)
        return SourceTrace(
            framework="tensorflow",
            name=root.kind,
            root=root,
            arguments=arguments,
            result=result,
            parameters=parameters,
            buffers=buffers,
            written=writes,
            aliases={},
            weights={n: weights[n] for n in used_names},
            key=key,
            notes=xp.notes,
            containers=self.held.containers,
        )


class _Slot:
    """A stand-in for a tensor, with the number of the result that it is."""

    def __init__(self, number: int) -> None:
        self.number = number


def _hand_keys(frame: Frame, draws_keys: list[Var], key: Var | None = None) -> Var | None:
    """Give each draw in a frame a key of its own, split from the frame's; the frame's key, if it draws."""
    draws = set(draws_keys)
    taking = [c for c in frame.calls if any(v in draws for s in (steps(c) if isinstance(c, Frame) else [c])
              for v in variables([s.args, s.kwargs]))]  # fmt: skip
    if not taking:
        return None
    first = key = Var((2,), dtypes.uint32) if key is None else key
    calls: list[Any] = []
    for call in frame.calls:
        if call in taking:
            rest, subkey = Var((2,), dtypes.uint32), Var((2,), dtypes.uint32)
            calls.append(SourceStep("split_key", (key,), {}, (rest, subkey), ("key", "subkey"), call.place))
            key = rest
            if isinstance(call, Frame):
                _hand_keys(call, draws_keys, subkey)
                call.arguments.append(("key", subkey))
            else:
                key_argument = next(v for v in variables([call.args, call.kwargs]) if v in draws)
                call.args = tuple(subkey if x is key_argument else x for x in call.args)
                call.kwargs = {n: subkey if x is key_argument else x for n, x in call.kwargs.items()}
        calls.append(call)
    frame.calls = calls
    return first


def _filled(tree: Any, became: Any) -> Any:
    return mapped(lambda x: became.get(x) if isinstance(x, TensorKey) else x, tree)


def _library_layers() -> set[str]:
    keras = sys.modules.get("keras")
    return set() if keras is None else {n for n in vars(keras.layers) if n[:1].isupper()}


def _results(tree: Any) -> Any:
    """Return the results of a program, named tuples as tuples."""
    return mapped(lambda x: x, tree)


def _is_array(x: Any) -> bool:
    return isinstance(x, tf.Tensor | np.ndarray)


def mapped_tree(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Map `fn` over a tree, as `mapped` does, keeping the types of containers."""
    return tf.nest.map_structure(fn, tree)


def _put(tree: Any, replacements: dict[int, Any]) -> Any:
    return mapped_tree(lambda x: replacements.get(id(x), x), tree)


def _is_trained(v: Any) -> bool:
    return bool(v.trainable) and (v.dtype.is_floating or v.dtype.is_complex)


def _is_equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def _identifier(name: str) -> str:
    return name if name.isidentifier() else "function"


__all__ = ["GraphFunctionProgram"]
