"""The replacement of TensorFlow's own calls of functions while a script runs, with counts to report at the end."""

from __future__ import annotations

import functools
import re
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.ops import handle_data_util

from tensorgraft.errors import FallbackError
from tensorgraft.frontends.tensorflow.function_graphs import read_function
from tensorgraft.frontends.tensorflow.function_override.host import Crossing
from tensorgraft.frontends.tensorflow.function_override.partial_function import (
    LeftToTensorFlow,
    MixedFunction,
    MixedRun,
    _first_line,
)
from tensorgraft.frontends.tensorflow.function_override.stages import note_iterators
from tensorgraft.frontends.tensorflow.variable_cache import original_handle
from tensorgraft.hub import registry


class FunctionSwitch:
    """`tf.function`s, Keras' steps among them, are computed on a backend, from `install` on.

    That is done where TensorFlow's runtime is called with a function (`AtomicFunction.call_flat`): below its tapes,
    whose forward and backward functions are such functions too. In graphs, input pipelines included, nothing changes.

    Arguments:
        on: the backend's device, which starts with the first function.
        strict: what TensorFlow would have to compute is an error (FallbackError).
    """

    def __init__(self, on: str, strict: bool = False) -> None:
        self.on, self.strict = on, strict
        self.calls: Counter[str] = Counter()  # functions that the backend computed
        self.left: Counter[tuple[str, str]] = Counter()  # (function or operation, reason) -> times
        self._known: weakref.WeakKeyDictionary[Any, MixedFunction | str] = weakref.WeakKeyDictionary()
        self._active = threading.local()

    @functools.cached_property
    def run(self) -> MixedRun:
        xp = registry.get(self.on)
        return MixedRun(xp, self._leave, xp.traces and xp.compiles)

    def install(self) -> Callable[[], None]:
        """Replace TensorFlow's call of functions, and return a function that undoes it."""
        original = atomic_function.AtomicFunction.call_flat
        switch = self

        def call_flat(self: Any, *args: Any) -> Any:
            if getattr(switch._active, "now", False) or not self._bound_context.executing_eagerly():
                return original(self, *args)
            return switch.call(self, args, original)

        atomic_function.AtomicFunction.call_flat = call_flat

        def undo() -> None:
            atomic_function.AtomicFunction.call_flat = original

        return undo

    def call(self, function: Any, args: tuple[Any, ...], original: Callable[..., Any]) -> Any:
        mixed = self._known.get(function)
        if mixed is None:
            mixed = self._known[function] = self._read(function)
        name = function_name(function.name)
        if isinstance(mixed, MixedFunction):
            self._active.now = True
            try:
                with record.stop_recording():
                    results = mixed([Crossing(x) for x in args])
                    outputs = _with_own_identity([x.tensor(self.run.xp) for x in results], args)
            except LeftToTensorFlow as error:
                mixed = str(error)
            else:
                self.calls[name] += 1
                for tensor, kind in zip(outputs, function.function_type.flat_outputs, strict=True):
                    if (data := kind.dtype._handle_data) is not None:
                        handle_data_util.set_handle_data(tensor, data.shape_inference)
                return outputs
            finally:
                self._active.now = False
        if mixed and self.strict:
            self._leave(name, mixed)
        outputs = original(function, *args)  # first: an error of the program's own is not counted
        if mixed:
            self._leave(name, mixed)
        return outputs

    def _read(self, function: Any) -> MixedFunction | str:
        definition = function.cached_definition
        graph = function.graph
        if graph.name.startswith("tensorgraft_"):
            return ""  # a program of the backend on TensorFlow
        devices = {op.device for op in graph.get_operations() if op.device}
        if len(devices) > 1:
            return f"its operations are placed on {len(devices)} devices"
        signature, compiled = definition.signature, "_XlaMustCompile" in definition.attr
        try:
            read = read_function(graph, len(signature.input_arg), len(signature.output_arg))
            note_iterators(read)
            return MixedFunction(
                self.run, read, compiled and definition.attr["_XlaMustCompile"].b, function_name(function.name)
            )
        except Exception as error:  # nothing has been computed, and the report names it
            return _first_line(error)

    def _leave(self, operation: str, reason: str) -> None:
        if self.strict:
            raise FallbackError(f"TensorFlow would have to compute {operation}: {reason}")
        self.left[operation, reason] += 1


def _with_own_identity(outputs: list[Any], args: Sequence[Any]) -> list[Any]:
    """Return tensors of their own, as a function of TensorFlow gives: tapes know them by their identity."""
    argument_ids = {id(x) for x in args}
    for i, tensor in enumerate(outputs):
        if id(tensor) in argument_ids:
            outputs[i] = tf.raw_ops.Identity(input=tensor)
            if tensor.dtype == tf.resource:
                outputs[i]._handle_data = tensor._handle_data
                outputs[i]._tensorgraft_handle = original_handle(tensor)
        argument_ids.add(id(outputs[i]))
    return outputs


def function_name(name: Any) -> str:
    """Return a function's name as its user knows it."""
    text = name.decode() if isinstance(name, bytes) else str(name)
    plain = re.sub(r"(_\d+)+$", "", re.sub(r"^(__(inference|forward|backward)_)+", "", text))
    return f"{plain} (derivative)" if "__backward_" in text else plain
