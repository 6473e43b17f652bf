"""SavedModels, as `tf.saved_model.save` writes them: a folder with variables, a callable and a signature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tensorgraft.codegen.program import by_path
from tensorgraft.exporting.conversion import Converted
from tensorgraft.exporting.formats import Format
from tensorgraft.exporting.sizes import OpenSizes
from tensorgraft.exporting.structure import filled, taken
from tensorgraft.exporting.subject import Subject, tensor_name


def _write(
    converted: Converted, subject: Subject, sizes: OpenSizes, path: str, options: Mapping[str, Any]
) -> list[str]:
    module, signature = saved_module(converted, subject, sizes)
    tf.saved_model.save(module, path, signatures={"serving_default": signature})
    return []


def saved_module(converted: Converted, subject: Subject, sizes: OpenSizes) -> tuple[Any, Any]:
    """Return (a `tf.Module` that is called as the program, its function of named tensors)."""
    if converted.state:
        raise NotImplementedError(f"{subject.name} writes its state")
    specs = specifications(subject, sizes)
    args, kwargs = filled(subject.structure, specs)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = taken(subject.structure, (args, kwargs))
        return converted.call([found[k] for k in sorted(found)])

    variables = {n: getattr(v, "value", v) if not isinstance(v, tf.Variable) else v
                 for n, v in converted.variables.items()}  # fmt: skip

    def state(self: Any) -> dict[str, tf.Tensor]:
        return {name: tf.identity(v) for name, v in variables.items()}

    @tf.function(autograph=False)
    def named(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        out = converted.call([tensors[tensor_name(name)] for name in subject.names])
        return {tensor_name(name): tf.identity(x, tensor_name(name)) for name, x in by_path(out).items()}

    functions: dict[str, Any] = {"__call__": tf.function(call, autograph=False)}
    if variables:
        functions["state"] = tf.function(state, autograph=False, input_signature=[])
    module = type(subject.name, (tf.Module,), functions)()
    module.program_variables = list(variables.values())
    if isinstance(converted.holder, tf.Module):
        module.program = converted.holder
    module.__call__.get_concrete_function(*args, **kwargs)
    return module, named.get_concrete_function(**{s.name: s for s in specs})


def specifications(subject: Subject, sizes: OpenSizes) -> list[tf.TensorSpec]:
    """Return the specifications of a program's arrays, with unknown extents where sizes are open."""
    specs = []
    for k, x in enumerate(subject.arrays):
        shape = [n if isinstance(n, int) else None for n in sizes.shape(k)]
        specs.append(tf.TensorSpec(shape, subject.source.numpy(x).dtype, name=tensor_name(subject.names[k])))
    return specs


FORMAT = Format("saved_model", "tensorflow", "tensorflow", "", _write)
