"""Names of a program's variables, and places of its layers: Keras' own paths, or attributes of modules."""

from __future__ import annotations

import re
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tensorgraft.codegen.captured_values import captured_values
from tensorgraft.frontends.tensorflow.codegen.call_recorder import is_users
from tensorgraft.frontends.tensorflow.models import is_model


@dataclass
class ProgramVariables:
    """The variables of a program by name, the paths of its modules by `id`, the classes of modules that are called, and
    the class of each path."""

    variables: dict[str, Any] = field(default_factory=dict)
    paths: dict[int, str] = field(default_factory=dict)
    classes: set[type] = field(default_factory=set)
    containers: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, variable: Any) -> None:
        variable = variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)
        if any(v is variable for v in self.variables.values()):
            return
        while name in self.variables:
            name += "_"
        self.variables[name] = variable


def held_by(program: Any) -> ProgramVariables:
    """Collect variables and modules reached from a function or a model. With several models, names begin with
    theirs."""
    variables = ProgramVariables()
    roots = [("", program)] if is_model(program) else list(_variables_around(program))
    roots = [(name, x) for k, (name, x) in enumerate(roots) if all(x is not y for _, y in roots[:k])]
    is_only_model = sum(is_model(x) for _, x in roots) == 1
    for name, x in roots:
        if isinstance(x, tf.Variable):
            variables.add(name, x)
        else:
            _add(variables, "" if is_only_model and is_model(x) else name, x)
    return variables


def _add(variables: ProgramVariables, prefix: str, model: Any) -> None:
    if isinstance(model, list | tuple | dict):
        for k, x in model.items() if isinstance(model, dict) else enumerate(model):
            inner = f"{prefix}.{k}".strip(".")
            if isinstance(x, tf.Variable):
                variables.add(inner, x)
            else:
                _add(variables, inner, x)
    elif _is_of_keras(model):
        _add_layer(variables, prefix, model)
    elif isinstance(model, tf.Module):
        flattened = model._flatten(predicate=lambda x: isinstance(x, tf.Variable | tf.Module), with_path=True)
        variables.paths[id(model)] = prefix
        variables.classes.add(type(model))
        for path, x in flattened:
            name = ".".join(filter(None, (prefix, *map(str, path))))
            if isinstance(x, tf.Variable):
                variables.add(name, x)
            elif _is_of_keras(x):
                _add(variables, name, x)
            else:
                variables.paths.setdefault(id(x), name)
                variables.classes.add(type(x))
            if not isinstance(x, tf.Variable):
                variables.containers.setdefault(name, type(x).__name__)
                if len(path) > 1 and str(path[-1]).isdigit():
                    variables.containers.setdefault(name.rpartition(".")[0], "list")
    elif hasattr(model, "variables"):  # an optimizer
        for v in model.variables:
            path = (getattr(v, "path", None) or v.name.removesuffix(":0")).replace("/", ".")
            variables.add(".".join(filter(None, (prefix, path))), v)


def _add_layer(variables: ProgramVariables, path: str, layer: Any) -> None:
    """Add a layer of Keras: its own variables by name, its sublayers by their attributes."""
    if id(layer) in variables.paths:
        return
    variables.paths[id(layer)] = path
    for name, value, kind in _children(layer):
        inner = f"{path}.{name}".strip(".")
        if kind:
            variables.containers.setdefault(inner, kind)
        if value is not None:
            _add_layer(variables, inner, value)
    for v in layer.variables:  # variables of the layer itself
        variables.add(f"{path}.{v.name.removesuffix(':0').rpartition('/')[2]}".strip("."), v)


def _children(layer: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield (name, layer or None for a list of layers, class) of sublayers."""
    seen_ids: set[int] = {id(layer)}
    counts: Counter[str] = Counter()

    def walk(name: str, x: Any) -> Iterator[tuple[str, Any, str]]:
        if _is_of_keras(x) and id(x) not in seen_ids:
            seen_ids.add(id(x))
            yield name, x, type(x).__name__
        elif isinstance(x, list | tuple) and any(map(_is_of_keras, x)):
            yield name, None, "list"
            for k, y in enumerate(x):
                yield from walk(f"{name}.{k}", y)
        elif isinstance(x, dict) and any(map(_is_of_keras, x.values())):
            for k, y in x.items():
                yield from walk(f"{name}.{k}", y)

    is_keras_class = type(layer).__module__.startswith(("keras.", "tf_keras."))
    for name, x in [] if is_keras_class else list(vars(layer).items()):  # Keras' own classes use the names of layers
        if not name.startswith("_"):
            yield from walk(name, x)
    inner: Any = getattr(layer, "layers", None) or getattr(layer, "_layers", ())
    for x in inner:
        name, kind = x.name, re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=.)(?=[A-Z][a-z])", "_", type(x).__name__).lower()
        if id(x) not in seen_ids and re.fullmatch(rf"{kind}(_\d+)?", name):  # Keras counts layers of the process
            name = f"{kind}_{counts[kind]}" if counts[kind] else kind
            counts[kind] += 1
        yield from walk(name, x)


def _is_of_keras(x: Any) -> bool:
    return is_model(x) and hasattr(x, "weights")


def _variables_around(fn: Any, depth: int = 4) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of models, variables and containers of these that a function captures."""
    for name, x in captured_values(fn, of_user=is_users):
        if isinstance(x, types.ModuleType | type):
            continue
        if isinstance(x, tf.Variable) or is_model(x) or _is_optimizer(x):
            yield name, x
        elif isinstance(x, list | tuple | dict):
            values = list(x.values()) if isinstance(x, dict) else list(x)
            if values and all(isinstance(y, tf.Variable) or is_model(y) for y in values):
                yield name, x
        elif depth and (callable(x) and (hasattr(x, "__code__") or hasattr(x, "python_function"))):
            yield from _variables_around(x, depth - 1)


def _is_optimizer(x: Any) -> bool:
    return any(c.__name__.endswith("Optimizer") and "keras" in c.__module__ for c in type(x).__mro__)
