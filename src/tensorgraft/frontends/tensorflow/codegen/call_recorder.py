"""Observation of a program while TensorFlow traces it: which layers and functions are called, and the names of its
variables.

A call is a range of the operations of a graph: those that are added while it runs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from tensorgraft.codegen.recorders.call_recorder import ProgramWatch, first_sentence, named_arguments
from tensorgraft.codegen.recorders.frames import Called

_Function: Any = type(tf.function(len))
_OURS = f"{Path(__file__).parents[3]}/"
_LIBRARIES = ("/tensorflow/", "/keras/", "/tf_keras/", "/numpy/", "/tensorgraft/", "/optree/")
_OF_AUTOGRAPH = frozenset({"retval_", "do_return", "fscope", "itr", "ag__"})


@dataclass(frozen=True)
class TensorKey:
    """A key of a tensor of a graph, equal for all Python objects that represent it."""

    graph: int
    operation: str
    place: int

    @classmethod
    def of(cls, t: Any) -> TensorKey:
        return cls(id(t.graph), t.op.name, t.value_index)


@dataclass
class GraphWatch(ProgramWatch):
    """The calls and names that were observed."""

    ranges: dict[Any, list[tuple[int, int, int]]] = field(default_factory=dict)  # graph -> (first, end, number)
    _functions: dict[int, Any] = field(default_factory=dict)

    # ---- calls -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def call(self, user_call: Called) -> Iterator[None]:
        graph = tf.compat.v1.get_default_graph()
        number, first = len(self.program_calls), len(graph.get_operations())
        self.program_calls.append(user_call)
        self._call_stack.append(number)
        try:
            yield
        finally:
            self._call_stack.pop()
            user_call.model = None
            self.ranges.setdefault(graph, []).append((first, len(graph.get_operations()), number))

    def scopes(self, graph: Any) -> dict[str, tuple[int, ...]]:
        """Return {name of an operation of a graph: the numbers of the calls around it, the outermost first}."""
        ranges = sorted(self.ranges.get(graph, ()), key=lambda r: r[2])
        scopes_of = {}
        for i, op in enumerate(graph.get_operations()):
            scopes_of[op.name] = tuple(number for first, end, number in ranges if first <= i < end)
        return scopes_of

    def saw(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        """Return the arguments of a call by name, tensors as their keys."""
        flat = named_arguments(fn, args, kwargs)
        return [(name, mapped(lambda t: TensorKey.of(t) if _is_symbolic(t) else t, x)) for name, x in flat]

    # ---- names -----------------------------------------------------------------------------------------------------

    def is_users(self, path: str) -> bool:
        return is_users(path)

    def key_of(self, name: str, x: Any) -> Any:
        return TensorKey.of(x) if name not in _OF_AUTOGRAPH and _is_symbolic(x) else None

    # ---- what is called --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self, paths: Mapping[int, str], classes: set[type]) -> Iterator[None]:
        """Calls of layers, of modules (`classes`) and of `tf.function`s are noted. `paths`: of modules, by `id`."""
        with contextlib.ExitStack() as stack:
            for name in ("keras", "tf_keras"):
                if name in sys.modules:
                    self._replace(stack, sys.modules[name].layers.Layer, paths)
            for cls in classes:
                self._replace(stack, cls, paths)
            original_call = _Function.__call__
            watch = self

            def call_and_note(self: Any, *args: Any, **kwargs: Any) -> Any:
                if tf.executing_eagerly():
                    return original_call(self, *args, **kwargs)
                function, name = watch.fresh(self), self._name
                noted = Called(name, arguments=watch.saw(self.python_function, args, kwargs))
                if not name.isidentifier() or _is_of_library(inspect.unwrap(self.python_function)):
                    return original_call(function, *args, **kwargs)
                with watch.call(noted):
                    return original_call(function, *args, **kwargs)

            _Function.__call__ = call_and_note
            stack.callback(setattr, _Function, "__call__", original_call)
            yield

    def fresh(self, fn: Any) -> Any:
        """Return a new `tf.function` without traces, for any shapes."""
        if id(fn) not in self._functions:
            # the original is kept: its identity is the key
            self._functions[id(fn)] = tf.function(fn.python_function, autograph=fn._autograph), fn
        return self._functions[id(fn)][0]

    def _replace(self, stack: contextlib.ExitStack, cls: type, paths: Mapping[int, str]) -> None:
        original = cls.__dict__.get("__call__")
        if original is None:
            return
        plain = (
            original.python_function if isinstance(original, tf.types.experimental.PolymorphicFunction) else original
        )
        watch = self

        def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
            convert = tf.__internal__.autograph.tf_convert
            inner = convert(plain, tf.__internal__.autograph.control_status_ctx())
            if tf.executing_eagerly() or not isinstance(tf.compat.v1.get_default_graph(), _FuncGraph):
                return original.__get__(self)(*args, **kwargs)
            if isinstance(type(self).__dict__.get("__call__"), property):
                return inner(self, *args, **kwargs)
            parent = watch.around()
            parent_path = parent.path if parent is not None else ""
            path = paths.get(id(self), parent_path)
            name = path[len(parent_path) :].lstrip(".") if path.startswith(parent_path) else path
            fn = getattr(self, "call", None) or functools.partial(plain, self)
            call = Called(
                type(self).__name__,
                path,
                name,
                _of_users_class(type(self)),
                arguments=watch.saw(fn, args, kwargs),
                is_module=True,
                model=self,
            )
            if parent is not None and parent.model is self:  # super().__call__
                return inner(self, *args, **kwargs)
            with watch.call(call):
                return inner(self, *args, **kwargs)

        noted.__module__ = "keras" if cls.__module__.startswith(("keras", "tf_keras")) else "tensorflow"
        type.__setattr__(cls, "__call__", noted)
        stack.callback(type.__setattr__, cls, "__call__", original)


_FuncGraph = tf.__internal__.FuncGraph


def _is_symbolic(x: Any) -> bool:
    return isinstance(x, tf.Tensor) and not isinstance(x, tf.__internal__.EagerTensor)


def _is_of_library(fn: Any) -> bool:
    code = getattr(fn, "__code__", None)
    return code is None or not is_users(code.co_filename)


@functools.cache
def is_users(path: str) -> bool:
    """Return whether a file is the user's. Autograph writes files of its own, in which names are the program's."""
    if "__autograph_generated_file" in path:
        return True
    _, of_packages, rest = path.rpartition("/site-packages")
    if of_packages:
        return not rest.startswith(_LIBRARIES)
    return not path.startswith((sysconfig.get_path("stdlib"), "<frozen", "<string>", _OURS))


def mapped(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree of tuples, lists and dictionaries (named tuples are tuples) with `fn` of its leaves."""
    if isinstance(tree, dict):
        return {str(k): mapped(fn, x) for k, x in tree.items()}
    if isinstance(tree, tuple):
        return tuple([mapped(fn, x) for x in tree])
    if isinstance(tree, list):
        return [mapped(fn, x) for x in tree]
    return fn(tree)


def _of_users_class(cls: type) -> str:
    """Return the first sentence of a user's class's docstring; "" for libraries, whose docstrings say how to make
    one."""
    libraries = ("keras.", "tf_keras.", "tensorflow.")
    return "" if cls.__module__.startswith(libraries) else first_sentence(cls.__dict__.get("__doc__"))
