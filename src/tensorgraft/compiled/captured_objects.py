"""The objects that a function of a program reaches, under the names that the program has for them: `model.head.weight`,
`self.optimizer`, `batch['ids']`."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import gc
import inspect
import os
import sys
import sysconfig
import types
from collections import defaultdict, deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from contextvars import ContextVar
from operator import is_
from typing import Any
from weakref import ReferenceType, WeakSet

import numpy as np

from tensorgraft.arrays import framework_of
from tensorgraft.compiled.instructions import asked_modules, global_names, imported_modules
from tensorgraft.compiled.lookups import ABSENT, Lookups, content_of
from tensorgraft.compiled.source_location import OURS
from tensorgraft.compiled.values import SameObject, exact, is_plain, is_same_value, is_scalar
from tensorgraft.hub.straight_line import StraightLine

Named = tuple[str, Any]
Call = tuple[tuple[Any, ...], dict[str, Any]]  # the arguments of a call
# limits of the numbers of objects and of elements of a container; further ones are not examined
MOST, _MOST_OBJECTS = 1 << 14, 100_000
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
FRAMEWORKS = frozenset(
    ("torch", "jax", "jaxlib", "numpy", "scipy", "tensorflow", "keras", "tensorgraft", "optree", "ml_dtypes")
)
_FOREIGN = ("tensorgraft", "jax", "jaxlib", "numpy")
_CLOSED = (types.ModuleType, type, types.BuiltinFunctionType, types.GenericAlias, types.CodeType)


REMEMBERS = type(functools.lru_cache(len))
_WRITTEN = 32  # elements of a dictionary that are compared in straight line
_RUN_WITH = ("__code__", "__defaults__", "__kwdefaults__")


class DirectCaptures:
    """The objects that a function reaches directly: by its closure, its globals and the object it is a method of."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self.fixed: list[Any] = []
        self._names: list[str] = []
        self._code: types.CodeType | None = None
        self._variables = Lookups()
        self._variable_names: list[str] = []
        self._find(fn)

    def _find(self, fn: Any) -> None:
        if isinstance(fn, types.MethodType):
            self.fixed.append(fn.__self__)
            self._names.append("self")
            fn = fn.__func__
        if isinstance(fn, functools.partial):
            self._find(fn.func)
            self.fixed += [*fn.args, *fn.keywords.values()]
            self._names += [*(f"args[{i}]" for i in range(len(fn.args))), *fn.keywords]
        elif isinstance(fn, types.FunctionType):
            names = sorted(global_names(fn.__code__))
            run_with = [(fn, name) for name in _RUN_WITH]
            self._variables = Lookups([(fn.__globals__, name) for name in names], fn.__closure__ or (), run_with)
            self._variable_names = [*names, *fn.__code__.co_freevars, *_RUN_WITH]
            self._code = fn.__code__
        else:
            self.fixed.append(fn)
            self._names.append(type(fn).__name__)

    def find_again(self) -> bool:
        """Update the captured objects if the function's code has changed. Returns True if it has."""
        code = getattr(self._fn, "__code__", None)
        if code is None or code is self._code:
            return False
        self.__init__(self._fn)  # type: ignore[misc]
        return True

    def names(self) -> list[str]:
        """Return the program's names for the objects of `current`."""
        return [*self._names, *self._variable_names]

    def current(self) -> list[Any]:
        """Return the objects in a fixed order, with ABSENT for variables that have no value."""
        return [*self.fixed, *self._variables.current()] if self.fixed else self._variables.current()

    def write(self, code: StraightLine, objects: Sequence[Any]) -> None:
        """Write that the objects are these."""
        self._variables.write(code, objects[len(self.fixed) :])


# ---- further -------------------------------------------------------------------------------------------------------


