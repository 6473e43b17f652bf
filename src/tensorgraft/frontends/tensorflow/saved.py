"""SavedModels: folders with signatures, of TensorFlow 2 and 1; frozen graphs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tensorgraft.frontends.tensorflow.grafted import GraftedGraph
from tensorgraft.frontends.tensorflow.graph import Shape
from tensorgraft.frontends.tensorflow.models import ModelCall, graft_call
from tensorgraft.frontends.tensorflow.tracing import TracedFunctionGraph
from tensorgraft.frontends.tensorflow.version1 import loaded as version1
from tensorgraft.hub.backend import Backend

Specs = Mapping[str, tuple[np.dtype, Shape]]


@dataclass(frozen=True)
class SavedSignature:
    """A function of a SavedModel, and its trace for shapes that are not all known. Its tensors are `positional`, or go
    by these names."""

    name: str
    fn: Any
    concrete: Any
    inputs: dict[str, tf.TensorSpec]
    positional: bool
    source: Any  # the object that owns the variables and tables, kept alive

    def bound(self, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments as the function takes them. Raises TypeError for other names or shapes than it has."""
        if len(args) == len(self.inputs) == 1 and not kwargs:
            args, kwargs = (), {next(iter(self.inputs)): args[0]}
        if args or set(kwargs) != set(self.inputs):
            labels = [*(f"argument {i}" for i in range(len(args))), *kwargs]
            raise TypeError(f"{self} expects arrays by name, got {', '.join(labels) or 'nothing'}")
        for key, spec in self.inputs.items():
            shape = getattr(kwargs[key], "shape", None)
            if shape is not None and not spec.shape.is_compatible_with(tf.TensorShape(shape)):
                raise TypeError(f"{self} got {key} of shape {tuple(shape)}")
        return (tuple(kwargs[k] for k in self.inputs), {}) if self.positional else ((), kwargs)

    def __str__(self) -> str:
        specs = described(self.inputs).items()
        return f"{self.name}({', '.join(f'{k}: {dtype.name}{shape}' for k, (dtype, shape) in specs)})"


def described(specs: Mapping[str, tf.TensorSpec]) -> dict[str, tuple[np.dtype, Shape]]:
    """Return dtypes and shapes by name, where an extent of None is any number."""
    return {
        k: (np.dtype(s.dtype.as_numpy_dtype), None if s.shape.rank is None else tuple(s.shape.as_list()))
        for k, s in specs.items()
    }


