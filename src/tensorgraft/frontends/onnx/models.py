"""ONNX models as programs of other frameworks: modules, pure functions of their weights, functions that are saved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tensorgraft.compiled.pure_model import PureModel
from tensorgraft.errors import ShapeError, TracedValueError
from tensorgraft.frontends.onnx.element_types import CARRIERS, STRING, Carried, wrapped
from tensorgraft.frontends.onnx.graph import OnnxModel, ValueType, is_anonymous
from tensorgraft.frontends.onnx.planning import UNWORDED, OnnxPlanner
from tensorgraft.frontends.onnx.rule import RULES
from tensorgraft.frontends.onnx.values import lifted
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.recorded.function import RecordingFunction
from tensorgraft.hub.recorded.tracing import program_backend

Arrays = Mapping[str, Array]
FEW = 64  # elements: smaller integers in a model are sizes and positions, not weights


def graft_model(model: OnnxModel, xp: Backend) -> Any:
    """Return a model in the form that its backend has: a module, a `PureModel` (JAX) or a `RecordedOnnxModel` (NumPy).

    Raises UnsupportedOperatorError for an operator that is not known.
    """
    call = OnnxCall(PlannedModel(model), xp)
    if xp.grafted_as == "program":
        return RecordedOnnxModel(call)
    arrays = {name: xp.adopt(np.array(x, order="C")) for name, x in call.planned.weights.items()}
    trained = call.planned.trained
    params = {name: x for name, x in arrays.items() if name in trained}
    buffers = {name: x for name, x in arrays.items() if name not in trained}
    if xp.grafted_as == "function":
        return PureModel(call.apply, params, buffers)
    paths = module_paths(arrays)
    call.paths = {path: name for name, path in paths.items()}
    return xp.module(
        call, {paths[n]: x for n, x in params.items()}, {paths[n]: x for n, x in buffers.items()}, name=call.name
    )


def module_paths(names: Mapping[str, Any]) -> dict[str, str]:
    """Return a path in a module for each name: dots part it, where no part is empty and none is a module and an array
    at once; other dots and slashes become underscores."""
    taken: dict[str, str] = {}
    owners: set[str] = set()
    paths = {}
    for name in sorted(names, key=lambda n: (n.count("."), n)):
        parts = [p for p in name.strip("/").replace("/", ".").replace("::", ".").split(".") if p]
        parts = ["_" + p if not (p[0].isalpha() or p[0] in "_0123456789") else p for p in parts] or ["_"]
        path = ".".join(parts)
        prefixes = {".".join(parts[:i]) for i in range(1, len(parts))}
        while path in taken or path in owners or prefixes & taken.keys():
            parts = ["_".join(parts)] if prefixes else [parts[0] + "_"]
            path, prefixes = parts[0], set()
        taken[path] = name
        owners |= prefixes
        paths[name] = path
    return paths


class PlannedModel:
    """A model with its plan: which of its initializers are weights, and which are constants of the plan."""

    def __init__(self, model: OnnxModel, planner: OnnxPlanner | None = None) -> None:
        self.model, graph = model, model.graph
        known, state = _uses(model)
        self.weights: dict[str, np.ndarray] = {}
        constants: dict[str, Any] = {}
        for name, x in graph.initializers.items():
            is_constant = isinstance(x, Carried) or x.dtype == object or name in known
            is_constant = is_constant or (is_anonymous(name) and x.size == 1)
            if is_constant or (not dtypes.is_inexact(x.dtype) and x.size <= FEW):
                constants[name] = x
            else:
                self.weights[name] = x
        self.weight_shapes = {name: tuple(x.shape) for name, x in self.weights.items()}
        self.trained = {
            n for n, x in self.weights.items() if dtypes.is_inexact(x.dtype) and x.size > 1 and n not in state
        }
        self.inputs = {n: t for n, t in graph.inputs.items() if n not in graph.initializers}
        self.planner = planner or OnnxPlanner(model.functions, model.opsets)
        with self.noted():
            self.plan = self.planner.plan_graph(graph, [*self.inputs, *self.weights], constants)
        self.draws = self.planner.draws

    @property
    def name(self) -> str:
        return self.model.graph.name or "onnx_model"

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Add the model's file to errors."""
        try:
            yield
        except Exception as error:
            if self.model.path and self.model.path not in str(error):
                error.add_note(f"in the model {self.model.path}")
            raise

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments in the order of the inputs. Raises TypeError for others than the model has."""
        if len(args) > len(self.inputs):
            raise TypeError(f"{self} takes {len(self.inputs)} inputs, got {len(args)}")
        given = dict(zip(self.inputs, args, strict=False))
        if strange := [n for n in kwargs if n not in self.inputs or n in given]:
            raise TypeError(f"{self} got an argument {strange[0]!r} that it does not have, or has already")
        given.update(kwargs)
        missing = [n for n, t in self.inputs.items() if n not in given and t.kind != "optional"]
        if missing:
            raise TypeError(f"{self} lacks its input {missing[0]!r}")
        return [given.get(n) for n in self.inputs]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{n}: {t}' for n, t in self.inputs.items())})"


def _uses(model: OnnxModel) -> tuple[set[str], set[str]]:
    """Return (the initializers that rules read as known values alone, those that some rule takes for state)."""
    known: set[str] = set()
    other: set[str] = set(model.graph.outputs)
    state: set[str] = set()
    for node in model.graph.nodes:
        row = RULES.get((node.domain, node.op))
        for graph in node.graphs():
            other.update(graph.captures())
        for i, name in enumerate(node.inputs):
            label = row.input_name(i) if row is not None else ""
            is_known = row is not None and (row.host or label in row.known)
            (known if is_known else other).add(name)
            if row is not None and label in row.state:
                state.add(name)
    return known - other, state


class OnnxCall:
    """The function that a module calls: it takes the weights by name, and returns the results and the new values of
    weights, of which there are none."""

    training: Mapping[str, bool] = {}

    def __init__(self, planned: PlannedModel, xp: Backend, paths: Mapping[str, str] | None = None) -> None:
        self.planned, self.xp, self.paths = planned, xp, dict(paths or {})

    @property
    def name(self) -> str:
        return self.planned.name

    def on(self, xp: Backend) -> OnnxCall:
        """Return the call of the same model on another backend."""
        return OnnxCall(self.planned, xp, self.paths)

    def __call__(self, arrays: Arrays, *args: Any, seed: Any = None, **kwargs: Any) -> Any:
        """Call the model on its inputs, in order or by name, and perhaps with other values of weights, by name. `seed`:
        of the numbers that the model draws.

        Raises TypeError for inputs that the model does not take, ValueError for extents that contradict each other.
        """
        xp, planned = self.xp, self.planned
        named = {self.paths.get(path, path): x for path, x in arrays.items()}
        named |= {name: kwargs.pop(name) for name in planned.weights.keys() & kwargs.keys()}
        with planned.noted(), xp.native_scope():
            sizes: dict[str, tuple[int, str]] = {}
            operands = [
                Operand(self, name, t, sizes).value(x)
                for (name, t), x in zip(planned.inputs.items(), planned.bound(args, kwargs), strict=True)
            ]
            weights = [self._weight(name, named[name]) for name in planned.weights]
            results = planned.plan(xp, *operands, *weights, self._key(seed, [*operands, *weights]))
            inputs = {id(x) for x in (*operands, *weights)}
            outputs = [self._output(x, inputs) for x in results]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _weight(self, name: str, x: Any) -> Array:
        array = self.xp.operand(x)
        if array is None:  # a quantised array of JAX gives its numbers, which is counted
            numbers = getattr(x, "__jax_array__", None)
            array = self.xp.asarray(np.asarray(x)) if numbers is None else numbers()
        wanted, actual = self.planned.weight_shapes[name], tuple(self.xp.shape(array))
        if actual != wanted:
            raise ValueError(f"the weight {name!r} of {self.name} is {wanted}, actual {actual}")
        return array

    def _key(self, seed: Any, arrays: Sequence[Any]) -> Any:
        if not self.planned.draws:
            if seed is not None:
                raise TypeError(f"{self.name} got seed=, but draws no random numbers")
            return None
        if seed is None:
            if self.xp.in_trace() or any(self.xp.is_array(x) and self.xp.is_traced(x) for x in arrays):
                raise TracedValueError(
                    f"{self.name} draws random numbers, and is being traced: pass seed=, or each call of the compiled"
                    " program would draw the same"
                )
            seed = tuple(map(int, np.random.SeedSequence().generate_state(2)))
        return self.xp.seed_words(seed)

    def _output(self, x: Any, inputs: set[int]) -> Any:
        """Return a result as the user gets it, with memory of its own."""
        xp = self.xp
        if isinstance(x, tuple):
            return [self._output(v, inputs) for v in x]
        if isinstance(x, Carried):  # NumPy's arrays have its element type, others its carrier
            is_host = isinstance(x.array, np.ndarray) and xp.is_array(x.array)
            x = x.array.astype(x.dtype) if is_host else x.array
        if x is None or (isinstance(x, np.ndarray) and x.dtype == object) or isinstance(x, dict | list):
            return x
        array = lifted(xp, x)
        if not xp.mutable or xp.is_traced(array):
            return array
        return xp.copy(array) if id(array) in inputs else xp.ensure_owned(array)

    def apply(self, params: Arrays, buffers: Arrays, *args: Any, **kwargs: Any) -> tuple[Any, Arrays]:
        return self({**params, **buffers}, *args, **kwargs), buffers

    def __deepcopy__(self, memo: Any) -> OnnxCall:
        return self  # it has no state


class Operand:
    """An argument, checked against the type of an input. `sizes`: the sizes that names of extents have, and the
    inputs that gave them."""

    def __init__(self, call: OnnxCall, name: str, declared: ValueType, sizes: dict[str, tuple[int, str]]) -> None:
        self.xp, self.model, self.name, self.declared, self.sizes = call.xp, call.planned, name, declared, sizes

    def value(self, x: Any) -> Any:
        declared = self.declared
        if declared.kind == "optional" and x is None:
            return None
        if declared.kind == "optional" and declared.element is not None:
            declared = declared.element
        if declared.kind == "sequence":
            if not isinstance(x, list | tuple):
                raise self.fail(f"is a {type(x).__qualname__}, not a list")
            assert declared.element is not None
            return tuple(self.array(v, declared.element, {}) for v in x)
        return x if declared.kind == "map" else self.array(x, declared, self.sizes)

    def fail(self, actual: str, kind: type[Exception] = TypeError) -> Exception:
        return kind(f"the input {self.name!r} of {self.model} {actual}")

    def array(self, x: Any, declared: ValueType, sizes: dict[str, tuple[int, str]]) -> Any:
        xp, dtype = self.xp, declared.dtype
        array = xp.operand(x)
        if array is None:
            try:
                host = np.asarray(x)
            except (TypeError, RuntimeError) as error:
                raise self.fail(f"is a {type(x).__qualname__}, which {xp.name} does not take: {error}") from None
            if host.dtype.kind in "OSU":
                if dtype not in (None, STRING):
                    raise self.fail("is a string")
                return host.astype(object)
            if dtype is not None and host.dtype != dtype and not isinstance(x, np.ndarray):
                host = host.astype(dtype) if np.can_cast(host.dtype, dtype, "same_kind") else host
            value = wrapped(host)
            if isinstance(value, Carried):
                return self._checked(value, declared, sizes, value.dtype, value.mapped(xp.asarray))
            array = xp.asarray(host)
        elif isinstance(x, np.ndarray) and (x.dtype in CARRIERS or x.dtype.kind in "OSU"):
            return x.astype(object) if x.dtype.kind in "OSU" else wrapped(x)
        actual = xp.dtype_of(array)
        if dtype is not None and dtype.kind == actual.kind == "i" and actual.itemsize < dtype.itemsize:
            array, actual = xp.astype(array, dtype), dtype  # int64 without 64-bit types in JAX
        if dtype in CARRIERS and actual == CARRIERS[dtype]:
            return self._checked(Carried(array, dtype), declared, sizes, dtype, Carried(array, dtype))
        return self._checked(array, declared, sizes, actual, array)

    def _checked(self, x: Any, declared: ValueType, sizes: dict[str, tuple[int, str]], actual: Any, value: Any) -> Any:
        try:
            shape = tuple(x.shape)
        except ValueError:  # TensorFlow's, of an unknown number of axes
            shape = (None,)
        if any(n is None or type(n).__module__.startswith("jax.") for n in shape):
            raise ShapeError(
                f"the input {self.name!r} of {self.model} has shape {x.shape}, with extents that are not known: call"
                " the model with known ones (`tf.TensorSpec((32, 8))`, `keras.Input((8,), batch_size=32)`), or use"
                " tg.export, whose files have open sizes, or tg.source"
            )
        if declared.dtype is not None and actual != declared.dtype:
            raise self.fail(f"is {actual}{shape}")
        if declared.shape is None:
            return value
        if len(shape) != len(declared.shape):
            raise self.fail(f"has shape {shape}", ValueError)
        for n, extent in zip(shape, declared.shape, strict=True):
            if isinstance(extent, int) and n != extent:
                raise self.fail(f"has shape {shape}", ValueError)
            if isinstance(extent, str):
                known, owner = sizes.setdefault(extent, (n, self.name))
                if known != n:
                    raise self.fail(f"has shape {shape}, but {extent!r} is {known} in {owner!r}", ValueError)
        return value


class RecordedOnnxModel(RecordingFunction):
    """A model as a function of arrays of the host. `save` writes the recorded programs, which `tg.load` runs without
    onnx. A model whose results depend on values in shape, or that takes and returns other things than arrays, is run
    node by node, and cannot be saved."""

    weights_label = "weights"
    stateless = "it has none"

    def __init__(self, call: OnnxCall) -> None:
        super().__init__(call.xp, call.name, {n: np.asarray(x) for n, x in call.planned.weights.items()})
        self._direct, self._call = call, call.on(program_backend())
        self._is_recorded = True

    def __call__(self, *args: Any, seed: Any = None, **kwargs: Any) -> Any:
        if self._is_recorded:
            with contextlib.suppress(TracedValueError, TypeError, *UNWORDED):  # node by node, errors name the node
                return super().__call__(*args, seed=seed, **kwargs)
        results = self._direct(self.weights, *args, seed=seed, **kwargs)
        self._is_recorded = False  # what could not be recorded, and could be run
        return results

    def evaluate(self, weights: dict[str, Array], args: Any, kwargs: Any, seed: Array | None) -> tuple[Any, Any]:
        return self._call(weights, *args, seed=seed, **kwargs), ()