class ContainerContents:
    """A container and its former contents, with the program's names for them, or `[k]`."""

    def __init__(
        self,
        name: str,
        of: Any,
        values_now: Callable[[], list[Any]],
        names: list[str] | None = None,
        lookups: Lookups | None = None,
    ) -> None:
        """`lookups`: the first part of `values_now`, if only that can change."""
        self.name, self.of, self.current, self.names, self.lookups = name, of, values_now, names, lookups
        self.before = values_now()

    def holds(self) -> bool:
        """Return whether it holds the same objects, or equal plain values."""
        contents = self.current()
        if len(contents) != len(self.before):
            return False
        return all(map(is_, contents, self.before)) or all(map(is_same_value, contents, self.before))

    def holds_same(self) -> bool:
        """Return whether it holds the same objects."""
        contents = self.current()
        return len(contents) == len(self.before) and all(map(is_, contents, self.before))

    def write(self, code: StraightLine) -> None:
        """Write that it holds the same objects."""
        of, before = self.of, self.before
        if of.__class__ is dict and len(before) <= _WRITTEN and all(key.__class__ is str for key in of):
            size, name = len(before) // 2, code.name(of)
            code.require(f"[*{name}] == {code.name(before[:size])}" if size else f"not {name}")
            for key, value in zip(before[:size], before[size:], strict=True):
                code.require(f"{name}[{key!r}] is {code.name(value)}")
        else:
            code.require(f"{code.name(self.holds_same)}()")

    def children(self) -> Iterator[Named]:
        names = self.names if self.names is not None else [f"[{k}]" for k in range(len(self.before))]
        return ((f"{self.name}{key}", child) for key, child in zip(names, self.before, strict=True))


def walk(
    roots: Iterable[Named], known_ids: dict[int, Any] | None = None, modules: bool = False
) -> Iterator[tuple[str, Any, ContainerContents | None]]:
    """Yield (the program's name, a value, its contents) for everything that values refer to, each once, the nearest
    first. `modules`: enter PyTorch modules, too."""
    known_ids = {} if known_ids is None else known_ids
    queue = deque(roots)
    while queue and len(known_ids) < MOST:
        name, value = queue.popleft()
        if is_scalar(value) or _is_closed(value) or id(value) in known_ids:
            continue
        known_ids[id(value)] = value
        contents = None if framework_of(value) is not None else _contents_of(name, value, in_library)
        if contents is None and modules and _is_module(value):
            contents = _of_tables(name, value, (value._parameters, value._buffers, value._modules))
        elif modules and is_of_program(value) and (contents is None or isinstance(value, tuple)):
            attributes = _attributes(name, value)
            if contents is not None:
                queue.extend(contents.children())
            contents = attributes
        if contents is not None and len(contents.before) > MOST:
            continue
        yield name, value, contents
        if contents is not None:
            queue.extend(contents.children())


def objects_behind(roots: Sequence[Named], library: Callable[[str], bool], kind: type | None = None) -> Iterator[Named]:
    """Return the objects that `roots` refer to, also through attributes, each once, the nearest first. Numbers, strings
    (unless of `kind`) and the frameworks' own objects are left out. `library`: tells by the file of a function that it
    is not entered."""
    known_ids: dict[int, Any] = {}
    queue = deque(roots)
    while queue and len(known_ids) < _MOST_OBJECTS:
        name, value = queue.popleft()
        if value.__class__ is kind:
            yield name, value
        if is_scalar(value) or _is_closed(value) or id(value) in known_ids:
            continue
        module = _is_module(value)
        if type(value).__module__.partition(".")[0] in _FOREIGN and not module:
            if hasattr(value, "__wrapped__"):  # a compiled function
                queue.append((name, value.__wrapped__))
            continue
        known_ids[id(value)] = value
        yield name, value
        if framework_of(value) is not None:
            continue
        contents: ContainerContents | None
        if module:
            attributes = vars(value)
            public, private = ({k: v for k, v in attributes.items() if k.startswith("_") is p} for p in (False, True))
            contents = _of_tables(name, value, (value._parameters, value._buffers, value._modules, public, private))
        else:
            contents = _contents_of(name, value, library)
            if contents is None and not isinstance(value, types.FunctionType) and hasattr(value, "__dict__"):
                contents = _of_tables(name, value, (dict(vars(value)),))
        if contents is not None:
            queue.extend((its_name, child) for its_name, child in contents.children() if " key [" not in its_name)


def roots(fn: Callable[..., Any]) -> list[Named]:
    """Return the objects that a function refers to directly, including its defaults, with the program's names for
    them."""
    contents = _contents_of("", fn, in_library)
    return [(type(fn).__name__, fn)] if contents is None else list(contents.children())


