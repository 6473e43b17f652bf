"""Callable models of JAX as modules of other frameworks: pytrees with arrays in them (Equinox,
`jax.tree_util.Partial`), whose floating-point arrays are parameters, and modules of Flax's nnx, of which the variables
that are no parameters are buffers, and written.
"""

from __future__ import annotations

import copyreg
import dataclasses
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tensorgraft.frontends.jax import side_effects
from tensorgraft.frontends.jax.calls import is_array, number_dtype
from tensorgraft.frontends.jax.grafted import Grafted
from tensorgraft.frontends.jax.keys import is_key_dtype
from tensorgraft.frontends.jax.objects import Objects, is_object
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

Path = tuple[Any, ...]  # attributes, indices and keys

_MODES = ("deterministic", "use_running_average")  # the attributes that `train()` and `eval()` of nnx set


def grafted(program: Callable[..., Any], xp: Backend, kind: type[Grafted], onto: str) -> Any:
    """Return a function as `Grafted`; a callable pytree that holds arrays, or a module of nnx (or a method of one), as
    a module of the framework, whose arrays have the names of their paths."""
    bound = isinstance(program, types.MethodType) and is_object(program.__self__)
    if bound or is_object(program):
        model, name = (program.__self__, program.__name__) if bound else (program, "__call__")  # type: ignore[attr-defined]
        return _of_objects(model, _Method(name, type(model).__name__), xp, kind, onto)
    leaves, structure = jax.tree_util.tree_flatten_with_path(program)
    arrays_by_path = {tuple(map(_part, path)): x for path, x in leaves if is_array(x)}
    if not arrays_by_path:
        return kind(program, xp, onto=onto)
    names = [".".join(map(str, path)) for path in arrays_by_path]
    template = jax.tree.unflatten(structure, [_Hole() if is_array(x) else x for _, x in leaves])
    call = _PytreeCall(names, kind(_Applied(template), xp, onto=onto))
    arrays = {n: call.grafted.operand(x)[0] for n, x in zip(names, arrays_by_path.values(), strict=True)}  # type: ignore[index]
    trainable = {
        n for n, x in zip(names, arrays_by_path.values(), strict=True) if jax.numpy.issubdtype(x.dtype, np.inexact)
    }
    return xp.module(
        call,
        {n: x for n, x in arrays.items() if n in trainable},
        {n: x for n, x in arrays.items() if n not in trainable},
        name=type(program).__name__,
        described=_described(program, arrays_by_path),
    )


def _part(key: Any) -> Any:
    """Return a part of a path, as `jax.tree_util.keystr(..., simple=True)` has it."""
    return next((getattr(key, n) for n in ("name", "idx", "key") if hasattr(key, n)), str(key))


# ---- pytrees ---------------------------------------------------------------------------------------------------------


class _Hole:
    """A placeholder for an array that a module holds."""

    def __repr__(self) -> str:
        return "..."


