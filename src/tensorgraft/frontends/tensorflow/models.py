"""Models of TensorFlow (`tf.Module`, layers and models of Keras) as modules of other frameworks, with their variables
as parameters and buffers."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tensorgraft.compiled.pure_model import PureModel
from tensorgraft.frontends.tensorflow.grafted import GraftedGraph, GraphSignature, as_array, value_of, writing
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.recorded.function import RecordingFunction
from tensorgraft.hub.recorded.tracing import program_backend
from tensorgraft.precision import current

Arrays = Mapping[str, Array]


def graft_model(model: Any, xp: Backend) -> Any:
    """Return a model in the form that its backend has: a module, a `PureModel` (JAX) or a `RecordedModel` (NumPy).

    The values of the variables are copied. Raises ValueError for a Keras model that is not built.
    """
    return graft_call(call_of_model(model, xp))


def graft_call(call: ModelCall, copied: dict[int, Array] | None = None, written_names: Collection[str] = ()) -> Any:
    """Return the form that a model, or a part of one, has on its backend: see `graft_model`.

    Arguments:
        copied: {id of a variable: its copied value}, which several parts of one model share; it is extended.
        written_names: variables that the call writes: a pure function has them as buffers.
    """
    xp = call.xp
    if xp.grafted_as == "program":
        return RecordedModel(call)
    copied = {} if copied is None else copied
    with xp.scope():
        for v in call.variables.values():
            if id(v) not in copied:
                copied[id(v)] = _copied(xp, v)
    values = {name: copied[id(v)] for name, v in call.variables.items()}
    trained = [n for n, v in call.variables.items() if v.trainable and (v.dtype.is_floating or v.dtype.is_complex)]
    params = {n: values[n] for n in trained if n not in written_names or xp.grafted_as != "function"}
    buffers = {name: x for name, x in values.items() if name not in params}
    if xp.grafted_as == "function":
        return PureModel(call.apply, params, buffers)
    return xp.module(call, params, buffers, stateful=True, name=call.name)


def is_model(x: Any) -> bool:
    """Return True for a `tf.Module`, or a layer or model of Keras."""
    if isinstance(x, tf.Module):
        return True
    return any(k.__module__.startswith(("keras.", "tf_keras.")) and k.__name__ == "Layer" for k in type(x).__mro__)


def _copied(xp: Backend, variable: tf.Variable) -> Array:
    return xp.copy(value_of(xp, variable))


def variables_of(model: Any) -> dict[str, tf.Variable]:
    """Return variables by names with dots: their paths in a module, or as Keras calls them."""
    named: dict[str, tf.Variable] = {}
    if isinstance(model, tf.Module) and not hasattr(model, "weights"):
        flattened = model._flatten(predicate=lambda v: isinstance(v, tf.Variable), with_path=True)
        return {".".join(map(str, path)): v for path, v in flattened}
    for v in model.variables:
        path = getattr(v, "path", None) or v.name.removesuffix(":0")
        parts = path.split("/")
        name = ".".join(parts[1:] if len(parts) > 2 else parts)
        while name in named:
            name += "_"
        named[name] = getattr(v, "value", v) if not isinstance(v, tf.Variable) else v
    return named


def call_of_model(model: Any, xp: Backend) -> ModelCall:
    variables = variables_of(model)
    if not variables and not getattr(model, "built", True):
        raise ValueError(
            f"the model {type(model).__name__} has no variables yet: call it once, or call build, before tg.graft"
        )
    has_modes = "training" in inspect.signature(model.call if hasattr(model, "call") else model).parameters
    return ModelCall(tf.function(model), variables, xp, type(model).__name__, has_modes)


class ModelCall:
    """The function that a module calls: it takes the values of variables by name, and returns the results and the new
    values of variables by name.

    Arguments:
        fn: a function of TensorFlow.
        variables: {name in the module: variable}.
        has_modes: whether `fn` takes `training=`.
    """

    def __init__(
        self, fn: Any, variables: Mapping[str, tf.Variable], xp: Backend, name: str, has_modes: bool = False
    ) -> None:
        self.fn, self.variables, self.xp, self.name, self.has_modes = fn, dict(variables), xp, name, has_modes
        self._grafted = _ModelGraph(fn, xp, {id(v.handle): n for n, v in variables.items()})

    def on(self, xp: Backend) -> ModelCall:
        """Return the call of the same function on another backend."""
        return type(self)(self.fn, self.variables, xp, self.name, self.has_modes)

    @property
    def training(self) -> dict[str, bool]:
        """The initial `training` of each part of the model that has the mode, by name: a model of TensorFlow has one
        mode, that of the whole model, whose name is empty."""
        return {"": False} if self.has_modes else {}

    def in_modes(self, training: Mapping[str, bool], arrays: Arrays, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Call the function with the module's current mode, unless the user passes `training=`."""
        return self(arrays, *args, **{"training": training[""], **kwargs})

    def __call__(self, arrays: Arrays, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Array]]:
        return self._grafted.with_values(arrays, args, kwargs)

    def apply(self, params: Arrays, buffers: Arrays, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Array]]:
        results, new_values = self({**params, **buffers}, *args, **kwargs)
        if written_params := [name for name in new_values if name in params]:
            raise ValueError(
                f"{self.name} writes {', '.join(written_params)}, which were passed as parameters: pass them as buffers"
            )
        return results, {name: new_values.get(name, x) for name, x in buffers.items()}

    def __deepcopy__(self, memo: Any) -> ModelCall:
        return self  # it has no state


