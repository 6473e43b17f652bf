"""The program that is exported, with the arguments of its example."""

from __future__ import annotations

import inspect
import keyword
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optree

from tensorgraft.arrays import is_array
from tensorgraft.codegen.program import Evaluation, SourceProgram, by_path
from tensorgraft.exporting.structure import OMITTED, ArrayPosition, plain, taken
from tensorgraft.transforms.program_files import program_of_file
from tensorgraft.transforms.source import source_program


class Subject:
    """A program of any framework with an example.

    `arrays` are those of the arguments, `names` their names; `structure` is `(args, kwargs)` in plain containers, with
    `ArrayPosition`s for the arrays. Other arguments are constants.
    """

    def __init__(self, program: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        program = program_of_file(program)
        self.program = program
        self.source: SourceProgram = source_program(program, (args, kwargs))
        self.framework, self.origin = self.source.framework, self.source.origin
        self.name = identifier(self.source.name)
        self.arrays, self.rebuild = self.source.flatten(args, kwargs)
        marked_args, marked_kwargs = self.rebuild([ArrayPosition(i) for i in range(len(self.arrays))])
        self.callable = program
        if self._takes_weights(marked_args, marked_kwargs):
            marked_args, marked_kwargs = self._by_leaves(args, kwargs)
        positional = [p for x in marked_args if (p := plain(x, _is_slot)) is not OMITTED and p != ()]
        named = {n: p for n, x in marked_kwargs.items() if (p := plain(x, _is_slot)) is not OMITTED and p != ()}
        self.structure: tuple[tuple[Any, ...], dict[str, Any]] = tuple(positional), named
        self.names = _names(program, marked_args, marked_kwargs)
        planned = getattr(self.source, "planned", None)  # an ONNX model has names of its own
        if planned is not None and len(planned.inputs) == len(self.arrays):
            self.names = [identifier(name) for name in planned.inputs]
        self._state = _state(program, self.source)

    def _takes_weights(self, marked_args: Any, marked_kwargs: Any) -> bool:
        """Return True if an argument contains arrays that `tg.source` takes for weights of the program; and for
        functions of JAX, whose results may be in containers of any kind."""
        rest = optree.tree_leaves((marked_args, marked_kwargs), is_leaf=is_array)  # type: ignore[arg-type]
        return self.framework in ("jax", "array_api") and (inspect.isroutine(self.program) or any(map(is_array, rest)))

    def _by_leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Make the program a function of its arrays. Returns the arguments with `ArrayPosition`s for these."""
        if self.framework == "jax":
            tree: Any = sys.modules["jax"].tree
            leaves, structure = tree.flatten((args, kwargs))
            unflatten = lambda new: tree.unflatten(structure, new)  # noqa: E731
        else:
            leaves, structure = optree.tree_flatten((args, kwargs))  # type: ignore[arg-type]
            unflatten = lambda new: optree.tree_unflatten(structure, new)  # noqa: E731
        positions = [i for i, x in enumerate(leaves) if is_array(x)]

        def rebuilt(new: Sequence[Any]) -> Any:
            changed = list(leaves)
            for i, x in zip(positions, new, strict=True):
                changed[i] = x
            return unflatten(changed)

        def function(*arrays: Any) -> Any:
            new_args, new_kwargs = rebuilt(arrays)
            return plain(program(*new_args, **new_kwargs), is_array)

        program, function.__name__, function.__qualname__ = self.program, self.name, self.name
        function.__module__ = getattr(program, "__module__", None) or function.__module__
        self.source = type(self.source)(function)  # type: ignore[call-arg]
        self.arrays = [leaves[i] for i in positions]
        self.callable = function
        self.rebuild = lambda new: (tuple(new), {})
        return rebuilt([ArrayPosition(i) for i in range(len(positions))])

    def __call__(self, arrays: Sequence[Any]) -> Any:
        """Return the results of the program in plain containers."""
        args, kwargs = self.rebuild(list(arrays))
        return plain(self.callable(*args, **kwargs), is_array)

    def positional_names(self) -> list[str]:
        """Return names for the positional arguments that have arrays, each once."""
        names: list[str] = []
        for k, structure in enumerate(self.structure[0]):
            first = min(taken(structure, structure), default=0)
            name = identifier(self.names[first].partition(".")[0])
            names.append(name if name not in {*names, *self.structure[1]} else f"{name}_{k}")
        return names

    def evaluate(self, arrays: Sequence[Any]) -> Evaluation:
        """Return the results of the program, by their places, as arrays of NumPy; its state is left as it was."""
        args, kwargs = self.rebuild(list(arrays))
        return self.source.evaluate(args, kwargs, gradients=False)

    def writes(self, after: Mapping[str, np.ndarray]) -> bool:
        """Return True if a call of the program has written its state, which is `after` it."""
        return any(n in self._state and not np.array_equal(x, self._state[n]) for n, x in after.items())

    def is_stateful(self) -> bool:
        """Return True if a call of the program writes its state, that of modules of JAX, too."""
        after = self.evaluate(self.arrays).buffers
        if self.framework != "jax":
            return self.writes(after)
        from tensorgraft.frontends.jax.codegen.programs import TakenApart

        args, kwargs = self.rebuild(list(self.arrays))
        inputs: Any = TakenApart(self.callable, args, kwargs).inputs
        before = {name: self.source.numpy(inputs.values[i]) for name, i in inputs.buffers.items()}
        return any(name in before and not np.array_equal(x, before[name]) for name, x in after.items())


def _state(program: Any, source: Any) -> dict[str, np.ndarray]:
    """Return copies of the buffers of a module, or of the variables of a program of TensorFlow."""
    if source.framework == "torch":
        return {name: source.numpy(b) for name, b in program.named_buffers()}
    if source.framework == "tensorflow":
        from tensorgraft.frontends.tensorflow.codegen.models import held_by

        variables = held_by(program).variables
        source.buffers = set(variables)
        return {name: v.numpy() for name, v in variables.items()}
    return {}


def identifier(name: str) -> str:
    """Return a name as an identifier."""
    name = "function" if name == "<lambda>" else name
    found = "".join(c if c.isalnum() or c == "_" else "_" for c in name).strip("_") or "function"
    return found if found.isidentifier() and not keyword.iskeyword(found) else f"_{found}"


def tensor_name(path: str) -> str:
    """Return the name of an argument or result that TensorFlow accepts."""
    name = "".join(c if c.isalnum() or c == "_" else "_" for c in path)
    return name if name[:1].isalpha() else f"result_{name}"


def _is_slot(x: Any) -> bool:
    return isinstance(x, ArrayPosition)


def _names(program: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Return the names of the arrays, by the program's parameters and the places in these."""
    function: Callable[..., Any] = next(
        (f for n in ("forward", "call", "python_function") if (f := getattr(program, n, None)) is not None), program
    )
    try:
        bound = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {**{f"x{i}": x for i, x in enumerate(args)}, **kwargs}
    found: dict[int, str] = {}
    for name, tree in bound.items():
        for path, x in by_path(plain(tree, _is_slot)).items():
            if _is_slot(x):
                found[int(x)] = name if path == "result" else f"{name}.{path}"
    return [found[i] for i in sorted(found)]
