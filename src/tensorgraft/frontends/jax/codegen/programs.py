"""`trace_function`: a program of JAX at the sizes of its arguments, with its structure, names and parameters."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.extend import core

from tensorgraft.codegen.captured_values import captured_values
from tensorgraft.codegen.recorders.frames import Watched, framed
from tensorgraft.codegen.trace import SourceTrace
from tensorgraft.frontends.jax import staging
from tensorgraft.frontends.jax.codegen import models
from tensorgraft.frontends.jax.codegen.call_recorder import CallWatch, is_users
from tensorgraft.frontends.jax.codegen.recording import Recording
from tensorgraft.frontends.jax.codegen.word_lowering import KeyData
from tensorgraft.frontends.jax.keys import Keys, is_key_dtype
from tensorgraft.frontends.jax.objects import Objects, is_object
from tensorgraft.hub.recorded.block import Tree, Var

# Usual names of the argument that holds a model's arrays
PARAMETERS = frozenset(
    {"params", "parameters", "variables", "weights", "model", "module", "net", "network", "state_dict"}
)
_fresh = jax.make_user_context(
    None
)  # with a new value JAX does not reuse earlier traces, which lack the modules' calls


@dataclass
class _Inputs:
    """Inputs of the flat function: their values, their variables in the trace, and the paths of the arrays of
    models."""

    values: list[Any] = field(default_factory=list)
    vars: list[Var] = field(default_factory=list)
    parameters: dict[str, int] = field(default_factory=dict)
    buffers: dict[str, int] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    containers: dict[str, str] = field(default_factory=dict)

    def add(self, value: Any) -> int:
        self.values.append(value)
        self.vars.append(variable(value))
        return len(self.values) - 1

    def add_held(self, path: str, value: Any, is_trained: bool) -> int:
        """Add an array of a model, and return its number. Raises ValueError if another array has the path."""
        for known in (self.parameters, self.buffers):
            for name, i in known.items():
                if self.values[i] is value and isinstance(value, jax.Array):
                    self.aliases[path] = name
                    return i
        if path in self.parameters or path in self.buffers:
            raise ValueError(f"two arrays of the program's models have the path {path}")
        i = self.add(value)
        (self.parameters if is_trained else self.buffers)[path] = i
        return i


def variable(value: Any) -> Var:
    aval = jax.typeof(value)
    if is_key_dtype(aval.dtype):
        data = jax.eval_shape(jax.random.key_data, value)
        return Var(tuple(data.shape), np.dtype(data.dtype))
    return Var(tuple(aval.shape), np.dtype(aval.dtype))


def host(x: Any) -> np.ndarray:
    """Return the values of an array, or the data of random keys, as an array of NumPy."""
    return np.asarray(jax.random.key_data(x) if is_key_dtype(x.dtype) else x)


def is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray)


def _is_result(x: Any) -> bool:
    """Return whether a leaf of the result is an array or a scalar with a dtype, not a number of Python."""
    return isinstance(x, jax.core.Tracer) or is_array(x) or (isinstance(x, np.generic) and x.dtype.kind not in "SU")


def trace_function(
    fn: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, *, parameters: Any = None
) -> SourceTrace:
    """Return the `SourceTrace` of `fn(*args, **kwargs)`.

    Arguments:
        fn: a function of JAX, also `apply` of Flax and Haiku; a module of Equinox, Flax or nnx.
        parameters: the names of arguments that are the model's arrays; as a rule those that are modules or pytrees that
            are called `params`, `variables`, `model` or the like.

    Raises:
        UnsupportedPrimitiveError: for a primitive without a rule, with the line of the program that uses it.
    """
    program = TakenApart(fn, tuple(args), dict(kwargs or {}), parameters)
    watch = CallWatch()
    named_closure: list[tuple[str, Any]] = []
    if program.model is None:
        program.closed, named_closure = closed_arrays(fn)
        single = len({name for name, _ in named_closure}) == 1
        for name, tree in named_closure:
            if models.is_module(tree):
                prefix = "" if single else name
                program.inputs.containers |= {f"{prefix}.{p}".strip("."): c for p, c in models.containers(tree).items()}
    variables = {id(leaf): variable(leaf) for leaf in program.closed.values()}
    paths: dict[Any, str] = {id(leaf): path for path, leaf in program.closed.items()}  # also of variables
    for path, i in (*program.inputs.parameters.items(), *program.inputs.buffers.items()):
        paths[id(program.inputs.values[i])] = path
    classes: set[type] = set()
    for value in (fn, *args, *program.kwargs.values(), *(tree for _, tree in named_closure)):
        models.classes_in(value, classes)

    def flat(*arrays: Any) -> Any:
        for path, i in (*program.inputs.parameters.items(), *program.inputs.buffers.items()):
            paths[models.variable_of(arrays[i])] = path
        return program.call(arrays)

    with _fresh(object()), models.recorded_calls(watch, paths, classes), watch.of_variables():
        try:
            closed = jax.make_jaxpr(flat)(*program.inputs.values)
        except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
            closed = staging.make_jaxpr(flat, *program.inputs.values)  # the program needs values that it makes itself
    recording = Recording(watch, variables)
    with recording.xp.recording() as calls:
        operands = [
            KeyData(recording.xp, v) if is_key_dtype(a.dtype) else v
            for v, a in zip(program.inputs.vars, closed.in_avals, strict=True)
        ]
        results = [
            x.data(recording.xp) if isinstance(x, Keys) else recording.xp.variable(x)
            for x in recording.run(closed, operands)
        ]
    return _traced(program, watch, recording, calls, results, variables, paths)


def _traced(
    program: TakenApart,
    watch: CallWatch,
    recording: Recording,
    calls: Any,
    results: Any,
    variables: dict[int, Var],
    paths: Any,
) -> SourceTrace:
    inputs = program.inputs
    result, writes = program.results(results)
    arguments = [(name, _filled(tree, inputs.vars)) for name, tree in program.arguments]
    watched = Watched(watch.program_calls, _used_variables(recording), watch.names, _library_classes(), _filled_in)
    root, (result, writes), used = framed(recording.xp, watched, calls, (result, writes), arguments, program.name)
    parameters = {path: inputs.vars[i] for path, i in inputs.parameters.items()}
    buffers = {path: inputs.vars[i] for path, i in inputs.buffers.items()}
    weights = {path: host(inputs.values[i]) for path, i in (*inputs.parameters.items(), *inputs.buffers.items())}
    for path, leaf in program.closed.items():
        if variables[id(leaf)] in used:
            (parameters if _is_inexact(leaf) else buffers)[path] = variables[id(leaf)]
            weights[path] = host(leaf)
    return SourceTrace(
        framework="jax",
        name=root.kind,
        root=root,
        arguments=arguments,
        result=result,
        parameters=parameters,
        buffers=buffers,
        written=writes,
        aliases=inputs.aliases,
        weights=weights,
        containers=inputs.containers,
        notes=recording.xp.notes,
    )


def _used_variables(recording: Recording) -> Iterator[tuple[Any, Any]]:
    for variable, value in recording.values:
        if isinstance(value, KeyData):
            yield variable, value.array
        elif not isinstance(value, Keys):
            yield variable, value


def _filled_in(tree: Any, became: Mapping[Any, Any]) -> Any:
    return jax.tree.map(lambda x: became.get(x) if isinstance(x, core.Var) else x, tree)


def _library_classes() -> set[str]:
    """Return the names of the layers of the installed libraries."""
    layer_names: set[str] = set()
    for name in ("equinox.nn", "flax.linen", "flax.nnx", "haiku"):
        module = sys.modules.get(name)
        if module is not None:
            layer_names |= {n for n in vars(module) if n[:1].isupper()}
    return layer_names


def _is_inexact(x: Any) -> bool:
    return not is_key_dtype(x.dtype) and jax.numpy.issubdtype(x.dtype, np.inexact)


def closed_arrays(fn: Any) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Return (the arrays that a function captures, by path; the named pytrees that they are in)."""
    named = list(_captured_trees(fn))
    single = len({name for name, _ in named}) == 1
    arrays_by_path: dict[str, Any] = {}
    seen_ids: set[int] = set()
    for name, tree in named:
        for path, leaf in models.named_leaves(tree):
            if isinstance(leaf, jax.Array) and not is_key_dtype(leaf.dtype) and id(leaf) not in seen_ids:
                seen_ids.add(id(leaf))
                arrays_by_path[path if single and path else f"{name}.{path}".rstrip(".")] = leaf
    return arrays_by_path, named