class _ModelGraph(GraftedGraph):
    """A grafted function whose variables belong to a module: values are passed in, and new values returned."""

    def __init__(self, fn: Any, xp: Backend, names: Mapping[int, str], compiled: bool = False) -> None:
        super().__init__(fn, xp, compiled)
        self.names = names

    def with_values(self, given: Arrays, args: Any, kwargs: Any) -> tuple[Any, dict[str, Array]]:
        with self.xp.native_scope():
            signature, arrays = self.signature(args, kwargs)
            traced = signature.traced.variables
            signature.traced.reseed_if_needed()
            values = [as_array(self.xp, given[n]) if n in given else value_of(self.xp, v) for n, v in traced.items()]
            results, became = signature.run(values, arrays)
            for name in became.keys() - self.names.values():  # the states of random kernels: no variables of the model
                writing(self.xp, traced[name], became.pop(name))()
            return results, became

    def _signed(self, concrete: Any, order: list[int]) -> GraphSignature:
        return GraphSignature(self.xp, concrete, order, self.is_compiled, self.names)


class RecordedModel(RecordingFunction):
    """A model as a function of arrays, with the current values of its variables. `save` writes the recorded programs,
    which `tg.load` runs without TensorFlow."""

    weights_label = "variables"
    stateless = "call it with training=False, or graft it onto 'torch', 'jax' or 'tensorflow'"

    def __init__(self, call: ModelCall) -> None:
        weights = {name: np.array(v.numpy()) for name, v in call.variables.items()}
        super().__init__(call.xp, call.name, weights)
        self._call = call.on(program_backend())
        self._in_regions: dict[Any, RecordedModel] = {}

    def __call__(self, *args: Any, seed: Any = None, **kwargs: Any) -> Any:
        """Call the recorded program. Each region of autocast has programs of its own, which are not saved."""
        region = current()
        if region is None:
            return super().__call__(*args, seed=seed, **kwargs)
        if region not in self._in_regions:
            other = self._in_regions[region] = copy.copy(self)
            other.programs, other._run = {}, {}
        return super(RecordedModel, self._in_regions[region]).__call__(*args, seed=seed, **kwargs)

    def evaluate(self, weights: dict[str, Array], args: Any, kwargs: Any, seed: Array | None) -> tuple[Any, Any]:
        if seed is not None:
            raise TypeError(f"{self.__name__} got seed=, but programs of TensorFlow have seeds of their own")
        return self._call(weights, *args, **kwargs)
