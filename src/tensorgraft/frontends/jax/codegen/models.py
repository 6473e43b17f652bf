"""Models of Equinox, Flax and Haiku while they are traced: their calls, as the `CallWatch` notes them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax

from tensorgraft.codegen.recorders.call_recorder import first_sentence
from tensorgraft.codegen.recorders.frames import Called
from tensorgraft.frontends.jax.codegen.call_recorder import CallWatch, variable_of

Path = Callable[[Any], str | None]


def is_module(x: Any) -> bool:
    """Return True for a model that holds its arrays: Equinox's, nnx's."""
    return any(isinstance(x, base) for base in _bases())


def _bases() -> list[type]:
    bases = []
    for name, attribute in (("equinox", "Module"), ("flax.nnx", "Module")):
        module = sys.modules.get(name)
        if module is not None:
            bases.append(getattr(module, attribute))
    return bases


@contextlib.contextmanager
def recorded_calls(watch: CallWatch, paths: dict[Any, str], classes: set[type]) -> Iterator[None]:
    """A context in which calls of modules are recorded. `paths`: {id of an array, or of a variable that represents it:
    its path}."""
    with contextlib.ExitStack() as stack:
        for cls in classes:
            _wrap(stack, watch, cls, paths)
        linen = sys.modules.get("flax.linen")
        if linen is not None:
            stack.enter_context(linen.intercept_methods(functools.partial(_linen, watch)))
        haiku = sys.modules.get("haiku")
        if haiku is not None:
            stack.enter_context(haiku.intercept_methods(functools.partial(_haiku, watch)))
        yield


# ---- modules that hold their arrays ----------------------------------------------------------------------------------


def _wrap(stack: contextlib.ExitStack, watch: CallWatch, cls: type, paths: dict[Any, str]) -> None:
    """Make the class's `__call__` note its calls, while the program is traced."""
    original_call = cls.__dict__.get("__call__")
    if original_call is None:
        return
    plain = getattr(original_call, "method", original_call)  # the method of the class body, which Equinox has wrapped

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if type(self).__call__ is not noted:  # super().__call__
            return plain(self, *args, **kwargs)
        parent = watch.around()
        path, name = _module_path(self, parent, paths)
        call = Called(
            type(self).__name__,
            path,
            name,
            first_sentence(cls.__doc__, cls.__name__),
            arguments=watch.saw(functools.partial(plain, self), args, kwargs),
            is_module=True,
            model=self,
        )
        with watch.call(call):
            return plain(self, *args, **kwargs)

    functools.update_wrapper(noted, plain)
    type.__setattr__(cls, "__call__", noted)
    stack.callback(type.__setattr__, cls, "__call__", original_call)


def _module_path(model: Any, parent: Called | None, paths: dict[Any, str]) -> tuple[str, str]:
    """Return (path from the program, path from the module around it) of a module that is called."""
    path_inside = _path_within(parent.model, model) if parent is not None and parent.model is not None else None
    if path_inside is not None and parent is not None:
        return f"{parent.path}.{path_inside}".strip("."), path_inside
    path = ""
    for keys, leaf in named_leaves(model):
        weight_path = paths.get(variable_of(leaf)) or paths.get(id(leaf))
        if weight_path is not None and (weight_path == keys or weight_path.endswith("." + keys)):
            path = weight_path[: len(weight_path) - len(keys)].rstrip(".")
            break
    outer_path = parent.path if parent is not None else ""
    name = path[len(outer_path) :].lstrip(".") if path.startswith(outer_path) else path
    return path, name


def _path_within(parent: Any, child: Any, depth: int = 4) -> str | None:
    """Return the path of an object in a module: attributes, items of lists and dictionaries."""
    for name, value in _items(parent):
        if value is child:
            return name
    if depth:
        for name, value in _items(parent):
            if isinstance(value, list | tuple | dict) or is_module(value):
                inner = _path_within(value, child, depth - 1)
                if inner is not None:
                    return f"{name}.{inner}"
    return None


def _items(x: Any) -> list[tuple[str, Any]]:
    if isinstance(x, dict):
        return [(str(k), v) for k, v in x.items()]
    if isinstance(x, list | tuple):
        return [(str(i), v) for i, v in enumerate(x)]
    if dataclasses.is_dataclass(x):
        return [(f.name, getattr(x, f.name, None)) for f in dataclasses.fields(x)]
    if is_module(x):
        return [(k, v) for k, v in vars(x).items() if not k.startswith("_pytree")]
    return []


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Return (path, leaf) of a pytree."""
    return [(path_text(path), x) for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]]


def path_text(path: Any) -> str:
    parts = []
    for key in path:
        part = next((getattr(key, n) for n in ("name", "idx", "key") if hasattr(key, n)), str(key))
        parts.append(str(part))
    return ".".join(parts)


def classes_in(tree: Any, classes: set[type] | None = None, depth: int = 12) -> set[type]:
    """Return the classes of modules in a tree that have a `__call__`."""
    classes = set() if classes is None else classes
    if is_module(tree):
        classes.update(c for c in type(tree).__mro__ if "__call__" in c.__dict__ and is_module_class(c))
    if depth:
        for _, value in _items(tree):
            if isinstance(value, list | tuple | dict) or is_module(value):
                classes_in(value, classes, depth - 1)
    return classes


def is_module_class(cls: type) -> bool:
    return any(issubclass(cls, base) for base in _bases())


def containers(tree: Any, path: str = "", class_names: dict[str, str] | None = None) -> dict[str, str]:
    """Return {path of each module and list in a tree: its class, or "list"}."""
    class_names = {} if class_names is None else class_names
    for name, value in _items(tree):
        child_path = f"{path}.{name}".strip(".")
        if is_module(value):
            class_names[child_path] = type(value).__name__
            containers(value, child_path, class_names)
        elif isinstance(value, list | tuple) and any(is_module(v) for v in value):
            class_names[child_path] = "list"
            containers(value, child_path, class_names)
        elif isinstance(value, dict):
            containers(value, child_path, class_names)
    return class_names


# ---- modules that are given their arrays -----------------------------------------------------------------------------


def _linen(watch: CallWatch, method: Any, args: Any, kwargs: Any, context: Any) -> Any:
    if context.method_name != "__call__":
        return method(*args, **kwargs)
    path = ".".join(context.module.path)
    return _recorded_call(watch, type(context.module), path, method, args, kwargs)


def _haiku(watch: CallWatch, method: Any, args: Any, kwargs: Any, context: Any) -> Any:
    if context.method_name != "__call__":
        return method(*args, **kwargs)
    path = context.module.module_name.replace("/~/", ".").replace("/", ".")
    return _recorded_call(watch, type(context.module), path, method, args, kwargs)


def _recorded_call(watch: CallWatch, cls: type, path: str, method: Any, args: Any, kwargs: Any) -> Any:
    parent = watch.around()
    outer_path = parent.path if parent is not None else ""
    name = path[len(outer_path) :].lstrip(".") if path.startswith(outer_path) else path
    doc = first_sentence(cls.__doc__, cls.__name__)
    function = functools.partial(cls.__call__, None)  # for its signature: the method takes any arguments
    call = Called(cls.__name__, path, name, doc, arguments=watch.saw(function, args, kwargs), is_module=True)
    with watch.call(call):
        return method(*args, **kwargs)