def arguments(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Named]:
    """Return the arguments of a call under the names that the function has for them."""
    try:
        signature = inspect.signature(getattr(fn, "forward", fn))
        bound = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # the call itself raises the error; some built-in functions have no signature
        return [*((f"args[{i}]", a) for i, a in enumerate(args)), *kwargs.items()]
    flat: list[Named] = []
    for name, value in bound.items():
        is_keywords = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        flat.extend(value.items() if is_keywords else [(name, value)])
    return flat


def _contents_of(name: str, value: Any, library: Callable[[str], bool]) -> ContainerContents | None:
    """Return the items of a container, or the captured objects of a function of the program; None for anything else."""
    if isinstance(value, dict | Mapping) and not type(value).__module__.startswith(
        "scipy."
    ):  # `dok_array` iterates rows
        keys = [f"[{key!r}]" if isinstance(key, str | int | float | tuple) else "[...]" for key in list(value)]
        names = [f" key {k}" for k in keys] + keys
        if isinstance(value, defaultdict):
            names.append(".default_factory")
            return ContainerContents(name, value, lambda: [*value, *value.values(), value.default_factory], names)
        return ContainerContents(name, value, lambda: [*value, *value.values()], names)
    if isinstance(value, list | tuple | deque | set | frozenset | WeakSet):
        return ContainerContents(name, value, lambda: list(value))
    if (dataclasses.is_dataclass(value) and not isinstance(value, type)) or is_namespace(value):
        return _attributes(name, value)
    if isinstance(value, BaseException) and not is_of_program(value):
        own = vars(value)
        names = [".args", *(f" key .{n}" for n in own), *(f".{n}" for n in own)]
        return ContainerContents(name, value, lambda: [value.args, *vars(value), *vars(value).values()], names)
    if isinstance(value, ReferenceType):
        return ContainerContents(name, value, lambda: [value()], [""])
    if type(value).__module__ == "logging" and hasattr(value, "getEffectiveLevel"):
        names = [".getEffectiveLevel()", ".level", ".disabled", ".manager.disable", ".handlers"]

        def settings() -> list[Any]:
            return [value.getEffectiveLevel(), value.level, value.disabled, value.manager.disable, value.handlers]

        return ContainerContents(name, value, settings, names)
    if isinstance(value, ContextVar):
        return ContainerContents(name, value, lambda: [value.get(ABSENT)], [""])
    if isinstance(value, types.FunctionType):
        if not library(value.__code__.co_filename):
            return _variables_around(value)
        names = [name for name, _ in functions_around(value)]
        return ContainerContents("", value, lambda: [fn for _, fn in functions_around(value)], names) if names else None
    if isinstance(value, KeysView | ValuesView | ItemsView):
        return ContainerContents(name, value, lambda: list(value))
    if isinstance(value, types.MethodType):
        return ContainerContents("", value, lambda: [value.__func__, value.__self__], [name, "self"])
    if is_bound_builtin(value):
        return ContainerContents("", value, lambda: [value.__self__], [name.rpartition(".")[0] or "self"])
    if isinstance(value, functools.partial):
        names = [name, *(f"args[{k}]" for k in range(len(value.args))), "keywords", "__dict__"]
        return ContainerContents("", value, lambda: [value.func, *value.args, value.keywords, vars(value)], names)
    if isinstance(value, REMEMBERS):
        return ContainerContents(name, value, lambda: [vars(value)], [".__dict__"])
    if is_compiled_function(value):
        return ContainerContents(name, value, lambda: [value.__wrapped__], [""])
    if held := functions_held(value):
        return ContainerContents(name, value, lambda: list(functions_held(value).values()), [f".{n}" for n in held])
    return None


def objects_in(array: Any) -> list[Any]:
    """Return Python's objects in an array of NumPy, also those in fields of its elements."""
    dtype: Any = getattr(array, "dtype", None)
    if not getattr(dtype, "hasobject", False):
        return []
    found = array.ravel().tolist()
    while dtype.names is not None and any(isinstance(x, tuple | list) for x in found):
        found = [y for x in found for y in (x if isinstance(x, tuple | list) else [x])]
    return list(found)


def functions_held(value: Any) -> dict[str, Any]:
    """Return the functions in the attributes of an object that a framework has made of some (`jax.custom_vjp`,
    `torch.library.custom_op`), or the one of a ufunc."""
    if isinstance(value, np.ufunc):  # `np.frompyfunc`
        return {f"func{k}": of for k, of in enumerate(gc.get_referents(value)) if isinstance(of, _FUNCTIONS)}
    if not type(value).__module__.startswith(("jax.", "torch._library.")):
        return {}
    attributes = getattr(value, "__dict__", {})
    return {n: v for n, v in attributes.items() if isinstance(v, types.FunctionType | types.MethodType)}