class _Applied:
    """A callable pytree as a function of its arrays and of the arguments."""

    def __init__(self, template: Any) -> None:
        self.template, self.__name__ = template, type(template).__name__

    @property
    def __wrapped__(self) -> Any:
        return self.template

    def __getstate__(self) -> Any:
        return {**vars(self), "template": jax.tree.map(_to_file, self.template)}

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        self.template = jax.tree.map(
            lambda x: x.value if isinstance(x, _Variable) else x,
            self.template,
            is_leaf=lambda x: isinstance(x, _Variable),
        )

    def __call__(self, arrays: Sequence[Array], *args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten(self.template)
        remaining = iter(arrays)
        filled = [next(remaining) if isinstance(x, _Hole) else x for x in leaves]
        program = jax.tree.unflatten(structure, filled)
        with side_effects.refused(program, program):
            return program(*args, **kwargs)


class _PytreeCall:
    """The function that a module calls."""

    def __init__(self, names: list[str], grafted: Grafted) -> None:
        self.names, self.grafted = names, grafted

    @property
    def __wrapped__(self) -> Grafted:
        return self.grafted

    def __call__(self, arrays: Mapping[str, Array], *args: Any, **kwargs: Any) -> Any:
        return self.grafted([arrays[name] for name in self.names], *args, **kwargs)

    def __deepcopy__(self, memo: Any) -> _PytreeCall:
        return self  # it has no state


# ---- modules of nnx --------------------------------------------------------------------------------------------------


class _Method:
    """A function of a model and its arguments: one of its methods."""

    def __init__(self, method: str, name: str) -> None:
        self.method, self.__name__ = method, name

    def __call__(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(model, self.method)(*args, **kwargs)


def _of_objects(model: Any, method: _Method, xp: Backend, kind: type[Grafted], onto: str) -> Any:
    native = kind(method, xp, onto=onto)
    objects = Objects([model])
    names, arrays_by_path = [], []
    is_trained: dict[Path, Any] = {}
    parameter = sys.modules["flax.nnx"].Param
    for path, holder, values in _variables(model):
        for rest, x in values:
            names.append(".".join(map(str, (*path, *rest))))
            arrays_by_path.append(isinstance(holder, parameter) and jax.numpy.issubdtype(x.dtype, np.inexact))
            is_trained[(*path, *rest)] = x
    state: list[Any] = [x if number_dtype(x) is None else jax.numpy.asarray(x) for x in objects.values]
    operands = [native.operand(x) for x in state]
    for name, x, operand in zip(names, state, operands, strict=True):
        if operand is None:
            raise TypeError(
                f"{name} of a {type(model).__qualname__} holds a {type(x).__qualname__}, which cannot be state of"
                f" a module of {xp.name}: variables of a grafted model must hold arrays or numbers"
            )
    specs = [(x.shape, x.dtype) if is_key_dtype(x.dtype) else None for x in state]
    modes = {path: mode for path, node in _nodes(model) if (mode := _modes_of(node))}
    call = _ObjectCall(native, objects.without_objects(), names, specs, modes)
    if not xp.modules_have_modes:
        call.followed = model
    arrays = {n: o[0] for n, o in zip(names, operands, strict=True) if o is not None}
    trained = {n for n, trained_ in zip(names, arrays_by_path, strict=True) if trained_}
    return xp.module(
        call,
        {n: x for n, x in arrays.items() if n in trained},
        {n: x for n, x in arrays.items() if n not in trained},
        stateful=True,
        name=type(model).__name__,
        described=_described(model, is_trained),
    )


class _ObjectCall:
    """The function that a module calls, which returns its results and, by name, what the state becomes.

    `modes`: the switches of `train()` and `eval()` of each of its modules, as they were when it was grafted.
    """

    def __init__(
        self, native: Grafted, objects: Objects, names: list[str], specs: list[Any], modes: dict[Path, dict[str, Any]]
    ) -> None:
        self.native, self.names, self.specs, self.modes = native, names, specs, modes
        self.followed: Any = None  # the model whose switches count
        self._held: dict[Any, Objects] = {(): objects}

    def __getstate__(self) -> Any:
        return {**vars(self), "followed": None, "_held": {(): self._held[()]}}

    def __deepcopy__(self, memo: Any) -> _ObjectCall:
        return self  # it has no state

    @property
    def training(self) -> dict[str, bool]:
        """The modules, by name, that are in one mode or the other, and the mode in which they were."""
        return {".".join(map(str, path)): not any(known.values()) for path, known in self.modes.items()}

    def __call__(self, arrays: Mapping[str, Array], *args: Any, **kwargs: Any) -> Any:
        changed: dict[Path, dict[str, Any]] = {}
        if self.followed is not None:
            nodes = dict(_nodes(self.followed)) if self.modes else {}
            modes_now = {path: _modes_of(nodes[path]) for path in self.modes if path in nodes}
            changed = {path: mode for path, mode in modes_now.items() if mode != self.modes[path]}
        return self._run(changed, arrays, args, kwargs)

    def in_modes(self, training: Mapping[str, bool], arrays: Mapping[str, Array], args: Any, kwargs: Any) -> Any:
        """Call with modules in other modes: {name of a module: whether it is training}."""
        modes_before = self.training
        changed = {
            path: dict.fromkeys(known, not training[name])
            for path, known in self.modes.items()
            if training[name := ".".join(map(str, path))] != modes_before[name]
        }
        return self._run(changed, arrays, args, kwargs)

    def _run(self, changed: dict[Path, dict[str, Any]], arrays: Mapping[str, Array], args: Any, kwargs: Any) -> Any:
        operands = []
        for name, spec in zip(self.names, self.specs, strict=True):
            operand: Any = self.native.operand(arrays[name])
            operands.append(operand if spec is None else (operand[0], spec))
        results, new_values = self.native.run(args, kwargs, self._in(changed), operands)
        return results, {self.names[k]: x for k, x in new_values.items()}

    def _in(self, changed: dict[Path, dict[str, Any]]) -> Objects:
        key = tuple((path, *known.items()) for path, known in changed.items())
        objects = self._held.get(key)
        if objects is None:
            (model,) = self._held[()].rebuild()
            nodes = dict(_nodes(model))
            for path, known in changed.items():
                for name, value in known.items():
                    setattr(nodes[path], name, value)
            objects = self._held[key] = Objects([model]).without_objects()
        return objects


def _modes_of(node: Any) -> dict[str, Any]:
    return {name: getattr(node, name) for name in _MODES if isinstance(getattr(node, name, None), bool)}


def _nodes(model: Any) -> Iterator[tuple[Path, Any]]:
    nnx = sys.modules["flax.nnx"]
    return ((path, x) for path, x in nnx.iter_graph(model, graph=True) if isinstance(x, nnx.Module))


def _variables(model: Any) -> Iterator[tuple[Path, Any, list[tuple[Path, Any]]]]:
    """Return (path, variable or array, {rest of the path: value}), in the order of `Objects.values`."""
    nnx = sys.modules["flax.nnx"]
    state = nnx.graphlib.flatten(model, graph=True)[1]
    for path, x in zip(state.paths, state.leaves, strict=True):
        raw = x.get_raw_value() if isinstance(x, nnx.Variable) else x
        leaves = jax.tree_util.tree_flatten_with_path(raw)[0]
        yield path, x, [(tuple(map(_part, rest)), jax.numpy.asarray(y) if number_dtype(y) else y) for rest, y in leaves]


# ---- what is shown of a module ---------------------------------------------------------------------------------------


def _described(model: Any, arrays: Mapping[Path, Any]) -> dict[str, tuple[str, str]]:
    """Return (class, fields) of everything in a model that has arrays in it, by name."""
    paths = {path[:n]: None for path in arrays for n in range(len(path))}
    described = {}
    for path in paths:
        owner, ok = _value_at(model, path)
        if ok and not isinstance(owner, jax.Array):
            own_arrays = {p[-1]: x for p, x in arrays.items() if p[:-1] == path}
            described[".".join(map(str, path))] = (type(owner).__name__, ", ".join(_fields(owner, own_arrays)))
    return described


def _value_at(owner: Any, path: Path) -> tuple[Any, bool]:
    for part in path:
        try:
            if isinstance(owner, jax.tree_util.Partial):
                owner = owner.args, owner.keywords
            is_container = isinstance(owner, dict | list | tuple) or not hasattr(owner, str(part))
            owner = owner[part] if is_container else getattr(owner, str(part))
        except (KeyError, IndexError, TypeError):  # a node that says nothing of how its children are reached
            return None, False
    return owner, True


def _fields(owner: Any, arrays: Mapping[Any, Any]) -> Iterator[str]:
    for part, x in arrays.items():
        yield f"{part}={x.dtype}[{','.join(map(str, x.shape))}]" if not isinstance(part, int) else f"{x.dtype}{x.shape}"
    if isinstance(owner, dict | list | tuple):
        return
    names = (
        [f.name for f in dataclasses.fields(owner)]
        if dataclasses.is_dataclass(owner)
        else list(getattr(owner, "__dict__", ()))
    )
    for name in names:
        value = getattr(owner, name, None)
        if name.startswith("_") or name in arrays or value is None:
            continue
        if isinstance(value, bool | int | float | complex | str) or (
            isinstance(value, tuple | list) and all(isinstance(v, bool | int | float | str) for v in value) and value
        ):
            yield f"{name}={value!r}"
        elif callable(value) and not is_object(value) and getattr(value, "__name__", name) != name:
            yield f"{name}={value.__name__}"


# ---- functions in files ----------------------------------------------------------------------------------------------


class _Variable(NamedTuple):
    """A function that a module has under a name that is not its own (`identity = lambda x: x`)."""

    module: str
    name: str

    @property
    def value(self) -> Any:
        return getattr(importlib.import_module(self.module), self.name)


def _name_in(x: Any) -> str | None:
    """Return the name under which its module has a function."""
    qualname = getattr(x, "__qualname__", "")
    module = vars(sys.modules.get(getattr(x, "__module__", None) or "", object))
    return qualname if module.get(qualname) is x else next((name for name, value in module.items() if value is x), None)


def _to_file(x: Any) -> Any:
    name = _name_in(x) if isinstance(x, types.FunctionType) and x.__name__ == "<lambda>" else None
    return x if name is None else _Variable(x.__module__, name)


def _by_name(x: Any) -> Any:
    """Pickle `jax.nn.relu` and other wrapped functions of JAX by name; pickle would look up the function inside."""
    return _name_in(x) or x.__reduce_ex__(2)


for _kind in (jax.custom_jvp, jax.custom_vjp, type(jax.jit(_by_name))):
    copyreg.pickle(_kind, _by_name)