class _Slot:
    """A placeholder for an array: the number of the input, or of the result, that it is."""

    def __init__(self, number: int) -> None:
        self.number = number


def _filled(tree: Any, values: Any) -> Tree:
    if isinstance(tree, _Slot):
        return values[tree.number]
    if isinstance(tree, tuple):
        return tuple([_filled(x, values) for x in tree])
    if isinstance(tree, list):
        return [_filled(x, values) for x in tree]
    if isinstance(tree, dict):
        return {k: _filled(x, values) for k, x in tree.items()}
    return tree


def _as_containers(tree: Any) -> Any:
    """Convert a pytree to tuples, lists and dictionaries; other nodes become dictionaries of their children."""
    if isinstance(tree, _Slot) or tree is None:
        return tree
    if isinstance(tree, tuple):
        return tuple([_as_containers(x) for x in tree])
    if isinstance(tree, list):
        return [_as_containers(x) for x in tree]
    if isinstance(tree, dict):
        return {str(k): _as_containers(x) for k, x in tree.items()}
    if jax.tree_util.treedef_is_leaf(jax.tree.structure(tree)):
        return tree
    return dict(models.named_leaves(tree))


class TakenApart:
    """A program and its arguments as a function (`call`) of flat arrays (`inputs`), and its results by name."""

    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], parameters: Any = None
    ) -> None:
        self.fn, self.kwargs = _callable(fn), kwargs
        self.name = _name_of(fn)
        self.inputs = _Inputs()
        self.closed: dict[str, Any] = {}  # arrays that the function captures, by path
        self.objects: Objects | None = None
        self.after: Any = None  # the arrays of objects, after a call
        self.written: list[int] = []  # positions in `after` of arrays that the call has replaced
        self.arguments: list[tuple[str, Any]] = []  # (name, pytree with slots)
        bound = isinstance(fn, types.MethodType) and (models.is_module(fn.__self__) or is_object(fn.__self__))
        self.model: Any = fn.__self__ if bound else None  # type: ignore[attr-defined]
        if models.is_module(fn) or is_object(fn):
            self.model = fn
        self.template: Any = None
        if self.model is not None:
            self._take_model(self.model)
            if bound:
                self.method = fn.__name__
            else:
                self.method = "__call__"
        names = _argument_names(self.fn, args, kwargs)
        by_name = dict(zip(names, (*args, *kwargs.values()), strict=True))
        held = [n for n, x in by_name.items() if self.model is None and _holds_parameters(n, x, parameters)]
        self.held = {i for i, n in enumerate(by_name) if n in held}  # numbers of arguments that hold a model's arrays
        self.args_template = []
        for name, value in by_name.items():
            leaves, structure = jax.tree.flatten(value)
            if name in held:
                slots = [_Slot(i) if i is not None else x for x, i in self._take_held(name, value, len(held) == 1)]
                self.args_template.append(jax.tree.unflatten(structure, slots))
                self.inputs.containers |= models.containers(value, "" if len(held) == 1 else name)
                continue
            slots = [_Slot(self.inputs.add(x)) if is_array(x) else x for x in leaves]
            tree = jax.tree.unflatten(structure, slots)
            self.args_template.append(tree)
            self.arguments.append((name, _as_containers(tree)))
        self.count = len(args)
        self.keywords = list(kwargs)

    def _take_held(self, name: str, value: Any, is_only: bool) -> Iterator[tuple[Any, int | None]]:
        collections = isinstance(value, dict) and "params" in value and all(isinstance(v, dict) for v in value.values())
        for path, leaf in models.named_leaves(value):
            if not is_array(leaf):
                yield leaf, None
                continue
            path = path.replace("/~/", ".").replace("/", ".")
            is_trained = _is_inexact(leaf)
            if collections:
                collection, _, path = path.partition(".")
                is_trained = is_trained and collection == "params"
            yield leaf, self.inputs.add_held(path if is_only else f"{name}.{path}", leaf, is_trained)

    def _take_model(self, model: Any) -> None:
        self.inputs.containers |= models.containers(model)
        if is_object(model):
            from tensorgraft.frontends.jax.modules import _variables

            self.objects = Objects([model])
            parameter = sys.modules["flax.nnx"].Param
            self.slots = []
            for path, holder, values in _variables(model):
                for rest, x in values:
                    name = ".".join(map(str, (*path, *rest)))
                    self.slots.append(
                        (name, self.inputs.add_held(name, x, isinstance(holder, parameter) and _is_inexact(x)))
                    )
            return
        structure = jax.tree.structure(model)
        slots = [
            _Slot(self.inputs.add_held(path, x, _is_inexact(x))) if is_array(x) else x
            for path, x in models.named_leaves(model)
        ]
        self.template = jax.tree.unflatten(structure, slots)

    def call(self, arrays: Any) -> list[Any]:
        """Call the program with flat arrays in place of its own. Returns the arrays of its results, then the new values
        of arrays of objects."""
        values = [_fill_slots(t, arrays) for t in self.args_template]
        args, kwargs = values[: self.count], dict(zip(self.keywords, values[self.count :], strict=True))
        if self.objects is not None:
            (model,), outcome_of = self.objects.with_values([arrays[i] for _, i in self.slots])
            result = getattr(model, self.method)(*args, **kwargs)
            after_call = outcome_of(())
            self.after = after_call.values if after_call.is_unchanged else None
            if after_call.is_unchanged:
                self.written = [n for n, (_, i) in enumerate(self.slots) if after_call.values[n] is not arrays[i]]
            else:
                raise TypeError(f"{self.name} creates variables when it is called: call it once before")
        else:
            model = None if self.template is None else _fill_slots(self.template, arrays)
            result = self.fn(*args, **kwargs) if model is None else getattr(model, self.method)(*args, **kwargs)
            self.written = []
        leaves, self.structure = jax.tree.flatten(result)
        self.leaves = [None if _is_result(x) else x for x in leaves]
        flat = [x for x in leaves if _is_result(x)]
        return [*flat, *(self.after[n] for n in self.written)] if self.written else flat

    def results(self, values: list[Var]) -> tuple[Tree, dict[str, Var]]:
        """Return (the result of the program, the new values of arrays of its model)."""
        remaining = iter(range(len(values)))
        slots = [_Slot(next(remaining)) if x is None else x for x in self.leaves]
        tree = _filled(_as_containers(jax.tree.unflatten(self.structure, slots)), values)
        return tree, {self.slots[n][0]: values[next(remaining)] for n in self.written}