def is_called_back(value: Any) -> bool:
    """Return whether a value that an object of a framework has is a function of the program, or an object of its
    classes."""
    if isinstance(value, types.FunctionType):
        return not in_library(value.__code__.co_filename)
    return (
        isinstance(value, types.MethodType | functools.partial) or is_of_program(value) or is_compiled_function(value)
    )


def _attributes(name: str, value: Any) -> ContainerContents:
    """Return the class of an object, and its attributes."""
    attributes: Any = getattr(value, "__dict__", {})
    slots = slots_of(type(value))

    def read() -> list[Any]:
        attributes = getattr(value, "__dict__", {})  # another one in another thread, or since it was replaced
        return [type(value), *attributes, *attributes.values(), *(getattr(value, n, None) for n in slots)]

    names = [f".{n}" for n in attributes]
    return ContainerContents(
        name, value, read, [".__class__", *(f" key {n}" for n in names), *names, *(f".{n}" for n in slots)]
    )


# classes of the standard library (not those derived from them) in which a program keeps its values
_NAMESPACES = {
    ("types", "SimpleNamespace"),
    ("argparse", "Namespace"),
    ("optparse", "Values"),
    ("_thread", "_local"),
    ("collections", "UserList"),
    ("collections", "UserDict"),
    ("queue", "Queue"),
    ("weakref", "WeakKeyDictionary"),
    ("weakref", "WeakValueDictionary"),
    ("_weakrefset", "WeakSet"),
}


def is_namespace(value: Any) -> bool:
    """Return whether an object of a class of the standard library has attributes that are a program's own values."""
    return any((cls.__module__, cls.__qualname__) in _NAMESPACES for cls in type(value).__mro__)


def _is_closed(value: Any) -> bool:
    return isinstance(value, _CLOSED) and not is_bound_builtin(value)


def is_bound_builtin(value: Any) -> bool:
    """Return whether a value is a method, made in C, of an object: `losses.append`."""
    bound = isinstance(value, types.BuiltinMethodType | types.MethodWrapperType)
    return bound and not isinstance(value.__self__, types.ModuleType | type | None)


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def is_plain_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of PyTorch's or of a program's class, with memory of its own, whose attributes
    are the program's."""
    if not is_tensor_with_attributes(value):
        return False
    return type(value).__torch_dispatch__ is sys.modules["torch"].Tensor.__torch_dispatch__


def is_tensor_with_attributes(value: Any) -> bool:
    """Return whether a value is a plain tensor, or one of a class that is not PyTorch's own and keeps the tensors that
    it wraps as attributes."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or type(value).__module__.startswith("tensorgraft."):
        return False
    is_plain = type(value).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return is_plain or not type(value).__module__.startswith("torch.")


def _of_tables(name: str, value: Any, tables: Sequence[dict[str, Any]]) -> ContainerContents:
    """Attributes."""
    names = [f".{key}" if name else f"{key}" for table in tables for key, _ in table.items()]
    return ContainerContents(name, value, lambda: [v for table in tables for v in table.values()], names)


def is_compiled_function(value: Any) -> bool:
    """Return whether something of ours has made a function of one of the program's, its `__wrapped__`."""
    return type(value).__module__.startswith("tensorgraft.") and hasattr(value, "__wrapped__")


def _variables_around(fn: types.FunctionType) -> ContainerContents:
    """Return the variables of a function that are not its own, its code and its defaults."""
    names = [n for n in dict.fromkeys(_names(fn.__code__)) if n in fn.__globals__]
    # a global may be defined later and hide them
    names += sorted(global_names(fn.__code__) & vars(builtins).keys() - fn.__globals__.keys())
    run_with = [n for n in _RUN_WITH if getattr(fn, n) is not None]
    imported = [n for n in imported_modules(fn.__code__) if n in sys.modules]
    imported += sorted(asked_modules(fn.__code__) - {*imported})
    entries = [*((fn.__globals__, n) for n in names), *((sys.modules, n) for n in imported)]
    lookups = Lookups(entries, fn.__closure__ or (), [(fn, n) for n in run_with])
    attributes = [vars(fn)] if has_attributes(fn) else []
    extra_names = [f"{fn.__name__}.{n}" for n in (*run_with, *("__dict__" for _ in attributes))]
    all_names = [*names, *imported, *fn.__code__.co_freevars, *extra_names]
    return ContainerContents("", fn, lambda: [*lookups.current(), *attributes], all_names, lookups)


