"""Programs of other frameworks as `tf.Module`s, which are layers of Keras where Keras runs on TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from tensorgraft.backends.tensorflow.framework import tf
from tensorgraft.hub.array import NativeArray as Array


class _ProgramWithState:
    """A program of another framework with its variables, which `state` has by name.

    `m(*args, **kwargs)` runs eagerly, in a `tf.function`, and under a `tf.GradientTape`.
    `m.get_concrete_function(*specs)` is a signature for `tf.saved_model.save`, with which the loaded model can be
    called, too.
    """

    def _hold(
        self,
        program: Callable[..., Any],
        parameters: Mapping[str, Array],
        constants: Mapping[str, Array],
        stateful: bool,
    ) -> None:
        self._program, self._stateful = program, stateful
        self.state: dict[str, Any]
        state_arrays = {**parameters, **constants}
        state = {name: tf.Variable(x, trainable=name in parameters, name=name) for name, x in state_arrays.items()}
        # tf.Module tracks it for checkpoints; Keras's `__setattr__` does not
        tf.Module.__setattr__(self, "state", state)

    @tf.autograph.experimental.do_not_convert
    def _run(self, *args: Any, **kwargs: Any) -> Any:
        outputs = self._program({name: v.value() for name, v in self.state.items()}, *args, **kwargs)
        if not self._stateful:
            return outputs
        results, new_state = outputs
        for name, x in new_state.items():
            self.state[name].assign(x)
        return results

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        """Return the graph of a call with such arguments (`tf.TensorSpec` for tensors), in the program's current
        modes."""
        function = self.__dict__.get("__call__")
        if function is None:
            function = tf.function(self._run, autograph=False)
            # SavedModel looks it up by this name, so that a loaded model can be called
            self.__dict__["__call__"] = function
        return function.get_concrete_function(*args, **kwargs)


class Module(_ProgramWithState, tf.Module):
    __doc__ = _ProgramWithState.__doc__

    def __init__(self, *arrays: Any, name: str | None = None) -> None:
        tf.Module.__init__(self, name)
        self._hold(*arrays)

    @tf.autograph.experimental.do_not_convert
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)


@functools.cache
def module_class() -> Any:
    try:
        import keras  # type: ignore[import-untyped]
    except ImportError:  # TensorFlow works without it
        return Module
    return _layer_class(keras) if keras.backend.backend() == "tensorflow" else Module


def _layer_class(keras: Any) -> Any:
    def unique(name: str | None) -> str | None:
        """Layers of one model have different names."""
        count = keras.backend.get_uid(name) if name else 1
        return name if count == 1 else f"{name}_{count - 1}"

    class Layer(keras.layers.Layer, _ProgramWithState, tf.Module):
        __doc__ = _ProgramWithState.__doc__
        name: Any = None  # Keras sets it; that of a `tf.Module` is read-only

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return super().__new__(cls)  # Keras would note the arguments

        def __init__(self, *arrays: Any, name: str | None = None) -> None:
            super().__init__(name=unique(name), autocast=False)
            self._convert_input_args, self._allow_non_tensor_positional_args = False, True
            self._call_context_args: set[str] = set()  # no `training`: the program's own arguments are all that it has
            self._hold(*arrays)
            for path, v in self.state.items():
                self._track_variable(keras.Variable(v, trainable=v.trainable, name=path))
            self.built = True

        @tf.autograph.experimental.do_not_convert
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if any(isinstance(x, keras.KerasTensor) for x in tf.nest.flatten((args, kwargs))):
                return super().__call__(*args, **kwargs)
            return self._run(*args, **kwargs)

        # as in any `tf.Module`; Keras's variables, which share the values, are `weights` and `trainable_weights`
        @property
        def trainable_variables(self) -> tuple[Any, ...]:
            return tuple([v for v in self.state.values() if v.trainable]) if self.trainable else ()

        @property
        def non_trainable_variables(self) -> tuple[Any, ...]:
            return tuple([v for v in self.state.values() if not (v.trainable and self.trainable)])

        def call(self, *args: Any, **kwargs: Any) -> Any:
            return self._run(*args, **kwargs)

        def get_config(self) -> NoReturn:
            raise NotImplementedError(
                f"Keras cannot save {self.name}, a program of another framework: use model.save_weights, and build"
                " the model again before model.load_weights; or use model.export, which saves the program"
            )

    return Layer