def _fill_slots(template: Any, arrays: Any) -> Any:
    return jax.tree.map(lambda x: arrays[x.number] if isinstance(x, _Slot) else x, template)


def _callable(fn: Any) -> Callable[..., Any]:
    linen = sys.modules.get("flax.linen")
    return fn.apply if linen is not None and isinstance(fn, linen.Module) else fn


def _name_of(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    owner = getattr(fn, "__self__", None)
    if isinstance(fn, types.MethodType) and owner is not None:
        return type(owner).__name__ if fn.__name__ in ("apply", "__call__") else fn.__name__
    name = getattr(fn, "__name__", None) or type(fn).__name__
    return name if name.isidentifier() else "function"


def _argument_names(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for i in range(len(args)):
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        star = next((p for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        if i < len(positional):
            names.append(positional[i].name)
        elif star is not None and len(args) == len(positional) + 1:
            names.append(star.name)
        else:
            names.append(f"{star.name if star is not None else 'x'}{i - len(positional)}")
    return [*names, *kwargs]


def _holds_parameters(name: str, value: Any, parameter_names: Any) -> bool:
    if parameter_names is not None:
        return name in parameter_names
    if models.is_module(value):
        return True
    return name in PARAMETERS and not is_array(value) and any(map(is_array, jax.tree.leaves(value)))


def _captured_trees(fn: Any, depth: int = 4) -> Iterator[tuple[str, Any]]:
    """Yield (name, pytree with arrays) for the values that a function captures."""
    for name, value in captured_values(fn, of_user=_of_program, stop=models.is_module):
        if isinstance(value, types.ModuleType | type):
            continue
        if models.is_module(value) or isinstance(value, jax.Array) or _has_arrays(value):
            yield name, value
        elif isinstance(value, types.FunctionType | functools.partial | types.MethodType) and depth:
            yield from _captured_trees(value, depth - 1)


def _of_program(path: str) -> bool:
    return "/site-packages/" not in path and is_users(path)


def _has_arrays(value: Any, depth: int = 4) -> bool:
    """Return whether a container of the usual kinds, with names for keys, has arrays in it."""
    if isinstance(value, dict):
        return all(isinstance(k, str) for k in value) and _has_arrays(list(value.values()), depth)
    if not isinstance(value, list | tuple) or not depth:
        return False
    return any(isinstance(x, jax.Array) or _has_arrays(x, depth - 1) for x in value)