def functions_around(fn: types.FunctionType) -> list[Named]:
    """Return the functions of the program that a library's function refers to: those that a decorator has wrapped, also
    in a table (`functools.singledispatch`) or a sequence (`optax.chain`)."""
    variables = [
        (name, content_of(cell)) for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    ]
    several = [(name, v) for name, v in variables if isinstance(v, dict | list | tuple) and len(v) < _MOST_WRAPPED]
    flat = [*variables, *((name, v) for name, of in several for v in (of.values() if isinstance(of, dict) else of))]
    return [(name, v) for name, v in flat if isinstance(v, _FUNCTIONS)]


_MOST_WRAPPED = 1000
_FUNCTIONS = types.FunctionType | types.MethodType | functools.partial


def has_attributes(fn: types.FunctionType) -> bool:
    """Return whether a function has attributes, or may give itself some."""
    code = fn.__code__
    return bool(vars(fn).keys() - {"__wrapped__"}) or fn.__name__ in (*code.co_names, *code.co_freevars)


def _names(code: types.CodeType) -> Iterable[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def is_python_class(kind: type) -> bool:
    """Return whether a class is written in Python. From Python 3.12 on, those of C are on the heap, too; they have a
    constructor of their own, or none."""
    heap, immutable, not_made = 1 << 9, 1 << 8, 1 << 7  # `Py_TPFLAGS_*`
    constructor = vars(kind).get("__new__")
    is_own = isinstance(constructor, types.BuiltinFunctionType) and constructor.__self__ is kind
    return bool(kind.__flags__ & heap) and not kind.__flags__ & (immutable | not_made) and not is_own


# frameworks whose classes that are written in Python keep arrays, numbers and functions (`numpy.poly1d`,
# `scipy.sparse.csr_array`), and parts of PyTorch whose objects keep a program's tensors
_OF_VALUES = ("numpy", "scipy")
_OF_TENSORS = ("torch.distributions.", "torch.utils.data.")


def is_of_program(value: Any) -> bool:
    """Return True if an object's class is written in Python, and belongs neither to the standard library nor to a
    framework: it is the program's, or that of a package which it uses."""
    return is_program_class(type(value))


def is_program_class(kind: type) -> bool:
    """Say the same of all objects of a class."""
    if not is_python_class(kind) or callable(getattr(kind, "__torch_function__", None)):
        return False
    package = kind.__module__.partition(".")[0]
    # a class made by `exec` without a module name is in "builtins"
    if package in ("__main__", "builtins", *_OF_VALUES) or kind.__module__.startswith(_OF_TENSORS):
        return True
    return not (package in sys.stdlib_module_names or package in FRAMEWORKS)


def object_key(value: Any) -> Any:
    """Return a key of a hashable object. If its class defines equality, the key includes what may differ between equal
    objects: attributes, and the text of a value (`Decimal("1.0")` and `Decimal("1.00")`)."""
    cls = type(value)
    if cls.__eq__ is object.__eq__:
        return cls, value
    if not is_of_program(value):
        return (cls, value, repr(value)) if cls.__module__ in _VALUES or cls is range else (cls, value)
    fields = {**getattr(value, "__dict__", {}), **{n: getattr(value, n) for n in slots_of(cls) if hasattr(value, n)}}
    return cls, value, *((n, exact(v) if is_plain(v) else SameObject(v)) for n, v in fields.items())


_VALUES = {"decimal", "datetime", "fractions", "numpy"}


def slots_of(kind: type) -> list[str]:
    """Return the names of a class's `__slots__`, those of its bases included."""
    declared = ((cls, vars(cls).get("__slots__", ())) for cls in kind.__mro__)
    names = [(cls, name) for cls, slots in declared for name in ([slots] if isinstance(slots, str) else slots)]
    return [name for cls, name in names if name not in ("__dict__", "__weakref__") and name in vars(cls)]


def in_library(file: str) -> bool:
    return file.startswith("<frozen") or file.startswith((*_LIBRARIES, OURS))