class _Call(ModelCall):
    """A signature, called."""

    def __init__(self, signature: SavedSignature, variables: Mapping[str, Any], xp: Backend) -> None:
        super().__init__(signature.fn, variables, xp, signature.name)
        self._saved_signature = signature

    def on(self, xp: Backend) -> _Call:
        return _Call(self._saved_signature, self.variables, xp)

    def __call__(self, arrays: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._saved_signature.bound(args, kwargs)
        return super().__call__(arrays, *args, **kwargs)


class _Function(GraftedGraph):
    """A signature that reads and writes the SavedModel's own variables."""

    def __init__(self, signature: SavedSignature, xp: Backend, compiled: bool = False) -> None:
        super().__init__(signature.fn, xp, compiled)
        self._saved_signature = signature

    def compiled(self) -> _Function:
        return _Function(self._saved_signature, self.xp, True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._saved_signature.bound(args, kwargs)
        return super().__call__(*args, **kwargs)


class GraftedSignatures(Mapping[str, Any]):
    """The signatures of a SavedModel, by name: functions of arrays by name, which give arrays by name. Where there is
    one alone, it is what is called.

    Onto `"torch"` each is a module (variables of signatures share memory), onto `"jax"` a `PureModel`, onto `"numpy"`
    a function that can be saved; where it writes variables, and onto `"tensorflow"`, a function that keeps state.
    """

    def __init__(self, path: str, xp: Backend) -> None:
        self.path, self.xp = path, xp
        self._source = _opened(path)
        self._grafted_signatures: dict[str, Any] = {}
        self._values: dict[int, Any] = {}

    # ---- what there is ---------------------------------------------------------------------------------------------

    def inputs(self, name: str) -> Specs:
        """Return the arrays that a signature takes: dtypes and shapes, where None is any number."""
        return described(self._signature(name).inputs)

    def outputs(self, name: str) -> Specs:
        return described(self._signature(name).concrete.structured_outputs)

    def _signature(self, name: str) -> SavedSignature:
        if name not in self._source.names:
            raise KeyError(f"{self.path} has no signature {name!r}; it has {', '.join(self) or 'none'}")
        return self._source.signature(name)

    def __getitem__(self, name: str) -> Any:
        if name not in self._grafted_signatures:
            self._grafted_signatures[name] = self._grafted(self._signature(name))
        return self._grafted_signatures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._source.names)

    def __len__(self) -> int:
        return len(self._source.names)

    def __repr__(self) -> str:
        return f"<signatures of {self.path}: {', '.join(str(self._signature(name)) for name in self)}>"

    # ---- calls -----------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises TypeError where there is not one signature alone."""
        return self._single()(*args, **kwargs)

    def save(self, directory: Any) -> None:
        """Save the recorded programs of the only signature (on NumPy). `tg.load` runs them without TensorFlow."""
        self._single().save(directory)

    def _single(self) -> Any:
        if len(self) != 1:
            raise TypeError(f"{self.path} has {len(self)} signatures ({', '.join(self)}): choose one of them")
        return self[next(iter(self))]

    def function(self, feeds: Mapping[str, str], fetches: Mapping[str, str]) -> Any:
        """Return a signature of one's own: tensors of the graph (`"x:0"`) by the names that they are to have. Raises
        ValueError for names that the graph does not have; TypeError for models of TensorFlow 2."""
        graph = self._source.graph
        if graph is None:
            raise TypeError(
                f"{self.path} is a model of TensorFlow 2, whose signatures are separate functions: choose one of them"
            )
        return self._grafted(_of_graph(graph, "function", feeds, fetches))

    def _grafted(self, signature: SavedSignature) -> Any:
        traced = TracedFunctionGraph(signature.concrete, self._source.variables)
        changed = traced.captured.written()
        its_own = any(self.xp.operand(v) is not None for v in traced.variables.values())
        text = [k for k, s in signature.inputs.items() if s.dtype == tf.string]
        if text and self.xp.grafted_as != "program":
            raise TypeError(
                f"{signature} takes strings ({', '.join(text)}), which {self.xp.name} does not support: compute"
                " that part with TensorFlow and fetch its results, or graft onto 'numpy', where the host"
                " processes strings"
            )
        if its_own or (self.xp.grafted_as == "program" and (changed or text)):
            return _Function(signature, self.xp)
        names = dotted_names(traced.variables)
        call = _Call(signature, names, self.xp)
        return graft_call(
            call, self._values, [n for n, v in names.items() if any(v is traced.variables[w] for w in changed)]
        )


def saved_function(path: str | os.PathLike[str]) -> tuple[Any, Any]:
    """Return (the function of a SavedModel, the object that keeps its variables alive). The function is the model's
    call, the `serve` of a model that Keras exported, or the only signature.

    Raises TypeError for models without such a function, and FileNotFoundError for other folders.
    """
    if not os.path.exists(os.path.join(path, "saved_model.pb")):
        raise FileNotFoundError(f"{os.fspath(path)!r} is no folder of a SavedModel: it has no saved_model.pb")
    loaded = tf.saved_model.load(os.fspath(path))
    if callable(loaded):
        return loaded, loaded
    if callable(getattr(loaded, "serve", None)):
        return loaded.serve, loaded
    if len(loaded.signatures) != 1:
        names = ", ".join(loaded.signatures) or "none"
        raise TypeError(f"{os.fspath(path)} has no function that can be called, nor one signature alone ({names})")
    return next(iter(loaded.signatures.values())), loaded


def dotted_names(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return variables by names with dots. No name is a prefix of another one (`w` and `w/Adam`), and the common prefix
    of all (the name of a Keras model) is removed."""
    first = {name.split("/")[0] for name in variables}
    skipped = len(first) == 1 and all(name.count("/") > 1 for name in variables)
    variables = {name.partition("/")[2] if skipped else name: v for name, v in variables.items()}
    out: dict[str, Any] = {}
    for name in sorted(variables):
        parts = name.split("/")
        for k in range(len(parts) - 1, 0, -1):
            if "/".join(parts[:k]) in variables:
                parts[k - 1 : k + 1] = [f"{parts[k - 1]}_{parts[k]}"]
        out[".".join(parts)] = variables[name]
    return {key: out[key] for name in variables for key in out if out[key] is variables[name]}


# ---- sources ---------------------------------------------------------------------------------------------------------


class _Objects:
    """A SavedModel of TensorFlow 2: functions with their variables."""

    graph = None

    def __init__(self, directory: str) -> None:
        self.loaded = tf.saved_model.load(directory)
        self._signatures = dict(self.loaded.signatures)
        self.names = list(self._signatures)
        self.variables = _names_of_objects(self.loaded, self._signatures.values())

    def signature(self, name: str) -> SavedSignature:
        concrete = self._signatures[name]
        return SavedSignature(name, concrete, concrete, dict(concrete.structured_input_signature[1]), False, self)


class _Graph:
    """A graph with a session."""

    variables = None

    def __init__(self, graph: version1.SessionGraph, signatures: Mapping[str, tuple[Any, Any]]) -> None:
        self.graph, self._signatures = graph, signatures
        self.names = list(signatures)
        self._read: dict[str, SavedSignature] = {}

    def signature(self, name: str) -> SavedSignature:
        if name not in self._read:
            self._read[name] = _of_graph(self.graph, name, *self._signatures[name])
        return self._read[name]


def _of_graph(graph: version1.SessionGraph, name: str, feeds: Any, fetches: Any) -> SavedSignature:
    specs = {k: graph.spec(t) for k, t in feeds.items()}
    fn = graph.function(feeds, fetches)
    return SavedSignature(name, fn, fn.get_concrete_function(*specs.values()), specs, True, graph)


def _opened(path: str) -> Any:
    if os.path.isfile(path):
        graph = version1.frozen_graph(path)
        return _Graph(graph, {"graph": graph.default_signature()})
    meta = version1.chosen_meta(path)
    signatures = {
        name: _feeds_and_fetches(name, s)
        for name, s in sorted(meta.signature_def.items())
        if not name.startswith("__saved")
    }
    if not meta.HasField("object_graph_def"):
        return _Graph(version1.saved_graph(path, meta), signatures)
    try:
        return _Objects(path)
    # any error for objects that cannot be created, although graph and variables are intact
    except Exception as refused:
        try:
            return _Graph(version1.saved_graph(path, meta), signatures)
        except Exception as error:
            raise refused from error


def _feeds_and_fetches(name: str, signature: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Return (feeds, fetches): the user's name of each tensor -> its name in the graph."""
    parts = []
    for tensors in (signature.inputs, signature.outputs):
        odd = [k for k, t in tensors.items() if t.WhichOneof("encoding") != "name"]
        if odd:
            raise TypeError(f"the signature {name!r} has composite tensors ({', '.join(odd)}), which are not arrays")
        parts.append({k: tensors[k].name for k in sorted(tensors)})
    return parts[0], parts[1]


def _names_of_objects(root: Any, functions: Iterable[Any]) -> dict[int, str]:
    """Return variables' names by the identity of their handles: their own names, or their paths in the objects."""
    captured_handles = {id(handle) for f in functions for handle in f.captured_inputs}
    paths: dict[int, tuple[str, Any]] = {}
    queue: list[tuple[str, Any]] = [("", root)]
    seen_ids = set()
    for path, x in queue:
        if id(x) in seen_ids:
            continue
        seen_ids.add(id(x))
        if isinstance(x, tf.Variable) and id(x.handle) in captured_handles:
            paths.setdefault(id(x.handle), (path, x))
        children = tf.train.TrackableView.children(x).items()
        queue += [(f"{path}/{name}" if path else name, child) for name, child in children]
    names = [v.name.removesuffix(":0") for _, v in paths.values()]
    return {
        handle: path if names.count(own_name) > 1 or own_name == "Variable" else own_name
        for (handle, (path, _)), own_name in zip(paths.items(), names, strict=True)
    }
